"""The results of the command `frontier`: its finished runs as one frontier, as table, picture, JSON and document."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from marless.app.cli.comparison_folder import ComparisonFolder
from marless.app.cli.options import Output
from marless.app.cli.output import data, say, show_object, show_table
from marless.core.errors import CorruptError, MarlessError, UnavailableError

if TYPE_CHECKING:
    from marless.cost.comparison.runs import Run, Variant
    from marless.cost.frontier.contenders import SeedRun, StaticSetting
    from marless.cost.frontier.table import Frontier
    from marless.jobs.spec import JobSpec

_KEPT, _PICTURE = "frontier.json", "frontier.png"


@dataclass(frozen=True, kw_only=True)
class FrontierRequest:
    """The parsed arguments: what to train, and where to store it."""

    job: JobSpec
    """With the env steps of every run as its only stop rule."""
    static: Mapping[str, StaticSetting]
    variants: tuple[Variant, ...]
    """Static settings, then presets."""
    seeds: int
    slots: int
    goal: float | None
    folder: Path
    document: Path | None
    command: str
    """The command line, for documents."""
    services: bool
    processes: int

    @property
    def place(self) -> ComparisonFolder:
        """The directory of the run folders."""
        return ComparisonFolder((self.folder / "runs").resolve())


def results(
    asked: FrontierRequest, runs: Sequence[Run], failed: Mapping[str, str], told: Callable[[float, float, str], None]
) -> Frontier:
    """The frontier of all finished runs; `told` hears how many have been read.

    Raises SpecError if no goal follows from them.
    """
    from marless.cost.frontier.contenders import Contender, Goal, goal_of
    from marless.cost.frontier.table import Frontier

    known: dict[str, SeedRun] = {}
    for done, run in enumerate(each for each in runs if each.id not in failed):
        told(done, len(runs), run.id)
        known[run.id] = _seed_run(asked, run)

    def contender(variant: Variant) -> Contender:
        own = [run for run in runs if variant.name in run.variants]
        return Contender(
            name=variant.name,
            about=variant.about,
            static=asked.static.get(variant.name),
            runs=tuple(known[run.id] for run in own if run.id in known),
            failed=tuple(run.id for run in own if run.id not in known),
        )

    contenders = tuple(map(contender, asked.variants))
    goal = goal_of(contenders) if asked.goal is None else Goal(value=asked.goal)
    return Frontier(
        job=asked.job.name,
        env_steps=asked.job.stop.env_steps or 0,
        seeds=tuple(dict.fromkeys(run.seed for run in runs)),
        slots=asked.slots,
        time=asked.job.bill.time,
        goal=goal,
        contenders=contenders,
    )


def _seed_run(asked: FrontierRequest, run: Run) -> SeedRun:
    """A finished run, billed by its settings; raises CorruptError if its records are incomplete."""
    from marless.cost.frontier.contenders import SeedRun
    from marless.cost.frontier.progress import progress
    from marless.jobs import prices
    from marless.jobs.usage import waiting

    recorded = asked.place.read(run)
    last = recorded.records[-1] if recorded.records else None
    if last is None or last.newest_evaluation is None or recorded.random is None:
        raise CorruptError(f"run {run.id} has no final evaluation; remove its folder, and --resume makes it again")
    return SeedRun(
        run=run.id,
        seed=run.seed,
        progress=progress(
            recorded.records,
            run.spec,
            prices.merged(run.spec.bill.prices),
            slots=asked.slots,
            env_steps=asked.job.stop.env_steps or 0,
            machines=any(name in asked.static for name in run.variants),
        ),
        random=recorded.random.mean,
        greedy=last.newest_evaluation.mean,
        actors=fmean(record.actors for record in recorded.records),
        waiting=waiting(recorded.records),
    )


def report_results(asked: FrontierRequest, found: Frontier, output: Output) -> None:
    """Write the frontier and its picture into its folder and the document, and print it."""
    from marless.app.cli.frontier_picture import draw_frontier
    from marless.cost.comparison import report
    from marless.cost.frontier import table, words

    said = words.statements(found, in_process=not asked.services)
    fields = table.to_json(found, said) | {"command": asked.command}
    (asked.folder / _KEPT).write_text(json.dumps(fields), encoding="utf-8")
    try:
        draw_frontier(found, asked.folder / _PICTURE)
    except MarlessError as error:  # it is only said, because the table is the result that matters
        say(f"not drawn: {error}")
    if asked.document:
        picture = Path("images", f"frontier-{asked.job.name}.png")
        if (asked.folder / _PICTURE).exists():  # else drawing failed, which has been said
            _copy(asked.folder / _PICTURE, asked.document.parent / picture)
        block = words.block(found, said, command=asked.command, picture=picture.as_posix())
        report.write_block(asked.document, f"{asked.job.name}-frontier", block)
        say(f"written: {asked.document}")
    if output is Output.table:
        from marless.cost.frontier.table import rows

        show_table(rows(found))
        for statement in said:
            data(f"- {statement}")
    else:
        show_object(fields, asked.job.name, output)
    say(f"runs, {_KEPT} and {_PICTURE} are in {asked.folder}")


def _copy(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError as error:
        raise UnavailableError(f"{target}: cannot be written ({error.strerror})") from None
