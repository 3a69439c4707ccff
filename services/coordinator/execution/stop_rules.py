"""The stop rules of a job: whether its rounds, env steps, time, return or cost have reached their limit."""

from __future__ import annotations

from marless.jobs.record import RoundRecord
from marless.jobs.sections import StopSpec
from marless.learning.data.returns import EpisodeReturns
from services.coordinator.state.journal import Journal


def limit_reached(stop: StopSpec, *, rounds: int, env_steps: int, wall_s: float) -> str:
    """Which limit of rounds, env steps or time is reached, as a sentence; "" if none is."""
    if stop.rounds is not None and rounds >= stop.rounds:
        return f"{rounds} rounds done"
    if stop.env_steps is not None and env_steps >= stop.env_steps:
        return f"{env_steps} env steps sampled"
    if stop.wall_s is not None and wall_s >= stop.wall_s:
        return f"{wall_s:.0f} s of training passed"
    return ""


def return_reached(stop: StopSpec, greedy: EpisodeReturns | None) -> str:
    """A sentence if the mean return of an evaluation has reached `stop.greedy_return`, else ""."""
    if stop.greedy_return is None or greedy is None or greedy.mean < stop.greedy_return:
        return ""
    return f"greedy return per agent {greedy.mean:.3f} reached {stop.greedy_return:g}"


def cost_reached(stop: StopSpec, spent_usd: float, accounting: str) -> str:
    """A sentence if the cost has reached `stop.cost_usd`, else ""."""
    if stop.cost_usd is None or spent_usd < stop.cost_usd:
        return ""
    return f"{spent_usd:.6f} USD spent by {accounting} accounting, of a budget of {stop.cost_usd:g} USD"


def may_end(stop: StopSpec, journal: Journal, record: RoundRecord) -> bool:
    """True if the job ends with `record`, the next round of the journal, or if its own evaluation is to decide that.

    Asked before that evaluation. `stop.return` is judged by the policies that the job would end with: if those that an
    earlier round has published reach the return, this round's own are evaluated too.
    """
    wall_s = journal.trained_s + record.spent_s
    if limit_reached(stop, rounds=record.round + 1, env_steps=record.env_steps, wall_s=wall_s):
        return True
    if return_reached(stop, record.newest_evaluation):
        return True
    costs = journal.costs
    return stop.cost_usd is not None and costs.spent_usd(record) >= stop.cost_usd


def ending(stop: StopSpec, journal: Journal) -> str:
    """Which stop rule the recorded rounds have met, as a sentence; "" if none.

    Rules other than the cost count only after a round that evaluated its own policies, or gave that up, because a job's
    last round does.
    """
    if spent := spent_up(stop, journal):
        return spent
    last = journal.last
    if last is None or (last.evaluation is None and not last.evaluation_given_up):
        return ""
    reached = limit_reached(stop, rounds=journal.rounds, env_steps=journal.env_steps, wall_s=journal.trained_s)
    return reached or return_reached(stop, last.evaluation)


def spent_up(stop: StopSpec, journal: Journal) -> str:
    """A sentence if the recorded rounds have cost `stop.cost_usd` or more, else ""."""
    if stop.cost_usd is None:
        return ""
    return cost_reached(stop, journal.costs.spent_usd(), journal.costs.accounting)
