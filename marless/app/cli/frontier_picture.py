"""Draws a frontier: cost and final return, cost and time to the goal, and sample efficiency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any

from marless.app.cli.picture import COLOURS, DASHES, Axes, check, write
from marless.cost.comparison import courses
from marless.cost.comparison.choices import Band, Center, Returns

if TYPE_CHECKING:
    from marless.cost.frontier.contenders import Contender
    from marless.cost.frontier.table import Frontier
    from marless.jobs.prices import Accounting

_MARKS = ("o", "s", "D", "^", "v")
"""Of groups, in their order."""
_STAR = {"marker": "*", "s": 140, "color": "black", "zorder": 4}


def draw_frontier(found: Frontier, target: Path, accounting: Accounting = "billed") -> None:
    """Draw the three panels, costs by this accounting.

    Colours are numbers of actors, marks are groups, and marks are hollow for all schedules but the first. Raises
    SpecError for an unknown picture format, UnavailableError without matplotlib or if the file cannot be written.
    """
    check(target)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 5.5), layout="constrained")
    figure.suptitle(f"{found.job}: {len(found.seeds)} seeds of {found.env_steps:,} env steps; costs {accounting}")
    ends, goal, efficiency = figure.subplots(1, 3).tolist()
    looks = _looks(found)
    _draw_ends(ends, found, looks, accounting)
    _draw_costs(goal, found, looks, accounting)
    _draw_efficiency(efficiency, found, looks)
    for panel in (ends, goal, efficiency):
        panel.grid(alpha=0.3)
    figure.legend(*ends.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize="small")
    write(figure, target)


def _looks(found: Frontier) -> Mapping[str, Mapping[str, Any]]:  # Any: matplotlib's
    """How each static setting is drawn, by its name."""
    static = [each.static for each in found.static if each.static]
    counts = list(dict.fromkeys(each.actors for each in static))
    groups = list(dict.fromkeys(each.groups for each in static))
    looks = {}
    for each in static:
        colour = COLOURS[counts.index(each.actors) % len(COLOURS)]
        looks[each.name] = {
            "marker": _MARKS[groups.index(each.groups) % len(_MARKS)],
            "edgecolors": colour,
            "facecolors": colour if each.schedule == static[0].schedule else "none",
        }
    return looks


def _draw_ends(panel: Axes, found: Frontier, looks: Mapping[str, Mapping[str, Any]], accounting: Accounting) -> None:
    """Draw the cost of the whole run, and the return at its end."""
    for each in found.contenders:
        if each.finals:
            usd = geometric_mean(run.progress.functions[accounting].usd[-1] for run in each.runs)
            _draw_point(panel, each.name, looks, at=(usd, fmean(each.finals)))
    panel.axhline(found.goal.value, color="tab:gray", linestyle="--")
    panel.set(xscale="log", xlabel="cost of the run (US $)", ylabel="return per agent at the end, while exploring")


def _draw_costs(panel: Axes, found: Frontier, looks: Mapping[str, Mapping[str, Any]], accounting: Accounting) -> None:
    """Draw cost and time to the goal, and the frontiers of static settings."""
    for name, point in found.functions(accounting).items():
        _draw_point(panel, name, looks, at=(point.mean_usd, point.mean_s))
    machines = [point for each in found.machines.values() for point in each]
    own = {"marker": "x", "s": 12, "color": "tab:gray", "alpha": 0.6, "label": "machine of one's own"}
    panel.scatter([each.mean_usd for each in machines], [each.mean_s for each in machines], **own)
    for with_machines, style in ((False, "-"), (True, ":")):
        line = found.best(accounting, own_machines=with_machines)
        label = f"frontier{', with machines' if with_machines else ', functions'}"
        places = [each.mean_usd for each in line], [each.mean_s for each in line]
        panel.step(*places, where="post", color="black", linewidth=1, linestyle=style, label=label)
    panel.set(xlabel="cost to the goal (US $)", ylabel=f"seconds to the goal, modelled on {found.slots} vCPUs")
    if found.functions(accounting) or machines:  # else a logarithm has nothing to show
        panel.set(xscale="log", yscale="log")
    panel.legend(*_only(panel, "frontier", "machine"), fontsize="small")


def _draw_point(panel: Axes, name: str, looks: Mapping[str, Mapping[str, Any]], at: tuple[float, float]) -> None:
    """Draw a static setting by its look, or a preset as a star with its name."""
    panel.scatter(*at, label=name, **(looks.get(name) or _STAR))
    if name not in looks:
        panel.annotate(name, at, xytext=(6, 4), textcoords="offset points", fontsize="small")


def _only(panel: Axes, *begins: str) -> tuple[list[Any], list[str]]:  # Any: matplotlib's
    """Handles and labels of a panel's legend whose labels begin so."""
    pairs = zip(*panel.get_legend_handles_labels(), strict=True)
    kept = [(handle, label) for handle, label in pairs if label.startswith(begins)]
    return [handle for handle, _ in kept], [label for _, label in kept]


def _draw_efficiency(panel: Axes, found: Frontier, looks: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw returns over env steps of static settings with the first schedule: more actors change what is learned."""
    static = [each for each in found.static if each.static and each.finals]
    first = next((each.static.schedule for each in static if each.static), "")
    groups = list(dict.fromkeys(each.static.groups for each in static if each.static))
    for each in static:
        if each.static and each.static.schedule == first:
            line = courses.line(_courses(each), Center.mean, Band.range)
            colour = looks[each.name]["edgecolors"]
            dashes = DASHES[groups.index(each.static.groups) % len(DASHES)]
            label = f"{each.static.actors} {each.static.groups}"
            panel.plot(line.places, line.center, label=label, color=colour, linestyle=dashes)
            if line.low:
                panel.fill_between(line.places, line.low, line.high, color=colour, alpha=0.12, linewidth=0)
    panel.axhline(found.goal.value, color="tab:gray", linestyle="--", label="goal")
    panel.set(xlabel=f"env steps ({first})", ylabel="return per agent, while exploring")
    panel.legend(fontsize="small")


def _courses(contender: Contender) -> Sequence[courses.Course]:
    """The smoothed returns of each seed that has some, over env steps."""
    found = []
    for run in contender.runs:
        pairs = zip(run.progress.env_steps, run.progress.returns, strict=True)
        if known := [(steps, value) for steps, value in pairs if value is not None]:
            steps, values = zip(*known, strict=True)
            found.append(
                courses.Course(
                    run=run.run, seed=run.seed, returns=Returns.exploring, places=steps, env_steps=steps, values=values
                )
            )
    return found
