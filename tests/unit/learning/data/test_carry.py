"""Carries as bytes, and lanes that go on from them: equal to the lane that was never interrupted, bit for bit."""

from __future__ import annotations

import hashlib
import zlib

import numpy as np
import pytest

from marless.core.errors import CorruptError, SpecError
from marless.learning.data import carry, rollout
from marless.learning.data.carry import Carry, decode, digest, encode
from marless.learning.data.rollout import Lane
from marless.learning.data.trajectory import TrajectorySchema
from marless.learning.envs.base import EnvSpaces
from marless.learning.envs.games import NoOptions, TwoStep
from marless.learning.envs.mpe.moving import AdversaryOptions, SimpleAdversary, SimpleSpread, SpreadOptions
from marless.learning.envs.synthetic import SyntheticEnv
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.inputs import Inputs
from tests.scripted_env import ScriptedEnv
from tests.unit.learning.data.test_rollout import Highest
from tests.unit.learning.nets.acting_states import state

SMALL = Carry({"env/x": np.arange(6.0).reshape(2, 3), "meter/steps": np.array([1, 2], np.int64)})
BUSY = EnvSpaces(ScriptedEnv().spaces.classes, state_size=2, max_steps=9, masks=True, deaths=True)
ENVS = {
    "spread": lambda: SimpleSpread(SpreadOptions(max_cycles=7), 5),
    "adversary": lambda: SimpleAdversary(AdversaryOptions(max_cycles=7), 5),
    "two_step": lambda: TwoStep(NoOptions(), 5),
    "busy": lambda: SyntheticEnv(BUSY, 5),
}


def policies(env, recurrent="gru", seed=1):
    """With all memory that policies can have."""
    return [
        ActingPolicies.from_states(
            c, [state(c, seed + i, recurrent=recurrent, inputs=Inputs(last_action=True)) for i in range(len(c.agents))]
        )
        for c in env.spaces.classes
    ]


def rolled(lane, env, seed, steps=4):
    trajectory, stats = lane.roll(
        policies(env, seed=seed),
        steps=steps,
        seed=seed,
        with_state=True,
        index=0,
    )
    return {name: array.copy() for name, array in trajectory.arrays.items()}, stats


def same(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def test_bytes_hold_the_arrays_and_equal_carries_give_equal_bytes():
    other_order = Carry(dict(reversed(SMALL.arrays.items())))
    assert encode(SMALL) == encode(other_order)
    assert same(decode(encode(SMALL)).arrays, SMALL.arrays)
    assert digest(encode(SMALL)) == hashlib.sha256(encode(SMALL)).hexdigest()
    assert encode(SMALL) != encode(Carry({**SMALL.arrays, "meter/steps": np.array([1, 3], np.int64)}))


def test_parts_are_named_without_their_prefix():
    found = Carry({"memory/1/hidden": np.ones(1), "memory/10/hidden": np.zeros(1)}).part("memory/1")
    assert {name: array.tolist() for name, array in found.items()} == {"hidden": [1]}


@pytest.mark.parametrize("at", [0, 4, 8, -1])
def test_damaged_bytes_are_refused(at):
    damaged = bytearray(encode(SMALL))
    damaged[at] ^= 1
    with pytest.raises(CorruptError, match="carry: the bytes"):
        decode(bytes(damaged))


def test_bytes_that_are_no_tensors_are_refused():
    body = (2**40).to_bytes(8, "little") + b"{}"
    with pytest.raises(CorruptError, match="not a safetensors file"):
        decode(b"MLC2" + zlib.crc32(body).to_bytes(4, "little") + body)
    with pytest.raises(CorruptError, match="no carry"):
        decode(b"")


def test_carries_have_a_size_limit(monkeypatch):
    data = encode(SMALL)
    monkeypatch.setattr(carry, "MAX_CARRY_BYTES", len(data) - 1)
    with pytest.raises(SpecError, match=r"lower actors.envs"):
        encode(SMALL)
    with pytest.raises(CorruptError, match="are possible"):
        decode(data)


@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_lane_goes_on_elsewhere_as_if_it_had_never_moved(name, rounds):
    env = ENVS[name]()
    lane = Lane(env)
    lane.begin(3)
    for number in range(rounds):
        rolled(lane, env, number)
    data = encode(lane.save())
    elsewhere = ENVS[name]()
    moved = Lane(elsewhere)
    moved.load(decode(data))
    assert encode(moved.save()) == data
    for number in range(rounds, rounds + 3):
        here, there = rolled(lane, env, number), rolled(moved, elsewhere, number)
        assert same(here[0], there[0]) and here[1] == there[1]
    assert encode(moved.save()) == encode(lane.save())


def test_rolls_in_pieces_give_what_one_roll_gives():
    """With actions that need no random numbers, only the cuts at the ends of the rolls differ."""
    whole, _ = rollout.rollout(ScriptedEnv(), [Highest()], steps=8, seed=3, with_state=True)
    lane = Lane(ScriptedEnv())
    lane.begin(3)
    parts = [lane.roll([Highest()], steps=n, seed=9, with_state=True, index=0) for n in (1, 4, 3)]
    for name in ("obs/0", "action/0", "reward/0", "terminated/0", "alive/0", "mask/0", "state"):
        assert np.array_equal(np.concatenate([part[name] for part, _ in parts]), whole[name])
    # copy 0 lasts 3 steps, copy 1 lasts 2: after 1 step both are running, after 5 both are
    assert [part["resumed"].tolist() for part, _ in parts] == [[False, False], [True, True], [True, True]]


def test_returns_and_lengths_of_episodes_are_whole_across_cuts():
    lane = Lane(ScriptedEnv())
    lane.begin(3)
    one, two = (lane.roll([Highest()], steps=n, seed=9, with_state=False)[1] for n in (1, 2))
    assert (one.env_steps, one.episodes, one.episode_steps) == (2, 0, 0)
    # copy 0 ends after 3 steps: a earned 10 + 11 + 12; copy 1 after 2: a earned 10 + 11, b 20
    assert (two.env_steps, two.episodes, two.episode_steps) == (4, 2, 5)
    assert two.return_sum == {"a": 33 + 21, "b": 63 + 20}


def test_a_fresh_rollout_is_a_lane_that_has_just_begun():
    env = ENVS["spread"]()
    lane = Lane(env)
    lane.begin(8)
    rolled(lane, env, 5)
    lane.begin(4)
    again, stats = lane.roll(policies(env), steps=6, seed=4, with_state=True)
    alone, expected = rollout.rollout(ENVS["spread"](), policies(env), steps=6, seed=4, with_state=True)
    assert same(again.arrays, alone.arrays) and stats == expected


def test_memory_at_the_first_step_is_what_the_policies_had_at_the_last():
    env = ENVS["busy"]()
    lane = Lane(env)
    lane.begin(3)
    first, _ = rolled(lane, env, 0)
    assert not first["memory/0"].any() and not first["resumed"].any()
    begun = 0
    for number in range(1, 12):
        hidden_NHB = lane.save().arrays["memory/0/hidden"]
        second, _ = rolled(lane, env, number)
        hidden, last = np.split(second["memory/0"], [6], axis=2)
        assert np.array_equal(hidden, hidden_NHB.transpose(0, 2, 1))
        assert hidden[:, second["resumed"]].all()
        assert (last[:, second["resumed"]].sum(axis=2) == 1).all()  # one action of three
        assert not second["memory/0"][:, ~second["resumed"]].any()
        begun += int((~second["resumed"]).sum())
    assert begun
    units = tuple(second[f"memory/{k}"].shape[2] for k in range(len(env.spaces.classes)))
    assert units == tuple(6 + c.action.n for c in env.spaces.classes)
    TrajectorySchema(env.spaces, 4, 5, True, carried=True, memory=units).check(rollout.Trajectory(second))


def test_a_lane_in_an_unknown_state_refuses_to_go_on():
    lane = Lane(ENVS["spread"]())
    with pytest.raises(SpecError, match="begin or load"):
        lane.save()
    lane.begin(1)
    with pytest.raises(ValueError, match="shorter"):
        lane.roll([], steps=1, seed=1, with_state=False)
    with pytest.raises(SpecError, match="begin or load"):
        lane.save()


def test_environments_without_a_save_are_refused_with_an_advice():
    lane = Lane(ScriptedEnv())
    lane.begin(1)
    with pytest.raises(SpecError, match=r"set actors.episodes: fresh"):
        lane.save()


def test_an_environment_that_shows_something_else_after_loading_is_found():
    class Drifting(SyntheticEnv):
        def load(self, arrays):
            frame = super().load(arrays)
            frame.obs[0][0, 0] += 1e-6
            return frame

    lane = Lane(SyntheticEnv(BUSY, 5))
    lane.begin(1)
    saved = lane.save()
    with pytest.raises(SpecError, match=r"not deterministic .* set actors.episodes: fresh"):
        Lane(Drifting(BUSY, 5)).load(saved)


def changed(arrays, name, value):
    return Carry({**arrays, name: value} if value is not None else {n: a for n, a in arrays.items() if n != name})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("env/position", None, "position is missing"),
        ("env/position", np.zeros((6, 2, 4)), "position is float64"),
        ("env/position", np.full((6, 2, 5), np.nan), "NaN"),
        ("env/steps", np.full(5, 7, np.int64), "steps holds numbers outside 0 to 6"),
        ("env/random", np.zeros(6, np.uint64), "random state"),
        ("meter/return", np.zeros((2, 5)), "return is float64"),
        ("meter/steps", None, "steps is missing"),
        ("frame/check", None, "frame/check"),
    ],
)
def test_carries_of_other_lanes_are_refused(name, value, message):
    lane = Lane(ENVS["spread"]())
    lane.begin(1)
    with pytest.raises(CorruptError, match=message):
        lane.load(changed(lane.save().arrays, name, value))


@pytest.mark.parametrize("shape", [(3, 5, 5), (3, 6, 4)])
def test_memory_that_does_not_fit_the_policies_is_refused(shape):
    env = ENVS["spread"]()
    lane = Lane(env)
    lane.begin(1)
    rolled(lane, env, 0)
    lane.load(changed(lane.save().arrays, "memory/0/hidden", np.zeros(shape, np.float32)))
    with pytest.raises(CorruptError, match="a memory of"):
        rolled(lane, env, 1)


def test_policies_without_memory_refuse_one():
    env = ENVS["spread"]()
    lane = Lane(env)
    lane.begin(1)
    rolled(lane, env, 0)
    with pytest.raises(CorruptError, match="policies none"):
        lane.roll([Highest()], steps=1, seed=1, with_state=False)
