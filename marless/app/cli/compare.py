"""The command `compare`: variants of one job, each run with several seeds, in one table with confidence intervals.

Variants are presets of scaling and sharing, or values of any settings, as in a sweep.

Runs are made one after another, here, each on a stack of its own, or on a coordinator. Finished ones are not repeated,
and interrupted ones are resumed.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marless.app.cli.comparison_folder import ComparisonFolder
from marless.app.cli.options import (
    CoordinatorOptions,
    JobFileArgument,
    Output,
    OutputOption,
    OverrideOption,
    positive,
    preset_names,
)
from marless.app.cli.output import data, say, show_object, show_table
from marless.app.cli.working import Working
from marless.core import documents
from marless.core.errors import MarlessError, SpecError, UnavailableError

if TYPE_CHECKING:
    from marless.cost.comparison.controls import Control
    from marless.cost.comparison.runs import Figures, Run, Variant
    from marless.cost.comparison.table import Comparison
    from marless.jobs.spec import JobSpec
    from marless.learning.policies.evaluation import Side

ALL = "vanilla,marless-minus,no-scaling,no-sharing,marless"
_CONTROLS = "controls"
"""The folder of the run folders of controls; `marless plot` draws those in `runs`."""
MARGIN = 0.05
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
    controls: bool
    """Also make runs of controls."""
    margin: float
    """See `Comparison.margin`."""
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
SeedsOption = Annotated[
    int, typer.Option(parser=positive, metavar="N", help="Runs per variant: the job's seed and the next ones.")
]
MarginOption = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1.0,
        metavar="FRACTION",
        help="Returns count as equal up to this fraction of what the reference learned; choose it beforehand.",
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
    seeds: SeedsOption = 5,
    rounds: Annotated[
        int | None, typer.Option(parser=positive, metavar="N", help="Short for --set stop.rounds=N.")
    ] = None,
    override: OverrideOption = [],  # noqa: B006  # typer's way
    slots: Annotated[int, typer.Option(parser=positive, metavar="N", help="vCPUs of the modelled cluster.")] = 64,
    margin: MarginOption = MARGIN,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="For runs, table and picture; default: <runs>/compare-<job>.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue in --out; finished runs are not repeated.")
    ] = False,
    controls: Annotated[
        bool, typer.Option("--controls/--no-controls", help="Then also run controls of the variants that decide.")
    ] = True,
    document: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Write the table into the block with the job's name.")
    ] = None,
    output: OutputOption = Output.table,
) -> None:
    """Run a job with several presets, or algorithms and other settings, and seeds; compare return, cost and time.

    Variants are paired by seed; intervals are 95 %. Runs that train identically are made once. Each runs here, one
    after the other; with --coordinator, that one runs them. `marless plot` draws their folder's curves. Controls have
    a variant's mean number of actors, its numbers shuffled, its final groups, or random numbers for its measurements.
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
        controls=controls,
        command=_command(job_file, chosen, seeds, slots, overrides, margin) + ("" if controls else " --no-controls"),
        margin=margin,
    )
    with Working("checking the runs"):
        runs = _planned(asked, at)
    if not resume and asked.folder.exists() and any(asked.folder.iterdir()):
        raise SpecError(f"{asked.folder} is not empty; continue it with --resume, or choose another --out")
    _say_how_many(asked, runs)
    comparison = _made(asked, runs, at)
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


def _command(
    job_file: Path, variants: Sequence[str], seeds: int, slots: int, overrides: Sequence[str], margin: float
) -> str:
    """The command line that repeats the comparison, without directories of this machine."""
    file = job_file.name if job_file.is_absolute() else str(job_file)
    chosen = [word for override in overrides for word in ("--set", override)]
    chosen += [] if margin == MARGIN else ["--margin", f"{margin:g}"]
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


def _say_how_many(asked: _Asked, runs: Sequence[Run]) -> None:
    """Say how many runs there will be with controls, before the first one begins; nothing without controls."""
    from marless.cost.comparison.controls import expected_runs

    expected = expected_runs(asked.variants, asked.seeds) if asked.controls else {}
    if expected:
        say(
            f"{len(runs)} runs, then up to {sum(expected.values())} of controls of {', '.join(expected)}; "
            "--no-controls leaves these out"
        )


def _planned_controls(asked: _Asked, place: ComparisonFolder, runs: Sequence[Run]) -> tuple[Control, ...]:
    """The controls of all variants that decide, by their finished runs; says which cannot be had."""
    from marless.cost.comparison.controls import Control, controls, kinds_of
    from marless.jobs.examining import examined
    from marless.jobs.job import prepare

    seen = cache(lambda name, options: examined(name, json.loads(options)))
    found: list[Control] = []
    for variant in asked.variants:
        if not kinds_of(variant.spec):
            continue
        own = [run for run in runs if variant.name in run.variants]
        records = {run.seed: place.read(run).records for run in own}
        label = own[0].id.removeprefix(f"{asked.job.name}-").removesuffix(f"-seed{own[0].seed}")
        for each in controls(
            variant,
            records,
            label=label,
            check=lambda spec: prepare(spec, lambda name, options: seen(name, json.dumps(options))),
        ):
            if isinstance(each, Control):
                found.append(each)
            else:
                say(f"note: {each}")
    return tuple(found)


def _made(asked: _Asked, runs: Sequence[Run], at: CoordinatorOptions) -> Comparison:
    """Make the runs, then those of controls, which depend on what was decided; compare all."""
    from marless.cost.comparison import table
    from marless.cost.comparison.controls import control_runs

    continues = f"the same command with --resume --out {asked.folder} continues"
    place, place_of_controls = (ComparisonFolder((asked.folder / name).resolve()) for name in ("runs", _CONTROLS))
    place.make_missing(runs, at, continues=continues)
    planned = _planned_controls(asked, place, runs) if asked.controls else ()
    more = control_runs(asked.job, planned)
    continues += ", and --no-controls leaves controls out"
    place_of_controls.make_missing(more, at, continues=continues, what="control run")
    with Working("comparing"):
        found = [*_figures(asked, place, runs, ()), *_figures(asked, place_of_controls, more, planned)]
        return table.compared(asked.job.name, asked.slots, asked.variants, found, planned, asked.margin)


def _figures(
    asked: _Asked, place: ComparisonFolder, runs: Sequence[Run], planned: Sequence[Control]
) -> Iterator[Figures]:
    """The results of all runs, once for each variant or control that shares a run."""
    from marless.cost.comparison.runs import figures
    from marless.learning.envs import registry
    from marless.learning.policies.evaluation import against_chance, competitive
    from marless.storage.saved_policies import load_policy

    # In a competitive job, each side is evaluated against random opponents, too.
    compete = competitive(registry.spaces(asked.job.env.name, asked.job.env.arguments))
    sides: Mapping[str, Side] = {}
    bills = {each.name: each.spec.bill for each in asked.variants} | {each.name: each.spec.bill for each in planned}
    for run in runs:
        recorded = place.read(run)
        if compete:
            team, episodes = load_policy(place.runs / run.id), run.spec.evaluation.episodes
            sides = against_chance(team, episodes=episodes, seed=run.seed)
        for name in run.variants:
            # The run's own settings, billed as this variant is.
            spec = run.spec.model_copy(update={"bill": bills[name]})
            yield figures(recorded.records, spec, recorded.random, variant=name, slots=asked.slots, sides=sides)


def _report(asked: _Asked, comparison: Comparison, output: Output) -> None:
    from marless.app.cli.picture import draw_comparison, draw_profiles
    from marless.cost.comparison import report, table, verdicts

    said = report.statements(comparison)
    fields = table.to_json(comparison, said)
    fields |= {"verdicts": verdicts.verdicts_to_json(comparison), "command": asked.command}
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
    from marless.cost.comparison.table import rows
    from marless.cost.comparison.verdicts import control_rows, verdicts

    show_table(rows(comparison))
    for verdict in verdicts(comparison):
        data("")
        show_table(control_rows(verdict))
    for statement in statements:
        data(f"- {statement}")
