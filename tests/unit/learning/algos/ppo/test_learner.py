"""What a learner promises beside right numbers: determinism, states, stacks, groups that change, clear refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from marless.core.errors import CorruptError, NotFoundError, SpecError
from marless.core.group import Group
from marless.core.state import PolicyState
from marless.learning.algos import registry
from marless.learning.algos.algorithm import Setting
from marless.learning.algos.learner import Learner, LearnerContext, Scope
from marless.learning.algos.ppo.learner import PPOLearner
from marless.learning.algos.training import advantages
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces
from marless.learning.nets import kernels, serial
from marless.learning.nets.model import ModelSpec
from tests.unit.learning.algos import rounds

WALKERS = EnvSpaces((AgentClass("walker", rounds.AGENTS, 5, Discrete(4)),), state_size=6, max_steps=None)
RELU = ModelSpec(hidden=(8,), activation="relu")
SHARED = (Group("all", rounds.AGENTS),)
MLP, GRU = rounds.MODEL, rounds.MODEL.model_copy(update={"recurrent": "gru"})
CRITICS = pytest.mark.parametrize(
    ("name", "settings", "model"),
    [
        pytest.param("ippo", {}, MLP, id="mlp-own"),
        pytest.param("mappo", {}, GRU, id="gru-joint"),
        pytest.param("mappo", {"critic": "per_agent"}, MLP, id="mlp-state"),
        pytest.param("ippo", {}, GRU, id="gru-own", marks=pytest.mark.slow),
        pytest.param("mappo", {}, MLP, id="mlp-joint", marks=pytest.mark.slow),
        pytest.param("mappo", {"critic": "per_agent"}, GRU, id="gru-state", marks=pytest.mark.slow),
    ],
)
"""Every critic, and nets with and without memory; the slow ones pair them the other way."""


def _states(learner: Learner, groups: Sequence[Group]) -> dict[str, dict[str, bytes]]:
    return {name: rounds.flat(learner.state(name)) for name in learner.names(groups)}


def _two_rounds(learner: Learner, groups: Sequence[Group], spaces: EnvSpaces = rounds.DISCRETE) -> None:
    for number in range(2):
        learner.update(rounds.inputs(groups, [rounds.trajectory(spaces, 7 + number)], number))


CONTINUE = """
import sys
from pathlib import Path
from marless.learning.nets import kernels, serial
from tests.unit.learning.algos import rounds
for folder, name, recurrent in zip(map(Path, sys.argv[1::3]), sys.argv[2::3], sys.argv[3::3]):
    model = rounds.MODEL.model_copy(update={"recurrent": recurrent})
    learner = rounds.learner(name, rounds.DISCRETE, rounds.INDEPENDENT, seed=99, model=model)
    for state in learner.names(rounds.INDEPENDENT):
        parts = [(folder / f"{state}.{part}").read_bytes() for part in ("acting", "learning")]
        learner.load(state, serial.decode(*parts))
    learner.update(rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(rounds.DISCRETE, 8)], 1))
    for state in learner.names(rounds.INDEPENDENT):
        (folder / f"{state}.after").write_bytes(b"".join(serial.encode(learner.state(state))))
"""


def test_another_process_continues_bit_for_bit(tmp_path: Path) -> None:
    learners = {}
    for name, model in (("ippo", MLP), ("mappo", GRU)):
        learner = learners[name] = rounds.learner(name, rounds.DISCRETE, rounds.INDEPENDENT, model=model)
        learner.update(rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(rounds.DISCRETE, 7)], 0))
        (tmp_path / name).mkdir()
        for state in learner.names(rounds.INDEPENDENT):
            for part, data in zip(("acting", "learning"), serial.encode(learner.state(state)), strict=True):
                (tmp_path / name / f"{state}.{part}").write_bytes(data)
    given = [str(tmp_path / "ippo"), "ippo", "none", str(tmp_path / "mappo"), "mappo", "gru"]
    subprocess.run([sys.executable, "-c", CONTINUE, *given], check=True)
    for name, learner in learners.items():
        learner.update(rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(rounds.DISCRETE, 8)], 1))
        for state in learner.names(rounds.INDEPENDENT):
            after = (tmp_path / name / f"{state}.after").read_bytes()
            assert after == b"".join(serial.encode(learner.state(state)))


@CRITICS
def test_the_number_of_threads_changes_nothing(
    name: str, settings: dict[str, object], model: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = []
    for threads in (1, 2, 8):
        monkeypatch.setattr(torch, "get_num_interop_threads", lambda threads=threads: threads)
        learner = rounds.learner(name, rounds.DISCRETE, rounds.INDEPENDENT, model=model, **settings)
        _two_rounds(learner, rounds.INDEPENDENT)
        outcomes.append(_states(learner, rounds.INDEPENDENT))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_round_seed_and_actor_order_matter() -> None:
    trajectories = [rounds.trajectory(WALKERS, seed) for seed in (1, 2)]
    outcomes = []
    for number, given in ((0, trajectories), (1, trajectories), (0, trajectories[::-1])):
        learner = rounds.learner("ippo", WALKERS, rounds.INDEPENDENT)
        learner.update(rounds.inputs(rounds.INDEPENDENT, given, number))
        outcomes.append(_states(learner, rounds.INDEPENDENT)["a"]["policy.0.weight"])
    assert len(set(outcomes)) == 3


def _alone(trajectory: Trajectory, agent: int) -> Trajectory:
    shared = {"cut", "boot_index", "state", "boot_state"}
    axes = {name: None if name in shared else 0 if name == "boot_obs/0" else 1 for name in trajectory.arrays}
    return Trajectory(
        {
            name: array if axes[name] is None else array.take([agent], axis=axes[name])
            for name, array in trajectory.arrays.items()
        }
    )


def test_stacked_policies_learn_what_they_learn_alone() -> None:
    stacked = rounds.learner("ippo", WALKERS, rounds.INDEPENDENT)
    _two_rounds(stacked, rounds.INDEPENDENT, WALKERS)
    for i, agent in enumerate(rounds.AGENTS):
        spaces = EnvSpaces((AgentClass("walker", (agent,), 5, Discrete(4)),), state_size=6, max_steps=None)
        config = registry.algorithm("ippo").config_type.model_validate({"name": "ippo"})
        alone = registry.algorithm("ippo").learner(
            config, LearnerContext(rounds.MODEL, spaces, Scope(0, (0,), "walker"), "cpu")
        )
        alone.load(agent, alone.initial(agent, 0))
        groups = (Group(agent, (agent,)),)
        for number in range(2):
            alone.update(rounds.inputs(groups, [_alone(rounds.trajectory(WALKERS, 7 + number), i)], number))
        for name, array in alone.state(agent).acting.items():
            np.testing.assert_allclose(stacked.state(agent).acting[name], array, rtol=1e-5, atol=1e-6)


@CRITICS
def test_states_round_trip_and_are_copies(name: str, settings: dict[str, object], model: ModelSpec) -> None:
    groups = (Group("x", ("a", "c")), Group("y", ("b", "d")))
    learner = rounds.learner(name, rounds.DISCRETE, groups, model=model, **settings)
    _two_rounds(learner, groups)
    kept = {state: learner.state(state) for state in learner.names(groups)}
    before = {state: rounds.flat(held) for state, held in kept.items()}
    other = rounds.learner(name, rounds.DISCRETE, groups, seed=5, model=model, **settings)
    for state, held in kept.items():
        other.load(state, held)
    assert _states(other, groups) == before
    _two_rounds(learner, groups)
    assert {state: rounds.flat(held) for state, held in kept.items()} == before
    assert kept["x"].learning["policy.count"] == 2 * 4 * 4


def test_initial_states_depend_on_name_and_seed_alone() -> None:
    first = rounds.learner("mappo", rounds.DISCRETE, SHARED)
    second = rounds.learner("mappo", rounds.DISCRETE, rounds.INDEPENDENT)
    assert rounds.flat(first.initial("b", 3)) == rounds.flat(second.initial("b", 3))
    assert rounds.flat(first.initial("b", 3)) != rounds.flat(first.initial("b", 4))
    assert rounds.flat(first.initial("b", 3)) != rounds.flat(first.initial("c", 3))
    assert first.names(SHARED) == ("all", "critic.walker")
    joint = first.initial("critic.walker", 3)
    assert not joint.acting
    assert joint.learning["critic.2.weight"].shape == (4, 8)


def _counted(state: PolicyState) -> int:
    return int(state.learning["policy.count"])


def test_merged_and_split_policies_start_where_they_are_told() -> None:
    trajectories = [rounds.trajectory(WALKERS, 1)]
    learner = rounds.learner("ippo", WALKERS, rounds.INDEPENDENT, lr=0.0, value_normalisation=False)
    learner.update(rounds.inputs(rounds.INDEPENDENT, trajectories))
    weights = {agent: learner.state(agent).acting["policy.0.weight"] for agent in rounds.AGENTS}
    moments = {agent: learner.state(agent).learning["policy.first"] for agent in rounds.AGENTS}
    # a and b swap, c and d merge into c, from d: every source is what it was before the round
    merged = (Group("a", ("a",), "b"), Group("b", ("b",), "a"), Group("c", ("c", "d"), "d"))
    learner.update(rounds.inputs(merged, trajectories, 1))
    for policy, source in (("a", "b"), ("b", "a"), ("c", "d")):
        np.testing.assert_array_equal(learner.state(policy).acting["policy.0.weight"], weights[source])
        assert _counted(learner.state(policy)) == 32
    split = (Group("a", ("a",)), Group("b", ("b",)), Group("c", ("c",)), Group("d", ("d",), "c"))
    merged_moments = learner.state("c").learning["policy.first"]
    assert not np.array_equal(merged_moments, moments["d"])
    learner.update(rounds.inputs(split, trajectories, 2))
    np.testing.assert_array_equal(learner.state("d").acting["policy.0.weight"], weights["d"])
    assert _counted(learner.state("d")) == 48


def test_a_shared_policy_learns_from_all_of_its_members() -> None:
    calm, changed = rounds.trajectory(WALKERS, 1), rounds.trajectory(WALKERS, 1)
    changed.arrays["reward/0"][:, 3] += np.arange(6)[:, None]
    outcomes = []
    for trajectory in (calm, changed):
        groups = (Group("x", ("a", "d")), Group("y", ("b", "c")))
        learner = rounds.learner("ippo", WALKERS, groups)
        learner.update(rounds.inputs(groups, [trajectory]))
        outcomes.append(_states(learner, groups))
    assert outcomes[0]["x"] != outcomes[1]["x"]
    assert outcomes[0]["y"] == outcomes[1]["y"]


@CRITICS
def test_nothing_is_learned_from_the_dead(name: str, settings: dict[str, object], model: ModelSpec) -> None:
    outcomes = []
    for noise in (0.0, 1.0):
        trajectory = rounds.trajectory(rounds.DISCRETE, 1)
        trajectory.arrays["cut"][:-1] = False
        trajectory.arrays["terminated/1"][2, 0, 0] = True  # agent a leaves copy 0
        trajectory.arrays["alive/1"][:] = True
        trajectory.arrays["alive/1"][3:, 0, 0] = False
        trajectory.arrays["boot_index"] = np.array([25, 26, 27, 28, 29], np.int32)
        rng = np.random.default_rng(0)
        for array, rows in (("boot_obs/1", 4), ("boot_state", 5)):
            shape = trajectory.arrays[array].shape
            trajectory.arrays[array] = rng.normal(size=(4, 5, 5) if rows == 4 else (5, shape[1])).astype(np.float32)
        for array in ("obs/1", "log_prob/1", "reward/1"):
            trajectory.arrays[array][3:, 0, 0] += np.float32(noise)
        learner = rounds.learner(name, rounds.DISCRETE, rounds.INDEPENDENT, model=model, **settings)
        learner.update(rounds.inputs(rounds.INDEPENDENT, [trajectory]))
        outcomes.append(_states(learner, rounds.INDEPENDENT))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(("name", "settings"), [("ippo", {}), ("mappo", {}), ("mappo", {"critic": "per_agent"})])
def test_reports(name: str, settings: dict[str, object]) -> None:
    groups = (Group("x", ("a", "c")), Group("y", ("b",)), Group("z", ("d",)))
    learner = rounds.learner(name, rounds.DISCRETE, groups, **settings)
    output = learner.update(rounds.inputs(groups, [rounds.trajectory(rounds.DISCRETE, 1)]))
    judged = ["critic.walker"] if name == "mappo" and not settings else ["x", "y", "z"]
    assert set(output.metrics) == {"x", "y", "z", *judged}
    for policy in ("x", "y", "z"):
        assert {"policy_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm"} <= output.metrics[policy].keys()
    for critic in judged:
        assert {"value_loss", "explained_variance", "critic_grad_norm"} <= output.metrics[critic].keys()
    assert all(np.isfinite(number) for metrics in output.metrics.values() for number in metrics.values())
    ran = [(run.function, run.name) for run in output.runs]
    assert sorted(ran) == sorted(
        [("post_process", "walker"), *(("policy", p) for p in "xyz"), *(("critic", c) for c in judged)]
    )
    assert all(run.vcpu_s > 0 and run.end_s > run.start_s for run in output.runs)


def test_units_that_no_sample_turns_on_are_counted() -> None:
    """By the biases of the first layer: of eight units, b has six that are always off, and c's critic has all."""
    learner = rounds.learner("ippo", rounds.DISCRETE, rounds.INDEPENDENT, model=RELU, epochs=2, minibatches=2)
    bias = {name: np.full(8, 100.0, np.float32) for name in rounds.AGENTS}
    bias["b"][:6] = -100.0
    for name in rounds.AGENTS:
        state = learner.initial(name, 0)
        acting = dict(state.acting) | {"policy.0.bias": bias[name]}
        critic = np.full(8, -100.0 if name == "c" else 100.0, np.float32)
        learner.load(name, replace(state, acting=acting, learning=dict(state.learning) | {"critic.0.bias": critic}))
    output = learner.update(rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(rounds.DISCRETE, 7)]))
    found = {name: (of["units_off"], of["critic_units_off"]) for name, of in output.metrics.items()}
    assert found == {"a": (0.0, 0.0), "b": (0.75, 0.0), "c": (0.0, 1.0), "d": (0.0, 0.0)}


def test_a_tanh_turns_no_unit_off() -> None:
    learner = rounds.learner("ippo", rounds.DISCRETE, rounds.INDEPENDENT)
    output = learner.update(rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(rounds.DISCRETE, 7)]))
    assert not any("units_off" in name for of in output.metrics.values() for name in of)


def test_critics_learn_returns_of_any_size() -> None:
    """With value normalisation the same game in other units gives the same critics, up to their units."""
    explained = []
    for unit in (1.0, 1000.0):
        trajectory = rounds.trajectory(WALKERS, 1, steps=20, batch=20)
        trajectory.arrays["reward/0"][:] = unit * (5 + trajectory.arrays["obs/0"][..., 0])
        learner = rounds.learner("ippo", WALKERS, SHARED, gamma=0.0, lr=1e-2)
        for number in range(15):
            output = learner.update(rounds.inputs(SHARED, [trajectory], number))
        explained.append(output.metrics["all"]["explained_variance"])
    assert min(explained) > 0.9
    assert explained[0] == pytest.approx(explained[1], abs=0.02)


def test_rescaling_a_critic_leaves_its_values_as_they_were() -> None:
    learner = rounds.learner("ippo", WALKERS, rounds.INDEPENDENT)
    assert isinstance(learner, PPOLearner)
    names = ("a", "b")
    (critics,) = learner._critics.arrange([(names, names)])
    features_PIS = torch.randn(2, 6, 40, generator=torch.Generator().manual_seed(1))
    before = critics.values_of(features_PIS)
    returns = 50 + 10 * torch.randn(2, 1, 40, generator=torch.Generator().manual_seed(2))
    critics.rescale(advantages.batch_moments(returns, torch.full_like(returns, 1 / 40)), decay=0.9, popart=True)
    torch.testing.assert_close(critics.values_of(features_PIS), before, rtol=1e-4, atol=1e-4)
    normalised = critics.normalised(returns)
    assert normalised.mean().item() == pytest.approx(0.0, abs=1e-4)
    assert normalised.std(correction=0).item() == pytest.approx(1.0, abs=0.2)


def test_without_popart_values_move_with_the_returns() -> None:
    """Values v of moments 0 and 1 become 10·v + 50 where the round's returns have mean 50 and deviation 10."""
    learner = rounds.learner("ippo", WALKERS, rounds.INDEPENDENT)
    assert isinstance(learner, PPOLearner)
    (critics,) = learner._critics.arrange([(("a",), ("a",))])
    features_PIS = torch.randn(1, 6, 40, generator=torch.Generator().manual_seed(1))
    before = critics.values_of(features_PIS)
    returns = torch.tensor([[[40.0, 60.0]]])
    critics.rescale(advantages.batch_moments(returns, torch.full_like(returns, 0.5)), decay=0.0, popart=False)
    torch.testing.assert_close(critics.values_of(features_PIS), 10 * before + 50, rtol=1e-4, atol=1e-4)


def test_schedules_are_read_at_the_rounds_env_steps() -> None:
    schedule = {"start": 1e-2, "end": 0.0, "env_steps": 1000}
    learner = rounds.learner("ippo", WALKERS, rounds.INDEPENDENT, lr=schedule, value_normalisation=False)
    trajectories = [rounds.trajectory(WALKERS, 1)]
    before = learner.state("a").acting["policy.0.weight"]
    learner.update(rounds.inputs(rounds.INDEPENDENT, trajectories, 0))
    after = learner.state("a").acting["policy.0.weight"]
    assert not np.array_equal(before, after)
    learner.update(rounds.inputs(rounds.INDEPENDENT, trajectories, 1))  # 1000 env steps: the rate is 0
    np.testing.assert_array_equal(learner.state("a").acting["policy.0.weight"], after)


def test_what_cannot_work_is_refused() -> None:
    learner = rounds.learner("ippo", WALKERS, rounds.INDEPENDENT, minibatches=31)
    trajectories = [rounds.trajectory(WALKERS, 1)]
    with pytest.raises(SpecError, match=r"minibatches is 31, but a policy gets only 30 samples.*actors\.count"):
        learner.update(rounds.inputs(rounds.INDEPENDENT, trajectories))
    with pytest.raises(SpecError, match="exactly once"):
        learner.update(rounds.inputs(rounds.INDEPENDENT[:3], trajectories))
    with pytest.raises(NotFoundError, match="'nobody'"):
        learner.update(rounds.inputs((Group("all", rounds.AGENTS, "nobody"),), trajectories))
    with pytest.raises(CorruptError, match="time steps"):
        short = rounds.trajectory(WALKERS, 1, steps=5)
        learner.update(rounds.inputs(rounds.INDEPENDENT, [*trajectories, short]))


def test_states_that_do_not_fit_are_refused() -> None:
    learner = rounds.learner("ippo", WALKERS, SHARED)
    state = learner.initial("all", 0)
    for damaged, message in (
        (PolicyState(state.acting, state.learning, {"kind": "lstm"}), "this job needs"),
        (PolicyState(state.acting, state.learning, {**state.metadata, "kind": "gru"}), "'gru'.* this job needs"),
        (PolicyState({}, state.learning, state.metadata), r"policy\.0\.weight is missing"),
        (PolicyState(state.acting, {}, state.metadata), "first is missing"),
        (
            PolicyState(state.acting, {**state.learning, "policy.count": np.zeros(2)}, state.metadata),
            r"policy\.count is missing or not of shape \[\]",
        ),
    ):
        with pytest.raises(CorruptError, match=message):
            learner.load("all", damaged)


def test_registry() -> None:
    with pytest.raises(SpecError, match="did you mean 'mappo'"):
        registry.algorithm("mapo")
    mappo = registry.algorithm("mappo")
    stateless = EnvSpaces(WALKERS.classes, state_size=0, max_steps=None)
    setting = Setting(spaces=stateless, model=rounds.MODEL, samples=100, steps=25, memory_bytes=2**30)
    with pytest.raises(SpecError, match=r"mappo.*state_size is 0"):
        mappo.check(mappo.config_type.model_validate({"name": "mappo"}), setting)
    ippo = registry.algorithm("ippo")
    ippo.check(ippo.config_type.model_validate({"name": "ippo"}), setting)


def test_the_operations_for_other_devices_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = []
    for _ in range(2):
        learner = rounds.learner("mappo", rounds.DISCRETE, rounds.INDEPENDENT)
        learner.update(rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(rounds.DISCRETE, 1)]))
        outcomes.append({name: learner.state(name) for name in learner.names(rounds.INDEPENDENT)})
        monkeypatch.setattr(kernels, "_on_host", lambda _: False)
    for name, state in outcomes[0].items():
        for key, array in {**state.acting, **state.learning}.items():
            other = {**outcomes[1][name].acting, **outcomes[1][name].learning}[key]
            np.testing.assert_allclose(other, array, rtol=1e-3, atol=1e-5, err_msg=f"{name} {key}")


def test_minibatches_without_samples_of_an_agent_are_no_part_of_its_metrics() -> None:
    """Agent d lives in one of 30 env steps, so that it has samples in one of 6 minibatches."""
    spaces = replace(WALKERS, deaths=True)
    given = rounds.trajectory(spaces, 3)
    alive = np.ones_like(given["alive/0"])
    alive[:, 3] = False
    alive[0, 3, 0] = True
    learner = rounds.learner("ippo", spaces, rounds.INDEPENDENT, lr=0.0, critic_lr=0.0, minibatches=6)
    metrics = learner.update(
        rounds.inputs(rounds.INDEPENDENT, [Trajectory({**given.arrays, "alive/0": alive})])
    ).metrics
    assert metrics["d"]["entropy"] == pytest.approx(np.log(4), abs=0.01)


def test_rewards_that_never_differ_teach_nothing() -> None:
    """Of one-step episodes: all advantages are 100 − V, so only the entropy bonus moves the policy: to ln 4."""
    given = rounds.trajectory(WALKERS, 3)
    every = {"cut": np.ones_like(given["cut"]), "terminated/0": np.ones_like(given["terminated/0"])}
    arrays = {**given.arrays, **every, "reward/0": np.full_like(given["reward/0"], 100.0)}
    arrays["obs/0"] = np.ones_like(given["obs/0"])
    settings = {"entropy": 0.0, "value_normalisation": False, "lr": 0.01}
    learner = rounds.learner("ippo", WALKERS, rounds.INDEPENDENT, **settings)
    before = learner.state("a").acting["policy.0.weight"].tobytes()
    learner.update(rounds.inputs(rounds.INDEPENDENT, [Trajectory(arrays)]))
    assert learner.state("a").acting["policy.0.weight"].tobytes() == before
