"""What a job may ask of each algorithm: refused before anything starts, or told, naming the alternative."""

from typing import Any

import pytest

from marless.core.errors import SpecError
from marless.jobs.job import advice, prepare
from marless.jobs.spec import parse
from marless.learning.envs import registry as environments
from tests.unit.learning.algos.games import space_of

DISCRETE, CONTINUOUS, COMPETITIVE = "mpe/simple_spread", "continuous", "mpe/simple_adversary"
MADE = ("continuous", "unbounded", "unknown", "stateless")
Q, TEAM, DDPG, PPO = ("iql", "vdn", "qmix"), ("vdn", "qmix"), ("maddpg", "iddpg"), ("ippo", "mappo")
PQN = ("pqn", "pqn_vdn")


@pytest.fixture(autouse=True)
def _games(monkeypatch):
    """Spread as it is, and as other games would be of which nothing but the spaces matters here."""
    real = environments.examined

    def examined(name: str, options: Any) -> Any:
        found, can_be_saved = real(DISCRETE if name in MADE else name, options)
        return space_of(found, name), can_be_saved

    monkeypatch.setattr(environments, "examined", examined)


def job(algorithm: str, env: str = DISCRETE, **sections: Any) -> Any:
    settings = sections.pop("settings", {})
    stop = sections.pop("stop", {"rounds": 100})
    return parse({"env": {"name": env}, "algorithm": {"name": algorithm} | settings, "stop": stop} | sections, "job")


def refusal(*args: Any, **sections: Any) -> str:
    with pytest.raises(SpecError) as refused:
        prepare(job(*args, **sections))
    return str(refused.value)


@pytest.mark.parametrize("algorithm", [*Q, *DDPG, *PPO])
def test_defaults_are_accepted_without_a_word(algorithm):
    assert advice(prepare(job(algorithm))) == ""


@pytest.mark.parametrize("algorithm", PQN)
def test_nets_without_targets_are_told_to_normalise_their_layers(algorithm):
    assert "set model.layer_norm: true" in advice(prepare(job(algorithm)))
    assert advice(prepare(job(algorithm, model={"layer_norm": True}))) == ""
    assert advice(prepare(job(algorithm, model={"recurrent": "gru"}, actors={"envs": 32}))) == ""


@pytest.mark.parametrize("algorithm", PQN)
def test_more_minibatches_than_a_round_has_are_refused(algorithm):
    few = {"count": 1, "envs": 2, "steps": 25}
    said = refusal(algorithm, actors=few, settings={"minibatches": 51}, sharing={"groups": "shared"})
    assert said == (
        "algorithm.minibatches is 51, but a pass over a round has only 50 env steps: set at most 50, or raise "
        "actors.envs or actors.steps"
    )
    prepare(job(algorithm, actors=few, settings={"minibatches": 50}, sharing={"groups": "shared"}))
    said = refusal(algorithm, actors=few, model={"recurrent": "gru"})
    assert "only 2 segments (actors.count · actors.envs): set at most 2, or raise actors.envs" in said


@pytest.mark.parametrize("algorithm", (*Q, *PQN))
def test_q_learning_of_continuous_actions_is_refused(algorithm):
    said = refusal(algorithm, "continuous")
    assert said.startswith(f"algorithm.name {algorithm} needs discrete actions, and those of class agent are")
    assert "use maddpg, iddpg or ippo" in said


@pytest.mark.parametrize("algorithm", [*DDPG, *PPO])
def test_policy_gradients_take_any_actions(algorithm):
    assert advice(prepare(job(algorithm, "continuous"))) == advice(prepare(job(algorithm))) == ""


@pytest.mark.parametrize("algorithm", PPO)
def test_stochastic_policies_take_actions_without_bounds(algorithm):
    assert advice(prepare(job(algorithm, "unbounded"))) == ""


@pytest.mark.parametrize("algorithm", [*Q, *DDPG])
def test_all_others_refuse_actions_without_bounds(algorithm):
    said = refusal(algorithm, "unbounded")
    needs = "discrete actions" if algorithm in Q else "actions within bounds"
    assert said.startswith(f"algorithm.name {algorithm} needs {needs}, and those of class agent ")
    assert "ippo" in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("algorithm", TEAM)
def test_sums_of_rewards_that_compete_are_refused_and_unknown_ones_are_told(algorithm):
    assert refusal(algorithm, COMPETITIVE).endswith("and those of env.name compete; use iql instead")
    told = advice(prepare(job(algorithm, "unknown")))
    assert told.startswith(f"algorithm.name {algorithm} maximises the reward of all agents together")
    assert "if they compete, use iql. env.name declares no reward of the team" in told
    assert refusal("pqn_vdn", COMPETITIVE).endswith("and those of env.name compete; use pqn instead")
    prepare(job("iql", COMPETITIVE))
    assert advice(prepare(job("iql", "unknown"))) == ""


@pytest.mark.parametrize("algorithm", [*PPO, *Q, *DDPG])
def test_a_sum_of_rewards_that_may_be_one_is_pointed_out(algorithm):
    said = "if they all get the same reward, set algorithm.team_reward: mean"
    assert said in advice(prepare(job(algorithm, "unknown", settings={"team_reward": "auto"})))
    for how in ("sum", "mean"):
        assert said not in advice(prepare(job(algorithm, "unknown", settings={"team_reward": how})))
    assert said not in advice(prepare(job(algorithm, settings={"team_reward": "auto"})))


@pytest.mark.parametrize(("algorithm", "instead"), [("qmix", "vdn"), ("mappo", "ippo")])
def test_a_global_state_that_is_not_there_is_missed(algorithm, instead):
    said = refusal(algorithm, "stateless")
    assert said == (
        f"algorithm.name {algorithm} needs a global state, and env.name gives none (state_size is 0); "
        f"use {instead} instead"
    )


@pytest.mark.parametrize("algorithm", Q)
def test_memory_learns_from_whole_episodes(algorithm):
    gru = {"recurrent": "gru"}
    said = refusal(algorithm, model=gru)
    assert "set algorithm.replay.unit: episodes, or choose a net without" in said
    prepare(job(algorithm, model=gru, settings={"replay": {"unit": "episodes"}, "batch": 32}))


@pytest.mark.parametrize("algorithm", DDPG)
def test_memory_that_an_algorithm_has_not_is_refused(algorithm):
    said = refusal(algorithm, model={"recurrent": "gru"})
    assert said.startswith(f"{algorithm} trains no nets with memory, as a critic's would depend on all past")
    assert "and model asks for gru nets; choose others" in said


@pytest.mark.parametrize("algorithm", DDPG)
@pytest.mark.parametrize(("settings", "steps"), [({"updates": 4, "batch": 16}, 4), ({}, 10)])
def test_policies_that_do_not_learn_in_every_round_are_refused(algorithm, settings, steps):
    round_of_200 = {"actors": {"count": 1, "envs": 8, "steps": 25}}
    prepare(job(algorithm, settings=settings | {"policy_every": steps}, **round_of_200))
    assert refusal(algorithm, settings=settings | {"policy_every": steps + 1}, **round_of_200) == (
        f"algorithm.policy_every {steps + 1} is more than the {steps} gradient steps of a round: policies would not "
        "learn in every round; lower algorithm.policy_every, or raise algorithm.updates"
    )


@pytest.mark.parametrize("algorithm", PPO)
def test_segments_are_not_cut_for_minibatches(algorithm):
    few = {"actors": {"count": 1, "envs": 2, "steps": 25}, "settings": {"minibatches": 8}}
    prepare(job(algorithm, **few))
    assert refusal(algorithm, model={"recurrent": "gru"}, **few).startswith("algorithm.minibatches is 8, but a policy")


@pytest.mark.parametrize("algorithm", [*Q, *DDPG])
def test_a_replay_that_does_not_fit_a_learner_is_refused_with_what_would(algorithm):
    said = refusal(algorithm, settings={"replay": {"capacity": 50_000_000}})
    assert said.startswith("algorithm.replay.capacity 50,000,000 takes ")
    assert "and functions.learner.memory_mb gives it 2,048; lower replay.capacity to " in said
    fits = int(said.partition("replay.capacity to ")[2].partition(" at most")[0].replace(",", ""))
    prepare(job(algorithm, settings={"replay": {"capacity": fits - 100}}))


def test_one_learner_of_a_team_holds_the_frames_of_all_its_classes():
    """With a learner for each class, its part of the team's replay fits; one learner of both does not have room."""
    capacity = {"replay": {"capacity": 9_000_000}}
    prepare(job("iddpg", COMPETITIVE, settings=capacity, functions={"learner": {"memory_mb": 1024}}))
    assert "in the learner of team" in refusal(
        "maddpg", COMPETITIVE, settings=capacity, functions={"learner": {"memory_mb": 1024}}
    )


def test_a_replay_with_the_global_state_takes_more():
    """18 numbers of 4 bytes for each of 3 agents, and all 54 again: one in capacity that VDN has room for."""
    capacity = {"replay": {"capacity": 8_000_000}}
    prepare(job("vdn", settings=capacity))
    assert "MiB in the learner of agent" in refusal("qmix", settings=capacity)


@pytest.mark.parametrize("algorithm", [*Q, *DDPG])
def test_a_replay_of_less_than_the_warmup_is_refused(algorithm):
    settings = {"replay": {"capacity": 1000}, "warmup": 970, "batch": 60}
    said = refusal(algorithm, settings=settings, actors={"steps": 25})
    assert said.startswith("algorithm.replay.capacity 1000 holds 950 env steps of segments of actors.steps 25")
    prepare(job(algorithm, settings=settings | {"warmup": 950}))


@pytest.mark.parametrize("algorithm", [*Q, *DDPG])
def test_odd_settings_are_told(algorithm):
    never = advice(prepare(job(algorithm, stop={"rounds": 2}, settings={"warmup": 10_000})))
    assert never == (
        "algorithm.warmup is 10000 env steps, and the job samples at most 8000: it would end before its first "
        "gradient step"
    )
    small = {"actors": {"count": 1, "envs": 4, "steps": 25}, "settings": {"updates": 40, "batch": 256}}
    told = advice(prepare(job(algorithm, **small, stop={"return": 0.0})))
    assert told.startswith("algorithm.updates: 40 batches a round draw 10,240 samples, 100 are new")
    assert "learned from 102 times" in told


@pytest.mark.parametrize("algorithm", [*Q, *DDPG])
def test_a_round_has_a_gradient_step_for_each_20_of_its_env_steps_unless_told_otherwise(algorithm):
    usual, told = (prepare(job(algorithm, settings=each)).spec.algorithm for each in ({}, {"updates": 7, "batch": 64}))
    assert [usual.gradient_steps(sampled) for sampled in (5, 4000, 8000)] == [1, 200, 400]
    assert (usual.batch_size, usual.samples(4000, 25), usual.drawn(25)) == (512, 200 * 512, None)
    assert [told.gradient_steps(sampled) for sampled in (5, 8000)] == [7, 7]
    assert told.samples(4000, 25) == told.drawn(25) == 7 * 64


@pytest.mark.parametrize("algorithm", Q)
def test_batches_of_episodes_are_smaller(algorithm):
    spec = prepare(job(algorithm, settings={"replay": {"unit": "episodes"}})).spec.algorithm
    assert (spec.batch_size, spec.samples(4000, 25)) == (32, 200 * 32 * 25)
