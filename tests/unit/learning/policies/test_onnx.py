"""Teams in ONNX files: onnxruntime, without marless, does what the team does; and `load_policy` has the team back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import marless
from marless.core.errors import CorruptError, SpecError
from marless.learning.envs.base import AgentClass, Box, Discrete, Entities, EnvSpaces
from marless.learning.nets import acting_heads as heads
from marless.learning.nets import kinds
from marless.learning.nets.acting import ActingState, description
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.layout import layout
from marless.learning.nets.model import ModelSpec
from marless.learning.policies.policy import Origin, Policy
from marless.learning.policies.team import Team

COPIES = 5
MOVES, ARM = Discrete(4), Box((-2.0, 0.0), (3.0, 0.5))
HALF = Box((-2.0, -np.inf, -np.inf, 1.0), (3.0, 0.5, np.inf, np.inf))
PLAIN = Inputs()
BOTH = Inputs(last_action=True, known=("a", "b"))


def state(
    agents: AgentClass,
    model: ModelSpec,
    acts: str = heads.STOCHASTIC,
    inputs: Inputs = PLAIN,
    seed: int = 0,
    values: int = 0,
) -> ActingState:
    """A policy state as learners make it, with weights that choose all actions."""
    rng = np.random.default_rng(seed)
    outputs, free = heads.outputs_of(agents.action, acts), heads.free_parameters(agents.action, acts)
    made = layout(inputs.shape(agents), model, outputs + values, free)
    flat_D = made.initial(rng, 1.0) + rng.normal(scale=0.1, size=made.size).astype(np.float32)
    arrays: dict[str, np.ndarray] = {**made.to_arrays("policy", flat_D), **made.acting_arrays("policy")}
    if acts not in {heads.STOCHASTIC, heads.SQUASHED_NORMAL, heads.BETA}:
        arrays["exploration"] = np.full(2 if acts == heads.DETERMINISTIC_OR_RANDOM else 1, 0.25, np.float32)
    if model.normalise_observations:
        seen = rng.uniform(1, 2, (agents.obs_size, 3))
        arrays["policy.seen"] = np.stack([np.full(agents.obs_size, 9.0), 9 * seen[:, 1], 90 * seen[:, 2]], axis=1)
    return ActingState(arrays, description(agents, model, acts=acts, inputs=inputs, values=values))


def team_of(*states: ActingState, names: tuple[tuple[str, ...], ...] = (("a", "b"),)) -> Team:
    return Team.of(
        [
            Policy(name=f"p{i}", agents=agents, version=1, state=each)
            for i, (agents, each) in enumerate(zip(names, states, strict=True))
        ],
        Origin(job="job-1", env="mpe/simple_spread"),
    )


def saved(team: Team, place: Path) -> onnxruntime.InferenceSession:
    team.save(place / "team.onnx")
    return onnxruntime.InferenceSession(place / "team.onnx", providers=["CPUExecutionProvider"])


def played(session, rng: np.random.Generator, agent: int, remembered: dict[str, np.ndarray]) -> tuple[dict, dict]:
    """Random inputs of a session, by name, with what was remembered; and its outputs."""
    given = {}
    for each in session.get_inputs():
        shape = [COPIES if isinstance(length, str) else length for length in each.shape]
        if each.type == "tensor(bool)":
            given[each.name] = rng.random(shape) < 0.6
            given[each.name][:, 0] |= ~given[each.name].any(axis=1)
        elif each.type == "tensor(int64)":
            given[each.name] = np.full(shape, agent)
        elif each.type == "tensor(uint8)":
            given[each.name] = rng.integers(256, size=shape, dtype=np.uint8)
        elif each.name in remembered:
            given[each.name] = remembered[each.name]
        elif each.name == "observation":
            given[each.name] = rng.normal(size=shape).astype(np.float32)
        else:
            given[each.name] = np.zeros(shape, np.float32)
    names = [each.name for each in session.get_outputs()]
    return given, dict(zip(names, session.run(names, given), strict=True))


def check(team: Team, session, agent: str = "b", steps: int = 4) -> None:
    """The graph acts as the team does, step by step of an episode."""
    rng, remembered = np.random.default_rng(1), {}
    for _ in range(steps):
        given, found = played(session, rng, ("a", "b").index(agent), remembered)
        seen = given["observation"].reshape(COPIES, -1)
        masks = {agent: given["mask"]} if "mask" in given else None
        expected = team.act({agent: seen}, masks=masks)[agent]
        if found["action"].dtype == np.int64:
            np.testing.assert_array_equal(found["action"], expected)
        else:
            np.testing.assert_allclose(found["action"], expected, rtol=1e-4, atol=1e-5)
        remembered = {name.removeprefix("next_"): each for name, each in found.items() if name.startswith("next_")}


@pytest.mark.parametrize(
    "model",
    [
        ModelSpec(hidden=(16, 8)),
        ModelSpec(hidden=(16,), activation="relu", normalise_observations=True),
        ModelSpec(hidden=(16,), normalise_observations=True, observation_clip=None),
        ModelSpec(hidden=(16, 8), layer_norm=True),
        ModelSpec(hidden=(16, 8), recurrent="gru"),
        ModelSpec(hidden=(16, 8), recurrent="lstm"),
    ],
    ids=lambda model: f"{model.kind}-{model.activation}-{model.normalise_observations}-{model.observation_clip}",
)
@pytest.mark.parametrize("inputs", [Inputs(), BOTH], ids=["plain", "last-action-and-id"])
@pytest.mark.parametrize("action", [MOVES, ARM], ids=["discrete", "box"])
def test_onnxruntime_acts_as_the_team(model, inputs, action, tmp_path):
    agents = AgentClass("p0", ("a", "b"), 6, action)
    team = team_of(state(agents, model, inputs=inputs))
    check(team, saved(team, tmp_path))


@pytest.mark.parametrize("action", [MOVES, ARM], ids=["discrete", "box"])
def test_the_value_of_a_shared_torso_is_left_out(action, tmp_path):
    agents = AgentClass("p0", ("a", "b"), 6, action)
    team = team_of(state(agents, ModelSpec(hidden=(16, 8)), values=1))
    check(team, saved(team, tmp_path))


@pytest.mark.parametrize("box", [ARM, HALF], ids=["bounded", "some-bounds"])
@pytest.mark.parametrize(
    "acts",
    [
        *(heads.STOCHASTIC, heads.SQUASHED_NORMAL, heads.BETA),
        *(heads.DETERMINISTIC, heads.DETERMINISTIC_OR_RANDOM, heads.SQUASHED),
    ],
)
def test_each_way_of_continuous_actions(acts, box, tmp_path):
    agents = AgentClass("p0", ("a", "b"), 6, box)
    team = team_of(state(agents, ModelSpec(hidden=(16,)), acts, Inputs(last_action=True)))
    session = saved(team, tmp_path)
    check(team, session)
    stochastic = acts in {heads.STOCHASTIC, heads.SQUASHED_NORMAL, heads.BETA}
    assert {"mean", "log_std"} <= {each.name for each in session.get_outputs()} or not stochastic


def test_log_deviations_and_scores_are_those_of_the_policy(tmp_path):
    model = ModelSpec(hidden=(16,))
    for acts, action, name in ((heads.BETA, ARM, "log_std"), (heads.STOCHASTIC, ARM, "log_std")):
        agents = AgentClass("p0", ("a", "b"), 6, action)
        team = team_of(state(agents, model, acts))
        given, found = played(saved(team, tmp_path), np.random.default_rng(0), 0, {})
        (player,) = team.acting(_spaces(agents))
        _, expected = player.outputs(np.stack([given["observation"]] * 2), None)
        np.testing.assert_allclose(found[name], np.broadcast_to(expected[0], found[name].shape), rtol=1e-4, atol=1e-5)
    agents = AgentClass("p0", ("a", "b"), 6, MOVES)
    team = team_of(state(agents, model, heads.EPSILON_GREEDY))
    given, found = played(saved(team, tmp_path), np.random.default_rng(0), 0, {})
    (player,) = team.acting(_spaces(agents))
    expected, _ = player.outputs(np.stack([given["observation"]] * 2), np.stack([given["mask"]] * 2))
    np.testing.assert_allclose(found["values"], expected[0], rtol=1e-4, atol=1e-5)
    assert (found["values"][~given["mask"]] == heads.ILLEGAL_LOGIT).all()


def _spaces(agents: AgentClass) -> EnvSpaces:
    return EnvSpaces((agents,), 0, None)


@pytest.mark.parametrize("net", ["nature", "impala", "mlp"])
def test_images_are_given_as_bytes(net, tmp_path):
    agents = AgentClass("p0", ("a", "b"), 2 * 40 * 38, MOVES, image=(2, 40, 38))
    team = team_of(state(agents, ModelSpec(net=net, hidden=(16,), activation="relu"), inputs=BOTH))
    session = saved(team, tmp_path)
    (seen,) = (each for each in session.get_inputs() if each.name == "observation")
    assert (seen.type, seen.shape) == ("tensor(uint8)", ["batch", 2, 40, 38])
    check(team, session, steps=2)


def test_the_last_images_are_given_at_once(tmp_path):
    agents = AgentClass("p0", ("a", "b"), 40 * 38, MOVES, image=(1, 40, 38))
    model = ModelSpec(net="nature", hidden=(16,), frames=3)
    team = team_of(state(agents, model, inputs=Inputs(frames=3)))
    session = saved(team, tmp_path)
    images = np.random.default_rng(0).integers(256, size=(5, COPIES, 40, 38), dtype=np.uint8)
    legal = np.ones((COPIES, 4), np.bool_)
    for t, seen in enumerate(images):
        expected = team.act({"a": seen.reshape(COPIES, -1)})["a"]
        stacked = images[[max(0, t - 2), max(0, t - 1), t]].swapaxes(0, 1)
        (found,) = session.run(["action"], {"observation": stacked, "mask": legal})
        np.testing.assert_array_equal(found, expected)


def test_others_in_any_order(tmp_path):
    sorts = (Entities(1, 3, 2), Entities(7, 2, 4))
    agents = AgentClass("p0", ("a", "b"), 17, MOVES, entities=sorts)
    team = team_of(state(agents, ModelSpec(net="entities", hidden=(16, 8)), inputs=BOTH))
    session = saved(team, tmp_path)
    check(team, session)
    given, found = played(session, np.random.default_rng(0), 1, {})
    fewer = given["observation"].copy()
    fewer[:, 3:7] = 0  # two of three are not there
    fewer[0, 1:15] = 0  # and nobody at all
    (logits,) = session.run(["logits"], given | {"observation": fewer})
    team.begin()
    (player,) = team.acting(EnvSpaces((agents,), 0, None))
    expected, _ = player.outputs(np.stack([fewer] * 2), np.stack([given["mask"]] * 2))
    np.testing.assert_allclose(logits, expected[1], rtol=1e-4, atol=1e-5)
    assert not np.allclose(logits, found["logits"])


def test_several_policies_in_one_file_have_names_of_their_own(tmp_path):
    agents = AgentClass("p0", ("a",), 6, MOVES)
    states = [state(agents, ModelSpec(hidden=(8,)), seed=seed) for seed in range(2)]
    team = team_of(*states, names=(("a",), ("b",)))
    session = saved(team, tmp_path)
    inputs = [each.name for each in session.get_inputs()]
    assert inputs == ["p0.observation", "p0.mask", "p1.observation", "p1.mask"]
    seen = np.random.default_rng(0).normal(size=(COPIES, 6)).astype(np.float32)
    given = {name: np.ones((COPIES, 4), np.bool_) if "mask" in name else seen for name in inputs}
    first, second = session.run(["p0.action", "p1.action"], given)
    expected = team.act({"a": seen, "b": seen})
    np.testing.assert_array_equal(first, expected["a"])
    np.testing.assert_array_equal(second, expected["b"])


def test_a_team_comes_back_bit_for_bit(tmp_path):
    agents = AgentClass("p0", ("a", "b"), 6, ARM)
    model = ModelSpec(hidden=(8, 4), recurrent="gru", normalise_observations=True)
    for acts in (heads.STOCHASTIC, heads.SQUASHED):
        team = team_of(state(agents, model, acts, BOTH))
        team.save(tmp_path / "team.onnx", {"job": "job-1"})
        held = marless.load_policy(tmp_path / "team.onnx")
        assert (held.origin, held.card) == (team.origin, {"job": "job-1"})
        mine, its = team.policies["p0"], held.policies["p0"]
        assert (its.agents, its.version, its.state.metadata) == (mine.agents, mine.version, mine.state.metadata)
        assert its.state.acting.keys() == mine.state.acting.keys()
        for name, array in mine.state.acting.items():
            np.testing.assert_array_equal(its.state.acting[name], array, strict=True)
        team.export("p0", tmp_path / "p0.onnx")
        assert marless.load_policy(tmp_path / "p0.onnx").agents == ("a", "b")


def test_what_is_no_team_in_onnx_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "team.onnx"
    path.write_bytes(b"\x08\x09 no graph")
    with pytest.raises((CorruptError, SpecError), match=r"team\.onnx"):
        marless.load_policy(path)
    agents = AgentClass("p0", ("a", "b"), 6, MOVES)
    team_of(state(agents, ModelSpec(hidden=(8,)))).save(path)
    data = path.read_bytes()
    at = data.index(b"p0")
    for broken in (data[: len(data) // 2], data[:at] + b"q" + data[at + 1 :]):
        path.write_bytes(broken)
        with pytest.raises((CorruptError, SpecError), match=r"team\.onnx") as caught:
            marless.load_policy(path)
        assert "\n" not in str(caught.value)


class Peculiar(kinds.Perceptron):
    """A perceptron with an operation that only NumPy and torch have."""

    def step(self, ops, layers, x, memory):
        return layers[-1](x.round() if self.method else np.sinh(x)), memory


@pytest.mark.parametrize("method", [True, False])
def test_a_net_without_an_onnx_form_says_which_operation(method, monkeypatch, tmp_path):
    agents = AgentClass("p0", ("a", "b"), 6, MOVES)
    team = team_of(state(agents, ModelSpec(hidden=(8,))))
    peculiar = Peculiar()
    peculiar.method = method
    monkeypatch.setitem(kinds.OURS, "mlp", peculiar)
    with pytest.raises(SpecError, match=r"net mlp.*(round|sinh|ufunc)"):
        team.save(tmp_path / "team.onnx")
    assert not (tmp_path / "team.onnx").exists()


def test_without_the_package_one_sentence_says_what_to_install(tmp_path):
    code = """
import sys
sys.modules["onnx"] = None
import marless
from marless.core.errors import SpecError
try:
    marless.load_policy("team.onnx")
except SpecError as error:
    print(error)
"""
    agents = AgentClass("p0", ("a", "b"), 6, MOVES)
    team_of(state(agents, ModelSpec(hidden=(8,)))).save(tmp_path / "team.onnx")
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "pip install 'marless[onnx]'" in run.stdout
