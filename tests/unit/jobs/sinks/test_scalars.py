"""A round as numbers: every figure where a person looks for it, counted once."""

import dataclasses

import pytest

from marless.jobs.sinks import contract
from marless.jobs.sinks.base import scalars, settings
from marless.jobs.spec import parse
from marless.learning.data.returns import EpisodeReturns

RANDOM = EpisodeReturns(episodes=9, mean=-3.0, per_agent={"agent_0": -2.0, "agent_1": -4.0}, standard_error=0.1)
SPEC = {"env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 3}, "sinks": ["tensorboard"]}


def test_wins_where_there_are_any():
    record = dataclasses.replace(contract.sample_round(0, 1.0), evaluation=dataclasses.replace(RANDOM, wins=3))
    found = scalars(record, None, dataclasses.replace(RANDOM, wins=0))
    assert found["wins/greedy"] == pytest.approx(1 / 3)
    assert found["wins/random"] == 0.0
    assert "wins/exploring" not in found


def test_a_round_in_full():
    record = contract.sample_round(0, 1.0)
    share = dataclasses.replace(record.invocations[0], function="policy", worker="", vcpu_s=0.2)
    record = dataclasses.replace(record, invocations=(*record.invocations, share))
    assert scalars(record, None, RANDOM) == pytest.approx(
        {
            "returns/exploring": -1.0,
            "returns/greedy": -1.0,
            "returns/random": -3.0,
            "agents/agent_0/exploring": -1.0,
            "agents/agent_1/exploring": -1.0,
            "agents/agent_0/greedy": -1.0,
            "agents/agent_1/greedy": -1.0,
            "agents/agent_0/random": -2.0,
            "agents/agent_1/random": -4.0,
            "policies/all/policy_loss": 1.0,
            "policies/all/kl": 0.0,
            "round/number": 1,
            "round/actors": 1,
            "round/learners": 1,
            "round/episodes": 4,
            "speed/env_steps_per_s": 50.0,
            "seconds/round": 2.0,
            "seconds/rollout": 1.0,
            "seconds/update": 0.5,
            "seconds/evaluation": 0.0,
            "functions/actor/count": 1,
            "functions/actor/vcpu_s": 0.5,
            "functions/policy/count": 1,
            "functions/policy/vcpu_s": 0.2,
            "functions/vcpu_s": 0.5,
            "functions/cold": 1,
        }
    )


def test_what_was_not_measured_is_no_number():
    numbers = scalars(contract.sample_round(1, 1.0), contract.sample_round(0, 1.0), None)
    assert not [name for name in numbers if name.startswith(("returns/", "agents/"))]
    assert numbers["speed/env_steps_per_s"] == pytest.approx(50.0)  # of this round alone


def test_settings_are_the_resolved_spec():
    flat = settings(parse(SPEC, "spec").model_dump(mode="json", by_alias=True))
    assert flat["algorithm.name"] == "ippo"
    assert flat["stop.rounds"] == 3
    assert flat["model.hidden"] == "[64, 64]"
    assert "stop.return" not in flat
