"""Dry runs: estimate the duration and cost of a job before it runs. Nothing is submitted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marless.app.cli.costs import dollars
from marless.app.cli.options import CoordinatorOptions, Output
from marless.app.cli.output import console, data, say, show_object
from marless.app.cli.recorded import Recorded, find, from_folder
from marless.app.cli.working import Working
from marless.core.errors import InternalError, MarlessError, SpecError, UnavailableError
from marless.core.machine import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from marless.cost.estimates.calibration import Calibration
    from marless.cost.estimates.estimate import CostScenario, Estimate, Range
    from marless.jobs.job import PreparedJob
    from marless.jobs.prices import Prices
    from marless.jobs.record import RoundRecord
    from marless.jobs.spec import JobSpec

CALIBRATION_S = 300.0
LOWER, UPPER = 0.7, 1.5
"""Assumed error range of calibrated times, as factors: calibration runs alone on one core, workers run in parallel."""
_SAMPLED_ROUNDS, _MOST_SAMPLED_ROUNDS = 10, 2000


@dataclass(frozen=True)
class _Basis:
    """What an estimate is based on."""

    courses: list[CostScenario]
    sentences: list[str]
    """The assumptions, as sentences for the user."""
    run: str
    """Job id of the recorded run; "" for a calibration."""


def estimate(spec: JobSpec, source: str, *, run: str, at: CoordinatorOptions, output: Output) -> None:
    """Validate a job and print its estimate; `run` is a recorded job to base it on, "" to search for one.

    Raises SpecError for a job that cannot run or be priced, and for a recorded run of another shape.
    """
    from marless.cost.billing.ledger import Ledger
    from marless.cost.estimates import estimate as estimates
    from marless.jobs import prices as tables
    from marless.jobs.examining import examined
    from marless.jobs.job import advice, prepare

    try:
        job = prepare(spec, examined)
        table = tables.merged(spec.bill.prices)
        Ledger(spec, table)
    except SpecError as error:
        raise SpecError(f"{source}: {error}") from None
    if note := advice(job):
        say(f"note: {note}")
    recorded = _given(run, spec, at) if run else _alike(spec, at.runs)
    basis = _from_run(recorded, spec, table) if recorded else _from_calibration(job, table)
    _show(estimates.estimate(spec, basis.courses), spec, basis, output)


def _given(run: str, spec: JobSpec, at: CoordinatorOptions) -> Recorded:
    from marless.cost.estimates.estimate import SHAPE, same_shape

    found = find(run, at)
    if not same_shape(found.spec, spec):
        other = [name for name in SHAPE if getattr(found.spec, name) != getattr(spec, name)]
        raise SpecError(
            f"--from {run}: that job's {', '.join(other)} differ from this job's, so its rounds predict nothing here; "
            "omit --from for a calibration, or simulate that job with `marless simulate`"
        )
    if not found.records:
        raise SpecError(f"--from {run}: that job has no recorded round yet; omit --from for a calibration")
    return found


def _alike(spec: JobSpec, runs: Path) -> Recorded | None:
    """The newest recorded run of the same shape as this job; None if there is none."""
    from marless.cost.estimates.estimate import same_shape
    from marless.jobs import spec as specs

    for file in sorted(runs.glob("*/spec.yaml"), key=lambda each: each.lstat().st_mtime, reverse=True):
        try:
            if same_shape(specs.load_resolved(file), spec):
                found = from_folder(file.parent)
                if len(found.records) > 1:
                    return found
        except MarlessError:
            continue  # ignore folders without a complete run
    return None


def _from_run(found: Recorded, spec: JobSpec, table: Prices) -> _Basis:
    from marless.cost.estimates.estimate import courses_of_run

    sentences = [
        f"from the {len(found.records)} recorded rounds of {found.job}, billed again; the range is that of its thirds",
        "assumed: rounds of this job take as long, with the same decisions",
    ]
    sentences += _outlook(spec, found.records)
    return _Basis(courses_of_run(found.records, spec, table), sentences, found.job)


def _outlook(spec: JobSpec, records: Sequence[RoundRecord]) -> list[str]:
    """Whether the job's deadline can be met, if rounds take as long as those of `records`."""
    from marless.jobs.job import deadline_of

    deadline = deadline_of(spec, records, 0.0, begun=False)
    return [deadline.outlook()] if deadline else []


def _from_calibration(job: PreparedJob, table: Prices) -> _Basis:
    from marless.cost.estimates import forecast
    from marless.cost.estimates.estimate import course, minimum_s

    spec = job.spec
    if spec.schedule.overlapping:
        raise SpecError(
            "--dry-run: no recorded run has these settings, and rounds cannot stand for schedule "
            f"{spec.schedule.name}; train shortly (--set stop.rounds=100), then estimate again with --from RUN"
        )
    say("no recorded run has these settings: measuring one actor and two updates of this job here …")
    with Working("measuring"):
        found = _calibrated(spec)
    work = forecast.work_of(found, job)
    # At least as many as one function needs, because the model refuses slots that hold none.
    slots = max(usable_cores(), *(int(-(-s.vcpus // 1)) for s in (spec.functions.actor, spec.functions.learner)))
    episode = job.spaces.max_steps or spec.actors.steps
    courses: list[CostScenario] = []
    sentences = _assumptions(found, job, slots)
    for pace in _paces(job, slots):

        def rounds(count: int, pace: forecast.Pace = pace) -> list[RoundRecord]:
            return forecast.rounds(job, work, min(found.actor_s), pace, count, episode)

        def some(count: int, rounds: Callable[[int], list[RoundRecord]] = rounds) -> CostScenario:
            return course(rounds(count), spec, table)

        if not courses:  # the likely pace
            sentences += _outlook(spec, rounds(_SAMPLED_ROUNDS))

        count = 1 + max(min(spec.evaluation.every, 5 * _SAMPLED_ROUNDS), _SAMPLED_ROUNDS)
        if paid_s := minimum_s(table):
            # So long that machines or containers are held beyond what is charged at least: later rounds then show
            # what one costs.
            count = min(count + int(2 * paid_s / some(2).round_s), _MOST_SAMPLED_ROUNDS)
        courses.append(some(count))
    return _Basis(courses, sentences, "")


def _paces(job: PreparedJob, slots: int) -> list[Any]:  # Any: Pace, whose module is imported where it is needed
    """The likely pace, and a lower and an upper one; if policies decide, also with few actors and shared learners."""
    from marless.cost.estimates.forecast import Pace
    from marless.jobs.scaling.fixed import GivenConfig

    spec = job.spec
    most = Pace(actors=spec.actors.count, factor=1.0, shared=False, slots=slots)
    few = max(spec.actors.count // len(job.spaces.agents), 1) if spec.scaling.name != "fixed" else most.actors
    if isinstance(spec.scaling, GivenConfig):
        few = round(spec.scaling.mean(spec.stop.rounds or len(spec.scaling.actors)))
        most = replace(most, actors=few)
    shared = spec.sharing.name != "fixed"
    return [
        most,
        Pace(actors=few, factor=LOWER, shared=shared, slots=slots),
        Pace(actors=most.actors, factor=UPPER, shared=False, slots=slots),
    ]


def _calibrated(spec: JobSpec) -> Calibration:
    """Calibrate in a process with the same number of threads as a worker."""
    from marless.core import process_environment
    from marless.core.process_environment import ENV_MODULES, env_modules
    from marless.cost.estimates.calibration import from_text

    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "marless.cost.estimates.calibration"],
            input=spec.to_json(),
            capture_output=True,
            text=True,
            errors="replace",  # an environment may print what is no text
            timeout=CALIBRATION_S,
            check=False,
            env=process_environment.inherited(os.environ)
            | process_environment.learner(1)
            | {ENV_MODULES: ",".join(env_modules())},
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(
            f"the calibration has not ended within {CALIBRATION_S:g} s; the environment hangs, or a round takes longer"
        ) from None
    if done.returncode < 0:
        raise UnavailableError(f"the calibration was ended by a signal: {signal.strsignal(-done.returncode)}")
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise InternalError(f"the calibration failed: {said[-1]}")
    return from_text(done.stdout)


def _assumptions(found: Calibration, job: PreparedJob, slots: int) -> list[str]:
    spec = job.spec
    sentences = [
        f"calibrated on this machine: an actor takes {min(found.actor_s):.3f} s"
        + (
            f", an update {sum(each.seconds for each in found.updates[0]):.3f} s of one vCPU"
            if found.updates
            else "; torch is not installed, so the time of updates is computed from their number of samples"
        ),
        f"assumed: {slots} vCPUs, as on this machine; times may be {1 - LOWER:.0%} less or {UPPER - 1:.0%} more",
    ]
    if found.updates and found.samples_share < 1:
        sentences.append(f"updates were measured on {found.samples_share:.1%} of a round's samples, and extrapolated")
    if spec.scaling.name == "given":
        sentences.append("assumed: each round has as many actors as a round of the list has on average")
    if spec.scaling.name not in ("fixed", "given") or spec.sharing.name != "fixed":
        sentences.append(
            "likely and high: all actors, and a learner per policy; low: as few as the policies may choose"
        )
    return sentences


def _show(found: Estimate, spec: JobSpec, basis: _Basis, output: Output) -> None:
    from marless.cost.estimates.estimate import PER_ROUNDS

    if output is Output.table:
        for sentence in basis.sentences:
            say(sentence)
        if found.ends_by:
            say(f"ends by {found.ends_by}; its cost counts as {spec.bill.accounting}; nothing was submitted or started")
        else:
            say(f"when stop.return is reached cannot be estimated: all figures are for {PER_ROUNDS} rounds")
        _table(found)
        return
    document = {
        "job": spec.name,
        "from": basis.run or "calibration",
        "assumed": basis.sentences,
        "counts_as_cost": spec.bill.accounting,
        "modelled": ["seconds", "serverful"] if not basis.run else ["serverful"],
        **found.to_dict(),
    }
    if output is Output.jsonl:
        data(json.dumps(document))
    else:
        show_object(document, spec.name, output)


def _table(found: Estimate) -> None:
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    shown.add_column("")
    for name in ("low", "likely", "high"):
        shown.add_column(name, justify="right")

    def row(name: str, each: Range, text: Any) -> None:  # Any: a function of a number
        shown.add_row(name, text(each.low), text(each.likely), text(each.high))

    row("rounds", found.rounds, lambda number: f"{number:,.0f}")
    row("env steps", found.env_steps, lambda number: f"{number:,.0f}")
    row("seconds", found.seconds, lambda number: f"{number:,.1f}")
    for accounting, each in found.usd.items():
        row(f"{accounting} USD" + (" (modelled)" if accounting == "serverful" else ""), each, dollars)
    console().print(shown)
