"""Draws a run's training curve; learners, actors, return and cost over rounds, of one run or of compared variants;
performance profiles; and returns of several jobs.

The panels of a run are those of Wei et al. 2025, fig. 12, and the cost. The colours are Okabe and Ito's, which are
distinguishable for colour-blind people. Compared variants also differ in their dashes; other lines do where colours
are used up.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from marless.core import regular_files
from marless.core.errors import SpecError, UnavailableError
from marless.core.limits import MAX_STATUS_BYTES
from marless.jobs.asynchronous_run import busy
from marless.jobs.prices import ACCOUNTINGS
from marless.storage.round_file import read

if TYPE_CHECKING:
    from marless.app.cli.plot import Look
    from marless.app.cli.recorded import Recorded
    from marless.cost.comparison.courses import RunGroup
    from marless.cost.comparison.runs import RunCurves
    from marless.cost.comparison.statistics import Profile
    from marless.cost.comparison.table import Comparison

Axes = Any  # matplotlib has no types
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_COST_LABELS = {"paper": "paper accounting", "billed": "billed", "serverful": "serverful, modelled"}
_X_LABELS = {
    "env-steps": "env steps (all agents act once in one copy)",
    "rounds": "round",
    "seconds": "seconds of rounds",
    "usd": "cost so far (US $)",
}
_MARKED = 50
"""Most points that a line shows as points."""
_STRETCH = 20
"""Versions over which the idle time of actors is averaged."""
_SUFFIXES = (".png", ".svg", ".pdf")


def draw_curve(folder: Path) -> Path | None:
    """Draw `curve.png` from a run folder's records; None without records or without matplotlib (extra `plot`).

    Raises OSError if it cannot be written, CorruptError if the records cannot be read.
    """
    rounds, trained_s = 0, 0.0
    exploring: list[tuple[int, float]] = []
    greedy: list[tuple[int, float]] = []
    for record in read(folder / "rounds.jsonl"):
        rounds = record.round + 1
        trained_s += record.spent_s
        exploring += [(record.env_steps, record.returns.mean)] if record.returns else []
        greedy += [(each.env_steps, each.returns.mean) for each in record.evaluations]
    if not rounds or importlib.util.find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    status = json.loads(regular_files.read(folder / "job.json", MAX_STATUS_BYTES))
    figure = Figure(figsize=(8, 4.5))
    figure.subplots_adjust(left=0.1, right=0.98, bottom=0.12, top=0.92)  # computing a layout takes longer than drawing
    axes = figure.add_subplot(xlabel=_X_LABELS["env-steps"], ylabel="return per agent")
    if exploring:
        axes.plot(*zip(*exploring, strict=True), color="tab:blue", alpha=0.5, linewidth=1, label="while exploring")
    if greedy:
        axes.plot(*zip(*greedy, strict=True), color="tab:blue", marker="o", markersize=3, label="greedy evaluation")
    if status.get("random"):
        _draw_random(axes, status["random"]["mean"])
    axes.set_title(f"{status['job']}: {rounds} rounds in {trained_s:.1f} s of training")
    if axes.get_legend_handles_labels()[0]:  # none, if no episode has ended
        axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    target = folder / "curve.png"
    figure.savefig(target, dpi=120)
    return target


def draw_run(run: Recorded, target: Path) -> None:
    """Draw one job's records.

    Raises SpecError for a job without rounds or an unknown picture format, UnavailableError without matplotlib or if
    the file cannot be written.
    """
    from marless.cost.comparison.runs import curves  # here, because it imports much that a training curve does not need

    if not run.records:
        raise SpecError(f"job {run.job} has no round yet: there is nothing to draw")
    figure, (learners, actors, returns, cost) = _panels(target, f"{run.job}: {len(run.records)} rounds")
    line = curves(run.records, run.spec)
    rounds = range(1, len(run.records) + 1)
    if any(record.aggregation for record in run.records):
        _draw_versions(learners, actors, run)
    else:
        learners.step(rounds, line.learners, where="mid", color=COLOURS[0])
        actors.step(rounds, line.actors, where="mid", color=COLOURS[0])
    _draw_returns(returns, line)
    if run.random:
        _draw_random(returns, run.random.mean)
    for number, accounting in enumerate(ACCOUNTINGS):
        style = {"color": COLOURS[number], "linestyle": DASHES[number]}
        cost.plot(rounds, line.cost_usd[accounting], label=_COST_LABELS[accounting], **style)
    cost.set_ylabel("cost so far (US $)")
    returns.legend(fontsize="small")
    cost.legend(fontsize="small")
    _save(figure, target)


def draw_comparison(comparison: Comparison, target: Path) -> None:
    """Draw several variants: means over seeds, with bands from minimum to maximum. Raises as `draw_run`."""
    seeds = len(comparison.columns[0].figures)
    shown = f"mean and range over {seeds} seeds" if seeds > 1 else "one seed"
    figure, (learners, actors, returns, cost) = _panels(target, f"{comparison.job}: {shown}")
    for number, column in enumerate(comparison.columns):
        style = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
        lines = [each.curves for each in column.figures]
        _band(learners, [each.learners for each in lines], style)
        _band(actors, [each.actors for each in lines], style)
        _band(returns, [each.exploring for each in lines], style)
        label = f"{column.variant} ({_COST_LABELS[column.counts]})"
        _band(cost, [each.cost_usd[column.counts] for each in lines], style, label=label)
    chance = {column.variant: [each.random for each in column.figures] for column in comparison.columns}
    if comparison.one_env:
        _draw_random(returns, fmean(itertools.chain.from_iterable(chance.values())))
    else:
        for number, (variant, values) in enumerate(chance.items()):
            colour = COLOURS[number % len(COLOURS)]
            returns.axhline(fmean(values), color=colour, linestyle=":", label=f"random policy, {variant}")
    returns.set_ylabel("return per agent, while exploring")
    returns.legend(fontsize="small")
    cost.set_ylabel("cost so far (US $)")
    figure.legend(*cost.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    _save(figure, target)


def draw_profiles(comparison: Comparison, target: Path) -> None:
    """Draw the performance profiles of variants, a panel for each side where sides compete. Raises as `draw_run`."""
    check(target)
    from matplotlib.figure import Figure

    from marless.cost.comparison.table import profiles

    found = profiles(comparison)
    results = list(comparison.reference.results)
    figure = Figure(figsize=(6 * len(results), 4.5), layout="constrained")
    panels: Sequence[Axes] = figure.subplots(1, len(results), squeeze=False)[0].tolist()
    for panel, what in zip(panels, results, strict=True):
        for number, column in enumerate(comparison.columns):
            _draw_profile(panel, found[column.variant][what], _style(number), column.variant)
        panel.set_xlabel(f"{what}, τ")
        panel.set_ylabel("fraction of runs that reach τ")
        panel.set_ylim(0, 1.02)
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize="small")
    write(figure, target)


def _draw_profile(panel: Axes, profile: Profile, style: Mapping[str, Any], label: str) -> None:
    """Draw a profile as steps: all runs reach what is below the lowest result, and none what is above the best."""
    edge = 0.05 * (profile.thresholds[-1] - profile.thresholds[0]) or 1.0
    places = (profile.thresholds[0] - edge, *profile.thresholds, profile.thresholds[-1] + edge)
    panel.step(places, (1.0, *profile.fraction, 0.0), where="pre", label=label, **style)
    if profile.low:
        low, high = (1.0, *profile.low, 0.0), (1.0, *profile.high, 0.0)
        panel.fill_between(places, low, high, step="pre", color=style["color"], alpha=0.15, linewidth=0)


def _style(number: int) -> dict[str, Any]:  # Any: matplotlib's
    """The colour and dash of a line; dashes change when the colours are used up."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
    }


def draw_groups(groups: Sequence[RunGroup], chance: Sequence[tuple[str, float]], target: Path, look: Look) -> None:
    """Draw groups of runs, each as a line with its band, and named random policies as lines across.

    Raises as `draw_run`, and SpecError for a formula that cannot be drawn.
    """
    check(target)
    from matplotlib.figure import Figure

    figure = Figure(figsize=look.inches, layout="constrained")
    axes: Axes = figure.add_subplot(title=look.title, xlabel=_X_LABELS[look.x_label], ylabel=look.y_label)
    several = any(len(group.courses) > 1 for group in groups)
    mixed = len({group.returns for group in groups}) > 1
    for number, group in enumerate(groups):
        seeds = f" ({len(group.courses)} seed{'s' if len(group.courses) > 1 else ''})" if several else ""
        label = f"{group.label}{', exploring' if mixed and group.returns == 'exploring' else ''}{seeds}"
        style = _style(number)
        line = group.line
        marker = "o" if len(line.places) <= _MARKED else None
        axes.plot(line.places, line.center, marker=marker, markersize=3, label=label, **style)
        if line.low:
            axes.fill_between(line.places, line.low, line.high, color=style["color"], alpha=0.2, linewidth=0)
    for number, (name, mean) in enumerate(chance, start=1):
        axes.axhline(mean, color="tab:gray", linestyle=DASHES[number % len(DASHES)], label=name)
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    try:
        write(figure, target)
    except ValueError as error:  # of matplotlib's parser of formulas
        if not any("$" in text for text in (look.title, look.y_label, *(group.label for group in groups))):
            raise
        raise SpecError(
            "a title or label has a formula, between two $, that matplotlib cannot draw; write \\$ for a dollar sign"
        ) from error


def check(target: Path) -> None:
    """Check the format of the picture and matplotlib before reading any records; raises as `draw_run`."""
    if target.suffix not in _SUFFIXES:
        raise SpecError(f"{target}: a picture's name ends with one of {', '.join(_SUFFIXES)}")
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError:
        raise UnavailableError("pictures need matplotlib; install it with: pip install 'marless[plot]'") from None


def _panels(target: Path, title: str) -> tuple[Any, Sequence[Axes]]:  # Any: matplotlib has no types
    check(target)
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10, 6.5), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(2, 2, sharex=True).ravel().tolist()
    for panel in axes:
        panel.grid(alpha=0.3)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("learners: policies, critics, mixers")
    axes[1].set_ylabel("actors")
    axes[2].set_ylabel("return per agent")
    for panel in axes[2:]:
        panel.set_xlabel("round")
    return figure, axes


def _draw_versions(staleness: Axes, idle: Axes, run: Recorded) -> None:
    """Draw the staleness of each version's gradients, and the idle time of actors, of an asynchronous job."""
    made = [each.aggregation for each in run.records if each.aggregation]
    rounds = range(1, len(made) + 1)
    staleness.plot(rounds, [each.mean_staleness for each in made], color=COLOURS[0], label="mean")
    greatest = [max((one.staleness for one in each.gradients), default=0) for each in made]
    staleness.plot(rounds, greatest, color=COLOURS[3], linestyle=":", label="greatest")
    # A line has a gap where it is NaN.
    bounds = [float("nan") if each.bound is None else each.bound for each in made]
    staleness.plot(rounds, bounds, color=COLOURS[6], linestyle="--", label="bound on the mean")
    staleness.set_ylabel("staleness of gradients")
    staleness.legend(fontsize="small")
    ends = range(_STRETCH, len(run.records) + _STRETCH, _STRETCH)
    stretches = [run.records[end - _STRETCH : end] for end in ends]
    idle.step(
        [min(end, len(run.records)) for end in ends], [1 - busy(each, "actor") for each in stretches], where="pre"
    )
    idle.set_ylabel("fraction of the actors' time without a rollout")
    idle.set_ylim(0, 1)


def _draw_returns(panel: Axes, line: RunCurves) -> None:
    styles: Sequence[tuple[str, Sequence[float | None], Mapping[str, Any]]] = (
        ("while exploring", line.exploring, {"color": COLOURS[0], "linewidth": 1, "alpha": 0.6}),
        ("greedy evaluation", line.greedy, {"color": COLOURS[3], "marker": "o", "markersize": 3}),
    )
    for label, values, style in styles:
        if known := [(number, value) for number, value in enumerate(values, start=1) if value is not None]:
            panel.plot(*zip(*known, strict=True), label=label, **style)


def _draw_random(panel: Axes, mean: float) -> None:
    panel.axhline(mean, color="tab:gray", linestyle="--", label="random policy")


def _band(panel: Axes, lines: Sequence[Sequence[float | None]], style: Mapping[str, Any], label: str = "") -> None:
    """Draw the mean and range over runs, for the rounds in which all of them have a value."""
    rounds, means, lows, highs = [], [], [], []
    for number, values in enumerate(zip(*lines, strict=False), start=1):
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            rounds.append(number)
            means.append(fmean(known))
            lows.append(min(known))
            highs.append(max(known))
    panel.plot(rounds, means, label=label or None, linewidth=1.5, **style)
    panel.fill_between(rounds, lows, highs, color=style["color"], alpha=0.15, linewidth=0)


def _save(figure: Any, target: Path) -> None:  # Any: matplotlib has no types
    # Not the panel of returns, which may be negative.
    for panel in (figure.axes[0], figure.axes[1], figure.axes[3]):
        panel.set_ylim(bottom=0)
    write(figure, target)


def write(figure: Any, target: Path) -> None:  # Any: matplotlib has no types
    """Write a figure to a file; raises UnavailableError if it cannot be written."""
    from matplotlib import rc_context

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with rc_context({"pdf.fonttype": 42}):  # conferences refuse the fonts of type 3 that are matplotlib's default
            figure.savefig(target, dpi=120)
    except OSError as error:
        raise UnavailableError(f"{target}: cannot be written ({error.strerror}); choose another file") from None
