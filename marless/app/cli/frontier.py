"""The command `frontier`: static settings of one job and presets, trained with equal env steps, as cost against return.

Runs are made here, in processes of their own or on services. Finished ones are not repeated, and those that fail are
named while the others go on.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marless.app.cli import exits
from marless.app.cli.comparison_folder import InterruptedRunError
from marless.app.cli.frontier_results import FrontierRequest, report_results, results
from marless.app.cli.options import (
    RUNS,
    JobFileArgument,
    Output,
    OutputOption,
    OverrideOption,
    RunsOption,
    positive,
    preset_names,
    whole,
)
from marless.app.cli.output import say
from marless.app.cli.working import Working
from marless.core.errors import JobStateError, SpecError, UnavailableError

if TYPE_CHECKING:
    from marless.cost.comparison.runs import Run, Variant
    from marless.cost.frontier.contenders import StaticSetting
    from marless.jobs.spec import JobSpec

_PRESETS = ("marless", "marless-frugal", "auto")


ActorsOption = Annotated[
    str | None, typer.Option(metavar="N,N,…", help="Numbers of actors; default: 1, 4, 16, … up to the job's.")
]
GroupsOption = Annotated[str, typer.Option(metavar="A,B", help="Groups: independent, shared.")]
SchedulesOption = Annotated[str, typer.Option(metavar="A,B,…", help="Schedules.")]
PresetsOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…",
        help="Presets, of marless or of a file as FILE.yaml:NAME; '': none. Default: marless, marless-frugal, auto.",
        autocompletion=preset_names,
    ),
]
ServicesOption = Annotated[
    bool, typer.Option("--services", help="Make runs on four services, one after another, so that starts are billed.")
]


SeedsOption = Annotated[
    int, typer.Option(parser=positive, metavar="N", help="Runs of each: the job's seed and the next ones.")
]
GoalOption = Annotated[
    float | None,
    typer.Option(metavar="RETURN", help="The goal; default: 0.9 of the way from random play to the best setting."),
]
SlotsOption = Annotated[int, typer.Option(parser=positive, metavar="N", help="vCPUs of the modelled cluster.")]
OutOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="For runs, table and picture; default: <runs>/frontier-<job>.")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue in --out; finished runs are not repeated.")]
DocumentOption = Annotated[
    Path | None, typer.Option(metavar="FILE.md", help="Write the table into the block <job>-frontier.")
]


def frontier(  # noqa: PLR0913, PLR0917  # a command has as many parameters as options
    job_file: JobFileArgument,
    actors: ActorsOption = None,
    groups: GroupsOption = "independent,shared",
    schedules: SchedulesOption = "synchronous,pipelined",
    presets: PresetsOption = None,
    seeds: SeedsOption = 5,
    to: GoalOption = None,
    override: OverrideOption = [],  # noqa: B006  # typer's way
    slots: SlotsOption = 64,
    processes: Annotated[int, typer.Option(parser=positive, metavar="N", help="Runs at a time.")] = 1,
    services: ServicesOption = False,
    runs: RunsOption = RUNS,
    out: OutOption = None,
    resume: ResumeOption = False,
    document: DocumentOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Train a job with a grid of static settings and with presets, and show what reaching a return costs and takes.

    The grid is actors × groups × schedules. All runs have equal env steps. Each is made in a process of its own,
    without services unless --services is given. The regret of a preset is its cost over that of the cheapest static
    setting that is as fast, with functions, or on a machine of one's own of any size.
    """
    if services and processes > 1:
        raise SpecError("--processes: runs on services are made one after another; leave it out")
    chosen = _chosen_presets(presets)
    job, static, variants = _grid(job_file, override, actors, groups, schedules, chosen)
    counts = ",".join(str(count) for count in dict.fromkeys(each.actors for each in static))
    options = {"--actors": counts, "--groups": groups, "--schedules": schedules, "--presets": chosen}
    options |= {"--seeds": str(seeds), "--slots": str(slots)} | ({} if to is None else {"--to": f"{to:g}"})
    asked = FrontierRequest(
        job=job,
        static={each.name: each for each in static},
        variants=variants,
        seeds=seeds,
        slots=slots,
        goal=to,
        folder=out or runs / f"frontier-{job.name}",
        document=document,
        command=_command(job_file, options, override, services=services),
        services=services,
        processes=processes,
    )
    _run(asked, output, resume=resume)


def _grid(  # as many as options say what to train
    job_file: Path, overrides: Sequence[str], actors: str | None, groups: str, schedules: str, presets: str
) -> tuple[JobSpec, tuple[StaticSetting, ...], tuple[Variant, ...]]:
    """The job with equal env steps, its static settings, and these and its presets as variants; raises SpecError."""
    from marless.cost.frontier import contenders
    from marless.jobs import presets as ways
    from marless.jobs import spec as specs

    job = contenders.equal_job(specs.load(job_file, overrides))
    counts = _counts(actors) if actors else contenders.usual_actors(job.actors.count)
    static = contenders.settings(counts, _listed(groups), _listed(schedules))
    if not static:
        raise SpecError("the grid is empty: give --actors, --groups and --schedules at least one value each")
    known = ways.presets(presets) if presets else ()
    return (
        job,
        static,
        (*(each.variant(job) for each in static), *(contenders.preset_variant(job, each) for each in known)),
    )


def _counts(actors: str) -> list[int]:
    try:
        return [whole(each, least=1) for each in _listed(actors)]
    except typer.BadParameter as error:
        raise SpecError(f"--actors: {error.message}; give numbers of actors, such as 1,4,16") from None


def _run(asked: FrontierRequest, output: Output, *, resume: bool) -> None:
    """Make the runs that are missing, and report; ends with the code of failed runs if there are some."""
    with Working("checking the runs"):
        planned = _planned(asked)
    if not resume and asked.folder.exists() and any(asked.folder.iterdir()):
        raise SpecError(f"{asked.folder} is not empty; continue it with --resume, or choose another --out")
    failed = _make(asked, planned)
    try:
        with Working("comparing", "runs") as working:
            found = results(asked, planned, failed, working.told)
    except SpecError as error:
        if not failed:
            raise
        say(str(error))
        raise typer.Exit(exits.ExitCode.FAILED) from None
    report_results(asked, found, output)
    if failed:
        say(f"{len(failed)} of {len(planned)} runs failed: {', '.join(failed)}; --resume tries them again")
        raise typer.Exit(exits.ExitCode.FAILED)


def _listed(given: str) -> list[str]:
    return [each.strip() for each in given.split(",") if each.strip()]


def _chosen_presets(given: str | None) -> str:
    """The names of presets, comma-separated; the default ones if none are given."""
    from marless.jobs.presets import PRESETS

    return ",".join(name for name in _PRESETS if name in PRESETS) if given is None else ",".join(_listed(given))


def _command(job_file: Path, options: Mapping[str, str], overrides: Sequence[str], *, services: bool) -> str:
    """The command line that repeats the frontier, without directories of this machine."""
    file = job_file.name if job_file.is_absolute() else str(job_file)
    words = [word for pair in options.items() for word in pair]
    words += [word for override in overrides for word in ("--set", override)]
    return shlex.join(["marless", "frontier", file, *words, *(["--services"] if services else [])])


def _planned(asked: FrontierRequest) -> tuple[Run, ...]:
    """The runs to make; everything is validated before the first run begins."""
    from marless.cost.billing.ledger import Ledger
    from marless.cost.comparison import report
    from marless.cost.comparison.runs import planned_runs
    from marless.cost.simulation.cluster import lanes
    from marless.jobs import prices
    from marless.jobs.examining import examined
    from marless.jobs.job import advice, prepare
    from marless.jobs.sinks.base import check_sinks
    from marless.learning.policies.evaluation import competitive

    check_sinks(*asked.job.sinks)
    if asked.document:
        report.check_document(asked.document, f"{asked.job.name}-frontier")
    notes: dict[str, None] = {}
    for variant in asked.variants:
        try:
            seen = prepare(variant.spec, examined)
            Ledger(variant.spec, prices.merged(variant.spec.bill.prices))
            for what, size in (("actor", variant.spec.functions.actor), ("learner", variant.spec.functions.learner)):
                lanes(asked.slots, size, what)
        except SpecError as error:
            raise SpecError(f"{variant.name}: {error}") from None
        if competitive(seen.spaces):
            raise SpecError(
                f"sides compete in {asked.job.env.name}, so that returns of training say nothing about learning, and "
                "nobody could say when a goal is reached; `marless compare` plays each side against chance"
            )
        notes[advice(seen)] = None
    for note in filter(None, notes):
        say(f"note: {note}")
    return planned_runs(asked.job, asked.variants, asked.seeds)


def _make(asked: FrontierRequest, runs: Sequence[Run]) -> dict[str, str]:
    """Make all runs that are not finished yet; returns why each of those failed that did, by id."""
    continues = f"the same command with --resume --out {asked.folder} continues"
    missing = [run for run in runs if not asked.place.finished(run)]
    if len(missing) < len(runs):
        say(f"{len(runs) - len(missing)} of {len(runs)} runs exist already")
    names = [f"{runs.index(run) + 1} of {len(runs)}" for run in missing]
    try:
        return _on_services(asked, missing, names) if asked.services else _in_processes(asked, missing, names)
    except (InterruptedRunError, KeyboardInterrupt) as interrupt:
        say(f"{str(interrupt) or 'interrupted'}; {continues}")
        raise typer.Exit(exits.ExitCode.INTERRUPTED) from None
    except UnavailableError as error:
        raise UnavailableError(f"{error}; {continues}") from None


def _in_processes(asked: FrontierRequest, missing: Sequence[Run], names: Sequence[str]) -> dict[str, str]:
    from marless.app.cli.comparison_folder import RunProcesses

    place = asked.place
    return RunProcesses(place.runs, place.runs.parent / "logs", asked.processes).make(missing, names)


def _on_services(asked: FrontierRequest, missing: Sequence[Run], names: Sequence[str]) -> dict[str, str]:
    failed = {}
    for run, name in zip(missing, names, strict=True):
        try:
            asked.place.make_here(run, f"run {name}")
        except InterruptedRunError:
            raise
        except JobStateError as error:
            say(str(error))
            failed[run.id] = str(error)
    return failed
