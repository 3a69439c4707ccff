"""The command `compare`: variants of one job, each run with several seeds, in one table with confidence intervals.

Variants are presets of scaling and sharing, or values of any settings, as in a sweep.

Runs are made one after another, here, each on a stack of its own, or on a coordinator. Finished ones are not repeated,
and interrupted ones are resumed.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from marless.app.cli import exits
from marless.app.cli.options import (
    CoordinatorOptions,
    JobFileArgument,
    Output,
    OutputOption,
    OverrideOption,
    positive,
    preset_names,
)
from marless.app.cli.output import console, data, say, show_object
from marless.app.cli.recorded import Recorded, from_folder
from marless.app.cli.working import Working
from marless.core import documents, regular_files
from marless.core.errors import JobStateError, MarlessError, NotFoundError, SpecError, UnavailableError

if TYPE_CHECKING:
    from marless.app.cli.train import Show
    from marless.app.client import Client
    from marless.cost.comparison.runs import Run, Variant
    from marless.cost.comparison.table import Comparison
    from marless.jobs.spec import JobSpec
    from marless.learning.policies.evaluation import Side

ALL = "vanilla,marless-minus,no-scaling,no-sharing,marless"
_KEPT, _PICTURE, _PROFILE = "comparison.json", "comparison.png", "profile.png"


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The parsed arguments: what to compare, and where to store it."""

    job: JobSpec
    variants: tuple[Variant, ...]
    seeds: int
    slots: int
    folder: Path
    document: Path | None
    command: str
    """The command line, for documents."""


PresetsOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help=f"Presets, of marless or of a file as FILE.yaml:NAME; default: {ALL}.",
        autocompletion=preset_names,
    ),
]


def compare(  # noqa: PLR0913, PLR0917  # a command has as many parameters as options
    at: CoordinatorOptions,
    job_file: JobFileArgument,
    presets: PresetsOption = None,
    sweep: Annotated[
        list[str],
        typer.Option(metavar="A.B=C,D", help="Compare these values instead; repeated: each combination of them."),
    ] = [],  # noqa: B006  # typer's way
    seeds: Annotated[
        int,
        typer.Option(parser=positive, metavar="N", help="Runs per variant: the job's seed and the next ones."),
    ] = 5,
    rounds: Annotated[
        int | None, typer.Option(parser=positive, metavar="N", help="Short for --set stop.rounds=N.")
    ] = None,
    override: OverrideOption = [],  # noqa: B006  # typer's way
    slots: Annotated[int, typer.Option(parser=positive, metavar="N", help="vCPUs of the modelled cluster.")] = 64,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For runs, table and picture; default: <runs>/compare-<job>.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue in --out; finished runs are not repeated.")
    ] = False,
    document: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Write the table into the block with the job's name.")
    ] = None,
    output: OutputOption = Output.table,
) -> None:
    """Run a job with several presets, or algorithms and other settings, and seeds; compare return, cost and time.

    Variants are paired by seed; intervals are 95 %. Runs that train identically are made once. Each runs here, one
    after the other; with --coordinator, that one runs them. `marless plot` draws their folder's curves.
    """
    overrides = [*override, *([f"stop.rounds={rounds}"] if rounds else [])]
    if sweep and presets is not None:
        raise SpecError("--presets and --sweep exclude each other: give a preset's sections with --set")
    variants = _swept(job_file, overrides, sweep) if sweep else _presets(job_file, overrides, presets or ALL)
    chosen = [word for each in sweep for word in ("--sweep", each)] or ["--presets", presets or ALL]
    job = variants[0].spec
    asked = _Asked(
        job=job,
        variants=variants,
        seeds=seeds,
        slots=slots,
        folder=out or at.runs / f"compare-{job.name}",
        document=document,
        command=_command(job_file, chosen, seeds, slots, overrides),
    )
    with Working("checking the runs"):
        runs = _planned(asked, at)
    if not resume and asked.folder.exists() and any(asked.folder.iterdir()):
        raise SpecError(f"{asked.folder} is not empty; continue it with --resume, or choose another --out")
    _make(asked, runs, at)
    with Working("comparing"):
        comparison = _compared(asked, runs)
    _report(asked, comparison, output)


def _presets(job_file: Path, overrides: Sequence[str], names: str) -> tuple[Variant, ...]:
    from marless.cost.comparison.runs import preset_variants
    from marless.jobs import presets as ways
    from marless.jobs import spec as specs

    return preset_variants(specs.load(job_file, overrides), ways.presets(names))


def _swept(job_file: Path, overrides: Sequence[str], sweep: Sequence[str]) -> tuple[Variant, ...]:
    """A variant for each combination of the values of a sweep; raises SpecError with the errors of all."""
    from marless.app.cli import sweep as sweeps
    from marless.cost.comparison.runs import Variant
    from marless.jobs import spec as specs
    from marless.jobs.presets import own_settings

    axes = sweeps.axes(sweep)
    if any(axis.field == "seed" for axis in axes):
        raise SpecError("--sweep seed=…: every variant is run with the same seeds; say with --seeds how many")
    if any(axis.field in ("env", "env.name") for axis in axes):
        raise SpecError(
            "--sweep env.name=…: returns of different environments cannot be compared; make a comparison of each"
        )
    source = documents.name_of(job_file)
    found = sweeps.settings(specs.job_document(job_file), source, overrides=overrides, sweep=axes)
    return tuple(
        Variant(
            name=each.told,
            label=each.label,
            counts=each.spec.bill.accounting,
            settings=own_settings(each.spec),
            spec=each.spec,
        )
        for each in found
    )


def _command(job_file: Path, variants: Sequence[str], seeds: int, slots: int, overrides: Sequence[str]) -> str:
    """The command line that repeats the comparison, without directories of this machine."""
    file = job_file.name if job_file.is_absolute() else str(job_file)
    chosen = [word for override in overrides for word in ("--set", override)]
    words = ["marless", "compare", file, *variants, "--seeds", str(seeds), "--slots", str(slots), *chosen]
    return shlex.join(words)


def _planned(asked: _Asked, at: CoordinatorOptions) -> tuple[Run, ...]:
    """The runs to make; everything is validated before the first run begins."""
    from marless.cost.comparison import report
    from marless.cost.comparison.runs import planned_runs
    from marless.jobs.examining import examined
    from marless.jobs.job import advice, prepare
    from marless.jobs.sinks.base import check_sinks

    # Sinks run where the coordinator does, whose packages and variables nobody knows here.
    if not at.coordinator:
        check_sinks(*asked.job.sinks)
    if asked.document:
        report.check_document(asked.document, asked.job.name)
    notes: dict[str, None] = {}
    for variant in asked.variants:
        try:
            notes[advice(prepare(variant.spec, examined))] = None
        except SpecError as error:
            raise SpecError(f"variant {variant.name}: {error}") from None
    for note in filter(None, notes):
        say(f"note: {note}")
    return planned_runs(asked.job, asked.variants, asked.seeds)


def _make(asked: _Asked, runs: Sequence[Run], at: CoordinatorOptions) -> None:
    """Make all runs that are not finished yet; if interrupted, print how to continue."""
    import asyncio

    place = ComparisonFolder((asked.folder / "runs").resolve())
    continues = f"the same command with --resume --out {asked.folder} continues"
    missing = [run for run in runs if not place.finished(run)]
    if len(missing) < len(runs):
        say(f"{len(runs) - len(missing)} of {len(runs)} runs exist already")
    try:
        with ExitStack() as held:
            client = held.enter_context(at.client()) if at.coordinator and missing else None
            if client:
                say("note: runs share this coordinator's workers: the first run is charged for their start")
            for run in missing:
                number = f"{runs.index(run) + 1} of {len(runs)}"
                if client:
                    place.make_there(run, number, client)
                else:
                    place.make_here(run, number)
    except (InterruptedRunError, KeyboardInterrupt, asyncio.CancelledError) as interrupt:  # the last: Ctrl-C twice
        say(f"{str(interrupt) or 'interrupted'}; {continues}")
        raise typer.Exit(exits.ExitCode.INTERRUPTED) from None
    except SpecError:
        raise
    except JobStateError as error:
        raise JobStateError(f"{error}; {continues}") from None
    except UnavailableError as error:
        raise UnavailableError(f"{error}; {continues}") from None


def _compared(asked: _Asked, runs: Sequence[Run]) -> Comparison:
    from marless.cost.comparison import table
    from marless.cost.comparison.runs import figures
    from marless.learning.envs import registry
    from marless.learning.policies.evaluation import against_chance, competitive
    from marless.storage.saved_policies import load_policy

    # In a competitive job, each side is evaluated against random opponents, too.
    compete = competitive(registry.spaces(asked.job.env.name, asked.job.env.arguments))
    sides: Mapping[str, Side] = {}
    place = ComparisonFolder((asked.folder / "runs").resolve())
    specs = {variant.name: variant.spec for variant in asked.variants}
    found = []
    for run in runs:
        recorded = place.read(run)
        if compete:
            team, episodes = load_policy(place.runs / run.id), run.spec.evaluation.episodes
            sides = against_chance(team, episodes=episodes, seed=run.seed)
        for name in run.variants:
            spec = specs[name].model_copy(update={"seed": run.seed})
            found.append(figures(recorded.records, spec, recorded.random, variant=name, slots=asked.slots, sides=sides))
    return table.compared(asked.job.name, asked.slots, asked.variants, found)


def _report(asked: _Asked, comparison: Comparison, output: Output) -> None:
    from marless.app.cli.picture import draw_comparison, draw_profiles
    from marless.cost.comparison import report, table

    said = report.statements(comparison)
    fields = table.to_json(comparison, said) | {"command": asked.command}
    (asked.folder / _KEPT).write_text(json.dumps(fields), encoding="utf-8")
    try:
        draw_comparison(comparison, asked.folder / _PICTURE)
        draw_profiles(comparison, asked.folder / _PROFILE)
    except MarlessError as error:  # it is only said, because the table is the result that matters
        say(f"not drawn: {error}")
    if asked.document:
        picture = Path("images", f"compare-{asked.job.name}.png")
        if (asked.folder / _PICTURE).exists():  # else drawing failed, which has been said
            target = asked.document.parent / picture
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(asked.folder / _PICTURE, target)
            except OSError as error:
                raise UnavailableError(f"{target}: cannot be written ({error.strerror})") from None
        block = report.block(comparison, said, command=asked.command, picture=picture.as_posix())
        report.write_block(asked.document, asked.job.name, block)
        say(f"written: {asked.document}")
    if output is Output.table:
        _show(comparison, said)
    else:
        show_object(fields, asked.job.name, output)
    say(f"runs, {_KEPT}, {_PICTURE} and {_PROFILE} are in {asked.folder}")


def _show(comparison: Comparison, statements: Sequence[str]) -> None:
    from rich.table import Table

    from marless.cost.comparison.table import rows

    header, *body = rows(comparison)
    shown = Table(box=None, pad_edge=False)
    shown.add_column(header[0])
    for name in header[1:]:
        shown.add_column(name, justify="right")
    for row in body:
        shown.add_row(*row)
    console().print(shown)
    for statement in statements:
        data(f"- {statement}")


Result = TypeVar("Result")


class InterruptedRunError(JobStateError):
    """The run was interrupted by Ctrl-C."""


@dataclass(frozen=True)
class ComparisonFolder:
    """The directory with the run folders of a comparison."""

    runs: Path

    def finished(self, run: Run) -> bool:
        """True if the run has succeeded; raises SpecError if another job has its id."""
        found = self._found(run, records=False)
        return found is not None and found.state == "SUCCEEDED"

    def read(self, run: Run) -> Recorded:
        """Read a finished run with its records; raises NotFoundError if it no longer exists."""
        found = self._found(run, records=True)
        if found is None:
            raise NotFoundError(f"{self.runs / run.id} no longer exists; --resume repeats that run")
        return found

    def _found(self, run: Run, *, records: bool) -> Recorded | None:
        folder = self.runs / run.id
        if not regular_files.is_there(folder / "job.json"):
            return None
        found = from_folder(folder, records=records)
        check_same(run, found.spec, str(folder))
        return found

    def make_here(self, run: Run, number: str) -> None:
        """Make a run on this machine, on a stack of its own, so that all runs have the same cold starts."""
        from marless.app.cli import train

        folder = self.runs / run.id
        known = regular_files.is_there(folder / "job.json")
        if folder.exists() and not known:
            shutil.rmtree(folder)  # it was interrupted before the job existed
        if known:
            outcome = _shown(run, number, lambda show: train.resume(run.id, runs=self.runs, stop=None, show=show))
        else:
            outcome = _shown(run, number, lambda show: train.train(run.spec, job_id=run.id, runs=self.runs, show=show))
        if outcome.interrupted:
            raise InterruptedRunError(f"interrupted in run {run.id}")
        if outcome.job.state != "SUCCEEDED":
            raise JobStateError(f"run {run.id} ended {outcome.job.state}: {outcome.job.reason}")

    def make_there(self, run: Run, number: str, client: Client) -> None:
        """Make a run on a coordinator, and download its run folder."""
        from marless.jobs import spec as specs

        try:
            known = client.get(run.id)
        except NotFoundError:
            known = client.submit(run.spec, job=run.id)
        else:
            document = documents.yaml_of(client.read(run.id, "spec.yaml").decode(), f"job {run.id}")
            check_same(run, specs.parse(document, f"job {run.id}"), f"the coordinator's job {run.id}")
            if known.state.ended and known.state != "SUCCEEDED":
                known = client.resume(run.id)
        if not known.state.ended:
            _shown(run, number, lambda show: _follow(client, run.id, show))
            known = client.get(run.id)
        if known.state != "SUCCEEDED":
            raise JobStateError(f"run {run.id} ended {known.state}: {known.reason}")
        client.download(run.id, self.runs / run.id)


def check_same(run: Run, found: JobSpec, where: str) -> None:
    """Raise SpecError, naming the sections, if `found` does not train identically to the run's spec."""
    from marless.jobs.presets import training_key

    wanted, there = (json.loads(training_key(spec)) for spec in (run.spec, found))
    differing = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
    if differing:
        raise SpecError(
            f"{where} was run with other settings ({', '.join(differing)}); choose another --out, "
            "or another name for the job"
        )


def _shown(run: Run, number: str, action: Callable[[Show], Result]) -> Result:
    from marless.app.cli.progress import TrainingProgress
    from marless.app.cli.train import Show

    say(f"run {number}: {run.id} for {', '.join(run.variants)}")
    with TrainingProgress(console(stderr=True), run.id, run.spec.stop, "starting four services …") as shown:
        return action(Show(record=shown.show, past=shown.look_back, trouble=shown.note, doing=shown.doing))


def _follow(client: Client, job: str, show: Show) -> None:
    for event in client.watch(job):
        if event.record:
            show.record(event.record)
        elif event.job and not event.job.state.ended:
            show.doing(event.job.reason)
