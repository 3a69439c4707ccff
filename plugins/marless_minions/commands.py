"""The command `scheduler train`: trains a scheduler for `scaling: {name: minions}` on simulated runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marless.app.cli.options import CoordinatorOptions, Output, OutputOption, OverrideOption, connected, positive, whole
from marless.app.cli.output import console, say, show_object
from marless.app.cli.working import Working
from marless.core.errors import SpecError, UnavailableError
from marless.core.installing import how_to_install

if TYPE_CHECKING:
    from marless.app.cli.recorded import Recorded
    from marless.jobs.prices import Prices
    from marless.jobs.spec import JobSpec
    from marless_minions.model import RunModel
    from marless_minions.scheduler import SchedulerTask
    from marless_minions.training import SimulatedScore, TrainedScheduler

app = typer.Typer(no_args_is_help=True, help="Schedulers that learn how many actors a round needs (MinionsRL).")


@app.callback(rich_help_panel="Policies")
def _scheduler() -> None:
    """A group of verbs, also as long as there is one only."""


def train(  # noqa: PLR0913  # a command has as many parameters as options
    at: CoordinatorOptions,
    runs_: Annotated[
        list[str], typer.Argument(metavar="[RUNS]...", help="Recorded runs of the job: job ids or run folders.")
    ] = [],  # noqa: B006  # typer's way
    *,
    spec: Annotated[Path, typer.Option("--spec", metavar="JOB.yaml", help="The job file that the scheduler is for.")],
    episodes: Annotated[int, typer.Option(parser=positive, metavar="N", help="Number of simulated runs.")] = 100,
    out: Annotated[Path, typer.Option(help="Folder to write it to.")] = Path("scheduler"),
    seed: Annotated[int, typer.Option(parser=whole, metavar="N", help="Seed of the simulation and training.")] = 0,
    target: Annotated[
        float | None, typer.Option(help="Return to reach, J; default: stop.return, else 95 % of the recorded gain.")
    ] = None,
    beta: Annotated[float, typer.Option(min=0, max=1, help="Cost of a second, in units of return.")] = 0.1,
    overrides: OverrideOption = [],  # noqa: B006
    output: OutputOption = Output.table,
) -> None:
    """Train a scheduler on runs that are simulated as the recorded ones went; without any, on a synthetic model."""
    from marless.jobs import prices
    from marless.jobs import spec as specs
    from marless_minions import model as models

    job = specs.load(spec, [*overrides, "scaling=fixed"])  # the job's own scheduler is the one to be trained
    table = prices.merged(job.bill.prices)
    recorded = _found(runs_, at, job, spec)
    model = models.fit([each.records for each in recorded], job) if recorded else models.synthetic(job)
    task = models.task_of(job, model, float(table.lambda_.rate.on_demand), target=target, beta=beta)
    _say_limits(model, task)
    trained, scores = _trained(model, task, episodes, seed)
    costs = [_cost(each, table) for each in recorded]
    report = _report(model, costs, trained, scores) | {"seed": seed}
    _save(out, trained, report)
    if output is Output.table:
        _show(scores)
        say(_summary(model, costs, trained, out))
    else:
        show_object({"scheduler": str(out), "task": asdict(task)} | report, str(out), output)


app.command()(connected(train))


def _trained(
    model: RunModel, task: SchedulerTask, episodes: int, seed: int
) -> tuple[TrainedScheduler, dict[str, SimulatedScore]]:
    try:
        from marless_minions import training
    except ModuleNotFoundError as error:
        how = how_to_install(str(error.name), "marless[learner]")
        raise UnavailableError(f"training needs {error.name}: {how}") from None
    with Working("training", "runs") as working:
        trained = training.train(model, task, episodes=episodes, seed=seed, told=working.told)
    with Working("comparing"):
        return trained, training.compare(model, task, trained, seed)


def _found(sources: Sequence[str], at: CoordinatorOptions, job: JobSpec, path: Path) -> list[Recorded]:
    """Read the recorded jobs; raises SpecError for one that is not comparable to the job of the scheduler."""
    from marless.app.cli.recorded import find

    found = []
    for source in sources:
        with Working(f"reading {source}"):
            recorded = find(source, at)
        for what, theirs, ours in _same(recorded.spec, job):
            if theirs != ours:
                raise SpecError(
                    f"{source}: {what} was {theirs}, in {path} it is {ours}; give runs that were recorded with the "
                    "settings of that file"
                )
        found.append(recorded)
    return found


def _same(theirs: JobSpec, ours: JobSpec) -> list[tuple[str, object, object]]:
    """The settings that must be equal for runs to be comparable; the number of actors may differ."""
    return [
        ("env.name", theirs.env.name, ours.env.name),
        ("env.options", theirs.env.arguments, ours.env.arguments),
        ("algorithm.name", theirs.algorithm.name, ours.algorithm.name),
        ("actors.envs", theirs.actors.envs, ours.actors.envs),
        ("actors.steps", theirs.actors.steps, ours.actors.steps),
    ]


def _say_limits(model: RunModel, task: SchedulerTask) -> None:
    """Print the limits of the model."""
    known, asked = model.returns.end, task.rounds * task.max_actors * model.steps_per_actor
    if known < asked:
        say(
            f"the recorded runs sampled at most {known:,.0f} env steps, and runs of this job sample up to {asked:,}; "
            "the simulation assumes no gain beyond the recorded steps: record a run with the largest actors.count"
        )


@dataclass(frozen=True, kw_only=True)
class _Cost:
    """Duration and cost of a recorded run."""

    job: str
    rounds: int
    wall_s: float
    """Seconds of its rounds."""
    paper_usd: float


def _cost(recorded: Recorded, table: Prices) -> _Cost:
    from marless.cost.billing.ledger import Ledger

    ledger = Ledger(recorded.spec, table)
    for record in recorded.records:
        ledger.add(record)
    return _Cost(
        job=recorded.job,
        rounds=len(recorded.records),
        wall_s=sum(record.spent_s for record in recorded.records),
        paper_usd=ledger.total_usd("paper"),
    )


def _report(
    model: RunModel, costs: Sequence[_Cost], trained: TrainedScheduler, scores: Mapping[str, SimulatedScore]
) -> dict[str, object]:
    """The report to save: the data that the scheduler was trained on, their cost, and its scores."""
    return {
        "model": model.source,
        "recorded": [asdict(cost) for cost in costs],
        "episodes": trained.episodes,
        "training_wall_s": trained.wall_s,
        "training_cpu_s": trained.cpu_s,
        "modelled": {name: asdict(score) for name, score in scores.items()},
        "curve": list(trained.curve),
    }


def _save(out: Path, trained: TrainedScheduler, report: Mapping[str, object]) -> None:
    from marless_minions.scheduler import Saving, save

    try:
        save(out, Saving(checkpoints={"best": trained.best, "cheapest": trained.cheapest}, report=report))
    except OSError as error:
        raise UnavailableError(f"--out {out}: {error.strerror}; choose another folder") from None


def _summary(model: RunModel, costs: Sequence[_Cost], trained: TrainedScheduler, out: Path) -> str:
    """A sentence on the training, and on the time and cost of the recorded runs."""
    spent = ""
    if costs:
        took_s, usd = sum(cost.wall_s for cost in costs), sum(cost.paper_usd for cost in costs)
        spent = f"; recording those took {took_s:,.0f} s and {usd:.4f} USD by paper accounting"
    return (
        f"trained in {trained.wall_s:.1f} s on {trained.episodes} runs simulated after {model.source}{spent}; "
        f"use it with `scaling: {{name: minions, scheduler: {out}}}`"
    )


def _show(scores: Mapping[str, SimulatedScore]) -> None:
    """Print one row per way of choosing the number of actors; all figures are from simulated runs."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title="modelled, means of simulated runs", title_justify="left")
    table.add_column("actors by")
    for title in ("objective", "last return", "reached", "actors", "run s", "run USD"):
        table.add_column(title, justify="right")
    for name, score in scores.items():
        table.add_row(
            name,
            f"{score.objective:,.2f}",
            f"{score.final_return:,.2f}",
            f"{score.reached:.0%}",
            f"{score.actors:,.1f}",
            f"{score.wall_s:,.0f}",
            f"{score.cost_usd:,.4f}",
        )
    console().print(table)
