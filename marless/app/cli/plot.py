"""The command `plot`: returns of jobs over env steps, rounds, seconds or cost, in one picture and as CSV.

Runs that differ in their seed alone are one line with a band (`marless.cost.comparison`).
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marless.app.cli.options import CoordinatorOptions, job_ids, positive
from marless.app.cli.output import data, say
from marless.app.cli.recorded import ENDED, Recorded, find
from marless.app.cli.working import Working
from marless.core import regular_files
from marless.core.errors import SpecError, UnavailableError, unknown_name
from marless.cost.comparison.choices import Band, Center, Over, Quantity, Returns
from marless.storage.places import is_address

if TYPE_CHECKING:
    from marless.cost.comparison.courses import Course, RunGroup
    from marless.jobs.prices import Accounting

_DEFAULT_SIZE = "8x4.5"
_MOST_TOLD = 5
_Y_LABELS = {
    (Quantity.returns, Returns.greedy): "return per agent",
    (Quantity.returns, Returns.exploring): "return per agent, while exploring",
    (Quantity.win_rate, Returns.greedy): "fraction of episodes won",
    (Quantity.win_rate, Returns.exploring): "fraction of episodes won, while exploring",
}
_CENTERS = {Center.iqm: "interquartile mean", Center.mean: "mean", Center.median: "median"}
_BANDS = {
    Band.ci: "95 % confidence interval",
    Band.range: "range",
    Band.std: "one standard deviation to either side",
    Band.none: "none",
}


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a picture says around its lines."""

    title: str
    x_label: Over
    y_label: str
    inches: tuple[float, float]
    """Width and height."""


@dataclass(frozen=True, kw_only=True)
class _Choices:
    """How runs become lines."""

    group: str
    x: Over
    y: Quantity
    returns: Returns
    center: Center
    band: Band
    accounting: Accounting
    smooth: int


JobsToDraw = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB_OR_FOLDER...",
        help="Job ids, run folders, s3://bucket/prefix/job, or folders of run folders, such as a comparison's.",
        autocompletion=job_ids,
    ),
]
PictureOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE.png", help="Or .svg, .pdf; default: JOB.png, or curves.png for several jobs."),
]
CsvOption = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE.csv", help="Write the points; needs no matplotlib.")
]
GroupOption = Annotated[
    str,
    typer.Option(
        metavar="BY",
        help="What one line is: settings (jobs that differ in the seed alone), job (each its own), id (ids that "
        "differ in -seedN alone), or fields: algorithm.name,algorithm.lr.",
    ),
]
ReturnsOption = Annotated[
    Returns,
    typer.Option(help="Greedy evaluations, or the episodes of training; these too where there are no two of those."),
]
CenterOption = Annotated[Center, typer.Option(help="The line of several seeds; of fewer than four, iqm is the mean.")]
BandOption = Annotated[
    Band, typer.Option(help="Their band; ci: 95 % interval of the line, std: one standard deviation.")
]
SmoothOption = Annotated[
    int,
    typer.Option(parser=positive, metavar="N", help="Mean of each run's last N points, before seeds are combined."),
]
LabelOption = Annotated[
    list[str],
    typer.Option(metavar="NAME=TEXT", help="What the legend calls a line; or TEXT, once for each line, in order."),
]


def plot(  # noqa: PLR0913, PLR0917  # a command has as many parameters as options
    at: CoordinatorOptions,
    jobs: JobsToDraw,
    to: PictureOption = None,
    csv_: CsvOption = None,
    group: GroupOption = "settings",
    x: Annotated[Over, typer.Option(help="What the horizontal axis counts.")] = Over.env_steps,
    y: Annotated[Quantity, typer.Option(help="What is drawn.")] = Quantity.returns,
    returns: ReturnsOption = Returns.greedy,
    center: CenterOption = Center.iqm,
    band: BandOption = Band.ci,
    accounting: Annotated[
        str, typer.Option(metavar="NAME", help="With --x usd: billed, paper or serverful.")
    ] = "billed",
    smooth: SmoothOption = 1,
    label: LabelOption = [],  # noqa: B006  # typer's way
    title: Annotated[str, typer.Option(metavar="TEXT")] = "",
    y_label: Annotated[str, typer.Option("--y-label", metavar="TEXT", help="Label of the vertical axis.")] = "",
    size: Annotated[str, typer.Option(metavar="WxH", help="Width and height in inches.")] = _DEFAULT_SIZE,
) -> None:
    """Draw returns of jobs, several seeds as a line with a band, and of the random policy; print the picture's path."""
    from marless.app.cli import picture
    from marless.cost.comparison.courses import chance

    inches = _inches(size)
    choices = _Choices(
        group=group,
        x=x,
        y=y,
        returns=returns,
        center=center,
        band=band,
        accounting=_accounting(accounting),
        smooth=smooth,
    )
    drawable = _drawable(to or Path("curves.png"), needed=csv_ is None or to is not None)
    found = _found(jobs, at)
    with Working("computing lines"):
        groups = _labelled(_groups(found, choices), label)
    target = to or Path("curves.png" if len(found) > 1 else f"{found[0].job}.png")
    if csv_ and csv_.resolve() == target.resolve():
        raise SpecError(f"--csv {csv_} is the file of the picture, too; choose another")
    _say_seeds(groups, choices)
    _say_running(groups, found)
    if csv_:
        _write_csv(groups, choices.x, csv_)
        data(str(csv_))
    if not drawable:
        return
    exploring = all(each.returns is Returns.exploring for each in groups)
    own = _Y_LABELS[y, Returns.exploring if exploring else Returns.greedy]
    look = Look(title=title, x_label=x, y_label=y_label or own, inches=inches)
    with Working("drawing"):
        random = chance([(each.spec, each.random) for each in found], y)
        picture.draw_groups(groups, random, target, look)
    data(str(target))


def _inches(size: str) -> tuple[float, float]:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)", size)
    if not found or not all(1 <= float(each) <= 100 for each in found.groups()):
        raise SpecError(f"--size {size!r}: write width and height in inches, 1 to 100, as in {_DEFAULT_SIZE}")
    return float(found[1]), float(found[2])


def _accounting(name: str) -> Accounting:
    from marless.jobs.prices import ACCOUNTINGS

    if (found := next((each for each in ACCOUNTINGS if each == name), None)) is None:
        raise SpecError(f"--accounting: {unknown_name('accounting', name, ACCOUNTINGS)}")
    return found


def _drawable(target: Path, *, needed: bool) -> bool:
    """True if pictures can be drawn; where only the CSV was asked for by name, it is said that they cannot."""
    from marless.app.cli import picture

    try:
        picture.check(target)
    except UnavailableError as error:
        if needed:
            raise
        say(f"not drawn: {error}")
        return False
    return True


def _found(sources: Sequence[str], at: CoordinatorOptions) -> list[Recorded]:
    """The jobs of all sources, each once; of a folder of run folders, those that have a recorded round."""
    found: list[Recorded] = []
    with Working("reading", "jobs") as working:
        # A run folder that is named twice, as an id and as a path, is one run.
        named = {_place(one, at): (one, one != source) for source in sources for one in _jobs_of(source, at)}
        for done, (source, inside) in enumerate(named.values()):
            working.told(done, len(named), source)
            recorded = find(source, at)
            if recorded.records or not inside:
                found.append(recorded)
    if empty := [each.job for each in found if not each.records]:
        raise SpecError(f"{', '.join(empty)}: no round has been recorded yet: there is nothing to draw")
    if not found:
        raise SpecError(f"{', '.join(sources)}: no round has been recorded yet: there is nothing to draw")
    return found


def _place(source: str, at: CoordinatorOptions) -> str:
    """The path of the run folder that `find` reads for a source; the source itself if it lies elsewhere."""
    if is_address(source):
        return source
    folders = (Path(source),) if at.coordinator else (Path(source), at.runs / source)
    return next((str(each.resolve()) for each in folders if regular_files.is_there(each / "job.json")), source)


def _jobs_of(source: str, at: CoordinatorOptions) -> list[str]:
    """The source itself, or the run folders in the folder that it names (those of a comparison lie in its `runs`)."""
    if is_address(source):
        return [source]
    for folder in (Path(source), at.runs / source):
        if regular_files.is_there(folder / "job.json"):
            return [source]
        inside = [path.parent for pattern in ("*/job.json", "runs/*/job.json") for path in folder.glob(pattern)]
        if inside:
            return [str(each) for each in sorted(inside)]
    return [source]


def _groups(found: Sequence[Recorded], choices: _Choices) -> list[RunGroup]:
    from marless.cost.comparison import courses
    from marless.cost.comparison.grouping import differing, grouped

    groups = []
    for name, members in grouped([(each.job, each.spec) for each in found], choices.group).items():
        own = _courses([found[index] for index in members], choices, choices.returns)
        if len({each.returns for each in own}) > 1:  # one of them has too few evaluations
            own = _courses([found[index] for index in members], choices, Returns.exploring)
        line = courses.line(own, choices.center, choices.band)
        apart = differing([found[index].spec for index in members], billed=choices.x is Over.usd)
        groups.append(courses.RunGroup(label=name, courses=tuple(own), line=line, differing=tuple(apart)))
    return groups


def _courses(jobs: Sequence[Recorded], choices: _Choices, returns: Returns) -> list[Course]:
    from marless.cost.comparison import courses

    return [
        courses.smoothed(
            courses.course(
                each.job,
                each.spec,
                each.records,
                axis=choices.x,
                quantity=choices.y,
                returns=returns,
                accounting=choices.accounting,
            ),
            choices.smooth,
        )
        for each in jobs
    ]


def _labelled(groups: Sequence[RunGroup], labels: Sequence[str]) -> list[RunGroup]:
    """The groups under the labels that the user gave them."""
    names = [group.label for group in groups]
    new = {name: text[len(name) + 1 :] for text in labels for name in names if text.startswith(f"{name}=")}
    if len(new) != len(labels):
        if new or len(labels) != len(groups):
            raise SpecError(
                f"--label: write NAME=TEXT, or a TEXT for each of the {len(groups)} lines; they are called: "
                f"{', '.join(names)}"
            )
        new = dict(zip(names, labels, strict=True))
    if hidden := [text for text in new.values() if not text or text.startswith("_")]:
        raise SpecError(f"--label: {hidden[0]!r} is no text of a legend; begin with a character other than _")
    found = [replace(group, label=new.get(group.label, group.label)) for group in groups]
    if twice := [text for text, often in Counter(group.label for group in found).items() if often > 1]:
        raise SpecError(f"--label: several lines would be called {twice[0]!r}; give each a label of its own")
    return found


def _say_seeds(groups: Sequence[RunGroup], choices: _Choices) -> None:
    """Say what lines and bands are, as a caption would, and which runs are no independent seeds."""
    from marless.cost.comparison.courses import FEW

    sizes = {len(group.courses) for group in groups} - {1}
    if not sizes:
        return
    center = Center.mean if choices.center is Center.iqm and max(sizes) < FEW else choices.center
    fewer = f", of fewer than {FEW} the mean" if center is Center.iqm and min(sizes) < FEW else ""
    say(f"lines: {_CENTERS[center]} of the seeds{fewer}; bands: {_BANDS[choices.band]}")
    for group in groups:
        seeds = [each.seed for each in group.courses]
        if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            said = ", ".join(map(str, twice))
            say(f"note: {group.label} has several runs of seed {said}, which are not independent; see --group")
        if group.differing:
            more = f" and {len(group.differing) - _MOST_TOLD} more" if len(group.differing) > _MOST_TOLD else ""
            told = ", ".join(group.differing[:_MOST_TOLD])
            say(f"note: {group.label} joins jobs that differ in {told}{more}, not in the seed alone; see --group")


def _say_running(groups: Sequence[RunGroup], found: Sequence[Recorded]) -> None:
    """Say which lines of several seeds are as short as they are because a job has not ended."""
    unfinished = {each.job for each in found if each.state not in ENDED}
    for group in groups:
        running = [each.run for each in group.courses if each.run in unfinished]
        if running and len(group.courses) > 1:
            verb = "has" if len(running) == 1 else "have"
            say(f"note: {', '.join(running)} {verb} not ended: the line of {group.label} ends with its shortest run")


def _write_csv(groups: Sequence[RunGroup], axis: Over, target: Path) -> None:
    from marless.cost.comparison.courses import COLUMNS, table

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *table(groups, axis)])
    except OSError as error:
        raise UnavailableError(f"{target}: cannot be written ({error.strerror}); choose another file") from None
