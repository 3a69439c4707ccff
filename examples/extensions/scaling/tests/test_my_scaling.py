from dataclasses import replace
from random import Random

from marless.core.group import Group
from marless.jobs.record import RoundRecord
from marless.jobs.scaling.base import ActorRange, ScalingDecision
from marless.jobs.scaling.contract import check_scaling, sample_round
from marless.learning.data.returns import EpisodeReturns

from my_scaling.scaling import SCALING, MyScaling, MyScalingConfig


def test_it_keeps_the_contract() -> None:
    check_scaling(SCALING, MyScalingConfig.model_validate({"name": "my_scaling"}))


def test_its_decisions_are_what_was_worked_out_by_hand() -> None:
    assert decided(returns=[-3, -3, -3, -3, -3]) == 1  # too few rounds
    assert decided(returns=[-3, -3, -3, -3, -2, -2]) == 5  # they rise: half of 10
    assert decided(returns=[-3, -3, -3, -3, -4, -4]) == 20  # they do not: twice as many


def decided(returns: list[float]) -> int:
    """Actors after rounds of 10 actors with these mean returns."""
    groups = (Group("agent_0", ("agent_0",)),)
    history: list[RoundRecord] = []
    for mean in returns:
        record = sample_round(history, groups, ScalingDecision(10, "as before"), "my_scaling", Random(0))
        own = EpisodeReturns(episodes=4, mean=mean, per_agent={"agent_0": mean}, standard_error=0.1)
        history.append(replace(record, returns=own))
    return MyScaling(ActorRange(1, 40), window=3).decide(history, groups).actors
