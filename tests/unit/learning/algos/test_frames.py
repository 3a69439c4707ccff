"""Nets that read the last images: actors, learners and replays stack single ones, each as a naive stack does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from marless.learning.algos.off_policy.learner import OffPolicyLearner
from marless.learning.algos.training.table import tabulate
from marless.learning.data.carry import Carry
from marless.learning.data.rollout import Lane
from marless.learning.data.trajectory import Trajectory, TrajectorySchema
from marless.learning.envs.base import BatchedEnv, EnvSpaces, Transition
from marless.learning.envs.synthetic import SyntheticEnv
from marless.learning.nets.acting import ActingPolicies
from tests.unit.learning.algos import rounds
from tests.unit.learning.algos.coming import ComeAndGo
from tests.unit.learning.algos.test_images import CONTINUOUS, DISCRETE, DRAWN, IMAGE, PAIRS, PPO, measured

PIXELS = 24
STEPS = (2, 5, 1, 4)
"""Of rounds that follow each other, some of them shorter than a stack."""
WHITE = np.float32(255)


class Watching(ActingPolicies):
    """Keeps what its nets read."""

    read: list[np.ndarray]

    def _output(self, obs_NBO: np.ndarray) -> np.ndarray:
        found = super()._output(obs_NBO)
        self.read.append(self._obs_NOB.transpose(0, 2, 1).copy())
        return found


class Recorded:
    """An environment whose ends are kept."""

    def __init__(self, env: BatchedEnv) -> None:
        self._env, self.ended = env, list[np.ndarray]()
        self.spaces, self.batch = env.spaces, env.batch
        self.reset, self.close = env.reset, env.close

    def step(self, actions: tuple[np.ndarray, ...]) -> Transition:
        step = self._env.step(actions)
        self.ended.append(step.ended.copy())
        return step


@dataclass(frozen=True)
class Played:
    """Rounds of one lane, what nets read in them, and what a naive stack makes of it, uint8 [T, N, B, F · O]."""

    trajectories: Sequence[Trajectory]
    read: Sequence[np.ndarray]
    stacked: Sequence[np.ndarray]
    boots: Sequence[np.ndarray]
    """[N, K, F · O]."""

    def as_one_image(self, number: int) -> Trajectory:
        """A round as if the environment stacked images itself."""
        arrays = {name: a for name, a in self.trajectories[number].arrays.items() if not name.startswith("before/")}
        return Trajectory({**arrays, "obs/0": self.stacked[number], "boot_obs/0": self.boots[number]})


def played(
    spaces: EnvSpaces, frames: int, *, seed: int, copies: int = 5, carried: bool = True, leaving: bool = True
) -> Played:
    made = SyntheticEnv(spaces, copies)
    env = Recorded(ComeAndGo(made) if leaving else made)
    model = rounds.MODEL.model_copy(update={"frames": frames})
    name = "ippo" if spaces is DISCRETE else "iddpg"
    state = rounds.learner(name, spaces, rounds.INDEPENDENT, model=model).state("a")
    lane, read, trajectories = Lane(env), list[np.ndarray](), list[Trajectory]()
    lane.begin(seed)
    for number, steps in enumerate(STEPS):
        if not carried:
            lane.begin(seed + number)
        policies = Watching.from_states(spaces.classes[0], [state] * 4)
        policies.read = read
        given = {"steps": steps, "seed": number, "with_state": True, "index": 0 if carried else None}
        trajectories.append(lane.roll([policies], **given)[0])
    stacked, boots = _naive(trajectories, env.ended, frames, carried=carried)
    bounds = np.cumsum([0, *STEPS])
    seen = [np.stack(read[a:b]) for a, b in pairwise(bounds)]
    return Played(trajectories, seen, stacked, boots)


def _naive(
    trajectories: Sequence[Trajectory], ended: Sequence[np.ndarray], frames: int, *, carried: bool
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Lists of images of each agent in each copy, which begin anew where an episode does, and where it comes back."""
    agents, copies = trajectories[0]["obs/0"].shape[1:3]
    seen: dict[tuple[int, int], list[np.ndarray]] = {}
    there_before = np.ones((agents, copies), np.bool_)
    stacked, boots, steps = [], [], iter(ended)
    over = np.ones(copies, np.bool_)
    for each in trajectories:
        over |= not carried
        rows, last = [], {}
        for t in range(each.steps):
            there = each.there(0)[t]
            for n, b in np.ndindex(agents, copies):
                if over[b] or (there[n, b] and not there_before[n, b]):
                    seen[n, b] = []
                seen[n, b].append(each["obs/0"][t, n, b])
                last[t, n, b] = _stack(seen[n, b], frames)
            rows.append([[last[t, n, b] for b in range(copies)] for n in range(agents)])
            over, there_before = next(steps), there
        stacked.append(np.array(rows))
        when = [divmod(int(index), copies) for index in each["boot_index"]]
        found = [
            [np.concatenate([last[t, n, b][PIXELS:], each["boot_obs/0"][n, k]]) for k, (t, b) in enumerate(when)]
            for n in range(agents)
        ]
        boots.append(np.array(found, np.uint8).reshape(agents, len(when), frames * PIXELS))
    return stacked, boots


def _stack(seen: Sequence[np.ndarray], frames: int) -> np.ndarray:
    return np.concatenate(([seen[0]] * frames + list(seen))[-frames:])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("frames", [2, 4])
def test_actors_and_learners_read_what_a_naive_stack_holds(frames, seed):
    found = played(DISCRETE, frames, seed=seed, leaving=seed % 2 == 0)
    other = played(DISCRETE, frames, seed=seed + 100, copies=2, leaving=seed % 2 == 0)
    for number in range(len(STEPS)):
        expected = [each.stacked[number] / WHITE for each in (found, other)]
        assert np.array_equal(found.read[number], expected[0])
        table = tabulate([found.trajectories[number], other.trajectories[number]], 0, False, frames)
        read = table.images.scaled(table.obs[:, :-1].transpose(0, 2, 1).astype(np.int64))  # [N, S, F · O]
        assert np.array_equal(read, np.concatenate(expected, axis=2).swapaxes(0, 1).reshape(read.shape))
        boots = table.images.scaled(table.boot_obs[:, :-1].transpose(0, 2, 1).astype(np.int64))
        expected = [each.boots[number] / WHITE for each in (found, other)]
        assert np.array_equal(boots, np.concatenate(expected, axis=1))


JOBS = [
    ("ippo", PPO, {}, DISCRETE),
    ("ippo", PPO, {"recurrent": "gru"}, DISCRETE),
    ("ippo", PPO | {"advantage": "vtrace"}, {"agent_id": True}, DISCRETE),
    ("ippo", PPO, {"net": "impala", "hidden": (4, 8)}, DISCRETE),
    ("mappo", PPO, {}, DISCRETE),
    ("impact", PPO | {"batches": 2}, {}, DISCRETE),
    ("pqn", PPO, {"recurrent": "gru"}, DISCRETE),
    ("pqn_vdn", PPO, {"agent_id": True}, DISCRETE),
    ("iql", DRAWN, {}, DISCRETE),
    ("iql", DRAWN | {"n_step": 3, "last_action": True}, {}, DISCRETE),
    ("iql", DRAWN, {"recurrent": "gru"}, DISCRETE),
    ("vdn", DRAWN | {"replay": {"capacity": 60}}, {"agent_id": True}, DISCRETE),
    ("qmix", DRAWN | {"last_action": True}, {"recurrent": "gru"}, DISCRETE),
    ("iddpg", DRAWN, {}, CONTINUOUS),
    ("maddpg", DRAWN, {}, CONTINUOUS),
]


@pytest.mark.parametrize("carried", [True, False])
@pytest.mark.parametrize(("name", "settings", "model", "spaces"), JOBS)
def test_learners_stack_images_as_an_environment_that_stacks_them(name, settings, model, spaces, carried):
    frames = 3
    found = played(spaces, frames, seed=7, carried=carried, leaving=spaces is DISCRETE)
    made = []
    for each, count in ((spaces, frames), (_whole(spaces, frames), 1)):
        of = rounds.MODEL.model_copy(update={**model, "frames": count})
        made.append(rounds.learner(name, each, PAIRS, model=of, carried=carried, **settings))
    first = rounds.flat(made[0].state("a"))
    for number in (1, 3):
        given = [[found.trajectories[number]], [found.as_one_image(number)]]
        given = [[_with_memory(made[0], each) for each in trajectories] for trajectories in given]
        for learner, trajectories in zip(made, given, strict=True):
            learner.update(rounds.inputs(PAIRS, trajectories, number))
    for state in ("a", "b"):
        assert rounds.flat(made[0].state(state)) == rounds.flat(made[1].state(state))
    assert rounds.flat(made[0].state("a")) != first


def _whole(spaces: EnvSpaces, frames: int) -> EnvSpaces:
    """The spaces of an environment that stacks images itself."""
    channels, height, width = IMAGE
    agents = replace(spaces.classes[0], obs_size=frames * PIXELS, image=(frames * channels, height, width))
    return replace(spaces, classes=(agents,))


@pytest.mark.parametrize("name", ["ippo", "iql", "pqn"])
def test_measurements_stack_images_as_learners_do(name):
    found, outputs = played(DISCRETE, 3, seed=5), []
    for spaces, frames, given in (
        (DISCRETE, 3, found.trajectories[1]),
        (_whole(DISCRETE, 3), 1, found.as_one_image(1)),
    ):
        model = rounds.MODEL.model_copy(update={"frames": frames})
        learner = rounds.learner(name, spaces, rounds.INDEPENDENT, model=model, carried=True)
        inputs = measured(rounds.inputs(rounds.INDEPENDENT, [given] * 3))
        outputs.append(learner.update(inputs))
    ours, theirs = outputs
    assert ours.metrics == theirs.metrics
    assert ours.distances["walker"].any()
    assert np.array_equal(ours.distances["walker"], theirs.distances["walker"])


def _with_memory(learner: object, trajectory: Trajectory) -> Trajectory:
    """With random numbers for the memory that the learner expects of carried episodes."""
    units = learner._batches.schema.memory if isinstance(learner, OffPolicyLearner) else ()
    if not units:
        return trajectory
    shape = (*trajectory["obs/0"].shape[1:3], units[0])
    memory = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    return Trajectory({**trajectory.arrays, "memory/0": memory})


def test_each_image_is_in_a_replay_once():
    found = played(DISCRETE, 4, seed=3)
    model = rounds.MODEL.model_copy(update={"frames": 4})
    learner = rounds.learner("iql", DISCRETE, PAIRS, model=model, carried=True, **DRAWN)
    assert isinstance(learner, OffPolicyLearner)
    for number, each in enumerate(found.trajectories):
        learner.update(rounds.inputs(PAIRS, [each], number))
    replay, source = learner._replay, learner._batches
    ring = replay._stored.ring.rounds
    assert len(ring) == len(STEPS)
    for number, each in enumerate(ring):
        resumed, segments = (
            int(found.trajectories[number]["resumed"].sum()),
            int(found.trajectories[number]["cut"].sum()),
        )
        assert each.frames == 5 * STEPS[number] + segments + 3 * resumed
        assert each.transitions == 5 * STEPS[number]
        k, agents, inputs = source.classes[0]
        read = source._features(k, agents, inputs, each.rows)[:, : 4 * PIXELS]  # [N, F · O, B · T], copy by copy
        expected = found.stacked[number].transpose(1, 3, 2, 0).reshape(read.shape)
        assert np.array_equal(read, expected / WHITE)


def test_a_lane_that_was_saved_goes_on_with_the_images_of_its_episodes():
    def rolled(*, saving: bool) -> list[Mapping[str, np.ndarray]]:
        model = rounds.MODEL.model_copy(update={"frames": 4})
        state = rounds.learner("ippo", DISCRETE, rounds.INDEPENDENT, model=model).state("a")
        lane, found = Lane(SyntheticEnv(DISCRETE, 5)), []
        lane.begin(2)
        for number, steps in enumerate(STEPS):
            if saving and number:
                carry = Carry({name: array.copy() for name, array in lane.save().arrays.items()})
                lane = Lane(SyntheticEnv(DISCRETE, 5))
                lane.load(carry)
            policies = ActingPolicies.from_states(DISCRETE.classes[0], [state] * 4)
            trajectory, _ = lane.roll([policies], steps=steps, seed=number, with_state=True, index=0)
            schema = TrajectorySchema(DISCRETE, steps, 5, True, carried=True, frames=(4,))
            schema.check(trajectory)
            found.append(trajectory.arrays)
        return found

    for ours, theirs in zip(rolled(saving=True), rolled(saving=False), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)
