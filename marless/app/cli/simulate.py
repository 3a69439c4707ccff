"""The command `simulate`: replays a recorded run with other policies or on another cluster, modelled."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marless.app.cli.options import CoordinatorOptions, Output, OutputOption, OverrideOption, positive, whole
from marless.app.cli.output import TableColumn, console, data, fitted, percent, say, show_object
from marless.app.cli.recorded import RecordedArgument, find
from marless.app.cli.working import Working

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from marless.app.cli.recorded import Recorded
    from marless.cost.estimates.simulate import WhatIf, WhatIfRound
    from marless.jobs.prices import Accounting
    from marless.jobs.record import RoundRecord
    from marless.jobs.spec import JobSpec

ACCOUNTINGS: tuple[Accounting, ...] = ("paper", "billed", "serverful")


def simulate(
    at: CoordinatorOptions,
    job: RecordedArgument,
    scaling: Annotated[str, typer.Option(metavar="POLICY", help="Scaling policy; default: that of the run.")] = "",
    sharing: Annotated[str, typer.Option(metavar="POLICY", help="Sharing policy; default: that of the run.")] = "",
    slots: Annotated[
        int | None,
        typer.Option(parser=positive, metavar="N", help="vCPUs of the cluster; default: as many as the run used."),
    ] = None,
    override: OverrideOption = [],  # noqa: B006  # typer's way
    seed: Annotated[
        int | None, typer.Option(parser=whole, metavar="N", help="Seed of the durations; default: the job's.")
    ] = None,
    output: OutputOption = Output.table,
) -> None:
    """Replay a recorded run under other policies, on a cluster of so many slots: decisions, time and cost, modelled.

    Returns are those of the recording. --set takes fields of scaling, sharing, functions, bill, stop, and actors.count.
    """
    from marless.cost.estimates import simulate as replay

    with Working(f"reading {job}"):
        found = find(job, at)
    spec = replay.replayed_spec(found.spec, scaling=scaling, sharing=sharing, overrides=override)
    if spec.schedule.overlapping:
        _overlapping(found, spec, slots, spec.seed if seed is None else seed, output)
        return
    with Working("simulating", "rounds") as working:
        done = replay.simulate(found.records, found.spec, spec, slots=slots, seed=seed, told=working.told)
    if output is Output.table:
        _show(done)
    elif output is Output.jsonl:
        for each in _rounds(done):
            data(json.dumps(each))
        data(json.dumps(_about(done)))
    else:
        show_object(_about(done) | {"rounds": _rounds(done)}, done.job, output)


def _overlapping(found: Recorded, spec: JobSpec, slots: int | None, seed: int, output: Output) -> None:
    """Model a run of schedule stellaris: its rule on slots, without learning."""
    from marless.cost.simulation.asynchronous import modelled
    from marless.jobs.asynchronous_run import version_report

    done, was = modelled(found.records, spec, slots=slots, seed=seed), version_report(found.records)
    assert was is not None  # it has gradients
    rows: dict[str, tuple[object, object]] = {
        "seconds": (round(sum(each.spent_s for each in found.records), 3), round(done.course.ended_s, 3)),
        "actors": (found.records[-1].actors, done.actors),
        "learners": ("", done.learners),
        "gradients": (was.gradients, done.gradients),
        "versions": (was.versions, len(done.course.aggregations)),
        "staleness": (round(was.staleness, 3), round(done.staleness, 3)),
        "rollouts too old": (was.dropped, done.course.state.dropped),
        "rollouts waiting, at most": (
            max(each.aggregation.waiting for each in found.records if each.aggregation),
            done.course.longest_queue,
        ),
        "actors busy": (round(was.actors_busy, 3), round(done.course.actors_busy, 3)),
        "learners busy": ("", round(done.course.learners_busy, 3)),
    }
    if output is not Output.table:
        facts = {name: {"recorded": before, "modelled": after} for name, (before, after) in rows.items()}
        show_object({"job": found.job, "slots": slots, "seed": seed, **facts}, found.job, output)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("", "recorded, measured", "modelled"):
        table.add_column(name, justify="left" if not name else "right")
    for name, (before, after) in rows.items():
        table.add_row(name, str(before), str(after))
    console().print(table)
    say("modelled: the rule on slots of its own for each function, with recorded durations; nothing learns")


def _about(done: WhatIf) -> dict[str, Any]:  # Any: JSON
    from marless.cost.estimates.simulate import RETURNS

    spec = done.spec
    return {
        "job": done.job,
        "slots": done.slots,
        "seed": done.seed,
        "scaling": spec.scaling.model_dump(mode="json"),
        "sharing": spec.sharing.model_dump(mode="json"),
        "returns": RETURNS,
        "learner_seconds": {name: dataclasses.asdict(line) for name, line in done.lines.items()},
        "ending": done.ending,
        "deadline_s": spec.scaling.deadline_s,
        "trained_s": done.trained_s,
        "recorded": {"measured": _measured(done), "modelled": _modelled(done, "recorded")},
        "replayed": {"modelled": _modelled(done, "replayed")},
    }


def _measured(done: WhatIf) -> dict[str, Any]:  # Any: JSON
    from marless.cost.simulation.cluster import total

    return {
        "seconds": sum(total(step.recorded.phases) for step in done.steps),
        "usd": {each: done.recorded_usd[each] for each in ("paper", "billed")},
        **_counts([step.recorded for step in done.steps]),
    }


def _modelled(done: WhatIf, which: str) -> dict[str, Any]:  # Any: JSON
    from marless.cost.simulation.cluster import total

    if which == "recorded":
        seconds = sum(total(step.recorded_s) for step in done.steps)
        return {"seconds": seconds, "usd": {"serverful": done.recorded_usd["serverful"]}}
    return {
        "seconds": sum(total(step.replayed_s) for step in done.steps),
        "usd": {each: done.replayed_usd[each] for each in ACCOUNTINGS},
        **_counts([step.replayed for step in done.steps]),
    }


def _counts(records: Sequence[RoundRecord]) -> dict[str, int]:
    return {
        "env_steps": records[-1].env_steps if records else 0,
        "actors": sum(record.actors for record in records),
        "updates": sum(len(record.groups) for record in records),
    }


def _rounds(done: WhatIf) -> list[dict[str, Any]]:  # Any: JSON
    recorded = [each for step in done.steps for each in step.recorded.evaluations]
    greedy = {each.rounds: each.returns.mean for each in recorded}
    return [_round(step, greedy) for step in done.steps]


def _round(step: WhatIfRound, greedy: Mapping[int, float]) -> dict[str, Any]:  # Any: JSON
    record = step.replayed
    return {
        "round": record.round,
        "differs": step.differs,
        "actors": record.actors,
        "groups": {group.policy: list(group.agents) for group in record.groups},
        "env_steps": record.env_steps,
        "modelled_s": dataclasses.asdict(step.replayed_s),
        "modelled_usd": {each: step.replayed_usd[each] for each in ACCOUNTINGS},
        "return_as_recorded": step.recorded.returns and step.recorded.returns.mean,
        "evaluation_as_recorded": greedy.get(record.round + 1),
        "reasons": {decision.kind: decision.reason for decision in record.decisions},
        "assumed": list(step.assumed),
        "recorded": {
            "actors": step.recorded.actors,
            "groups": {group.policy: list(group.agents) for group in step.recorded.groups},
            "env_steps": step.recorded.env_steps,
            "measured_s": dataclasses.asdict(step.recorded.phases),
            "modelled_s": dataclasses.asdict(step.recorded_s),
        },
    }


def _show(done: WhatIf) -> None:
    from marless.cost.estimates.simulate import RETURNS

    spec = done.spec
    policies = f"scaling {spec.scaling.name}, sharing {spec.sharing.name}"
    screen = console()
    screen.print(
        f"{done.job}, replayed: {policies}; seconds and USD modelled, {done.slots} slots; return as recorded\n"
    )
    screen.print(fitted(_columns(done.steps), screen.width))
    screen.print()
    _show_totals(done)
    say(f"returns are {RETURNS}")
    if assumed := [step for step in done.steps if step.assumed]:
        first = assumed[0]
        more = f"; {len(assumed)} rounds assume something, -o json says what" if len(assumed) > 1 else ""
        say(f"round {first.replayed.round + 1}: {first.assumed[0]}{more}")
    if deadline_s := spec.scaling.deadline_s:
        missed = "missed" if done.trained_s > deadline_s else "met"
        say(f"deadline of {deadline_s:g} s: {missed}, the replayed rounds take {done.trained_s:.2f} s of training")
    if done.ending:
        say(f"ended before the recording: {done.ending}")


def _columns(steps: Sequence[WhatIfRound]) -> list[TableColumn]:
    from marless.cost.simulation.cluster import total

    def column(title: str, of: Callable[[WhatIfRound], str], goes: int = 0) -> TableColumn:
        return TableColumn(title=title, cells=[of(step) for step in steps], right=True, goes=goes)

    won = any(step.replayed.returns and step.replayed.returns.wins is not None for step in steps)
    return [
        column("round", lambda step: str(step.replayed.round + 1)),
        column("actors", lambda step: _changed(step.replayed.actors, step.recorded.actors)),
        column("policies", lambda step: _changed(len(step.replayed.groups), len(step.recorded.groups))),
        column("seconds", lambda step: f"{total(step.replayed_s):.3f}", 1),
        *(column(f"{each} USD", _cost_in(each)) for each in ACCOUNTINGS),
        column("return", lambda step: f"{step.replayed.returns.mean:.2f}" if step.replayed.returns else "", 2),
        *(
            [column("won", lambda step: percent(step.replayed.returns.win_rate if step.replayed.returns else None))]
            if won
            else []
        ),
    ]


def _cost_in(accounting: Accounting) -> Callable[[WhatIfRound], str]:
    return lambda step: f"{step.replayed_usd[accounting]:.7f}"


def _changed(now: int, recorded: int) -> str:
    return str(now) if now == recorded else f"{now} (was {recorded})"


def _show_totals(done: WhatIf) -> None:
    from rich.table import Table

    measured, before, after = _measured(done), _modelled(done, "recorded"), _modelled(done, "replayed")
    table = Table(box=None, pad_edge=False)
    table.add_column(f"{len(done.steps)} rounds", no_wrap=True)
    for name in ("recorded, measured", "recorded, modelled", "replayed, modelled"):
        table.add_column(name, justify="right")
    table.add_row("seconds, all phases", *(f"{each['seconds']:.2f}" for each in (measured, before, after)))
    for each in ACCOUNTINGS:
        costs = (column["usd"].get(each) for column in (measured, before, after))
        table.add_row(f"{each} USD", *("" if usd is None else f"{usd:.7f}" for usd in costs))
    for key, name in (("actors", "actors invoked"), ("updates", "policies updated"), ("env_steps", "env steps")):
        table.add_row(name, f"{measured[key]:,}", "", f"{after[key]:,}")
    console().print(table)
