"""What batches hold of a replay, against a walk through its frames; padded lengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marless.learning.algos.off_policy import draws
from marless.learning.algos.off_policy.batches import Batch
from marless.learning.algos.off_policy.draws import BatchSource, _padded
from marless.learning.algos.q.algorithms import IQLConfig
from marless.learning.algos.settings import RewardRule
from marless.learning.algos.training.rewards import RewardMoments, rewarded
from marless.learning.data.frames import ReplaySchema
from marless.learning.data.replay_buffer import Draw, ReplayBuffer
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces
from marless.learning.nets.inputs import Inputs
from tests.unit.learning.algos import rounds

CPU, GAMMA = torch.device("cpu"), 0.5
KNOWING = Inputs(last_action=True, known=rounds.AGENTS)


def source(
    *, team: bool = False, spaces=rounds.DISCRETE, seen=None, memory=(), units=0, **settings: object
) -> tuple[BatchSource, ReplayBuffer]:
    config = IQLConfig.model_validate(
        {"gamma": GAMMA, "reward_normalisation": False, "warmup": 0, "batch": 1, **settings}
    )
    classes = tuple(range(len(spaces.classes)))
    schema = ReplaySchema(spaces, classes, with_state=True, memory=memory)
    alpha = config.replay.alpha if config.replay.draw == "prioritised" else None
    replay = ReplayBuffer(schema, 200, None, alpha=alpha, unit=config.replay.unit)
    rule = RewardRule("sum", joint=True) if team else RewardRule()
    synthetic = [rounds.trajectory(spaces, seed, memory=memory) for seed in (1, 2)]
    replay.insert(0, [rewarded(each, spaces, rule) for each in synthetic])
    made = BatchSource(
        replay=replay,
        schema=schema,
        classes=tuple((k, spaces.classes[k], (seen or {}).get(k, Inputs())) for k in classes),
        config=config,
        longest=spaces.max_steps,
        team=team,
        with_dead_agents_rewarded=False,
        units=units,
        device=CPU,
    )
    return made, replay


def draw(made: BatchSource, count: int = 40, moments: RewardMoments | None = None, beta: float = 1.0) -> Batch:
    [[batch]] = made.draws(np.random.default_rng(3), count, 1, moments or RewardMoments((0, 1), GAMMA), beta)
    return batch


@pytest.mark.parametrize(("frames", "sizes"), [(2**17, [5]), (48, [2, 2, 1]), (0, [1] * 5)])
def test_batches_that_are_drawn_together_say_what_each_would_alone(frames, sizes, monkeypatch):
    made, replay = source(n_step=3, seen={1: KNOWING})
    monkeypatch.setattr(draws, "_AT_ONCE", frames * made.schema.frame_bytes)
    with monkeypatch.context() as patched:
        patched.setattr(draws, "_CACHED", 7)  # frames of several batches, and batches in several pieces
        drawn = list(made.draws(np.random.default_rng(3), 12, 5, RewardMoments((0, 1), GAMMA), 1.0))
    assert [len(batches) for batches in drawn] == sizes
    together = [batch for batches in drawn for batch in batches]
    assert len({tuple(batch.row) for batch in together}) == 5
    assert replay.counts.drawn == 60
    for batch in together:
        monkeypatch.setattr(replay, "draw", lambda rng, count, beta=0.0, row=batch.row: Draw(row, None))
        alone = draw(made, 12)
        for mine, other in zip((*batch.classes, *batch.gains), (*alone.classes, *alone.gains), strict=True):
            for name, tensor in vars(other).items():
                assert tensor is None or torch.equal(tensor, getattr(mine, name)), name
        assert torch.equal(alone.state, batch.state)
        assert torch.equal(alone.follows, batch.follows)


def at(replay: ReplayBuffer, name: str, row: int) -> np.ndarray:
    return replay.take(name, np.array([row]))[0]


def truncated(replay: ReplayBuffer, row: int) -> bool:
    """An agent left in this step, and did not terminate."""
    return any(
        (at(replay, f"alive/{k}", row) & ~at(replay, f"terminated/{k}", row) & ~at(replay, f"alive/{k}", row + 1)).any()
        for k in (0, 1)
    )


@pytest.mark.parametrize("n_step", [1, 2, 4])
def test_env_steps_are_what_their_frames_say(n_step):
    """n = 4 is longer than some segments: their last view is then what comes after."""
    made, replay = source(n_step=n_step)
    batch = draw(made)
    assert (batch.steps, batch.width) == (1, 40)
    assert batch.importance is batch.valid is None
    short = cut = 0
    for column, row in enumerate(batch.row.tolist()):
        frames = [row]
        while len(frames) < n_step and not at(replay, "last", frames[-1] + 1) and not truncated(replay, frames[-1]):
            frames.append(frames[-1] + 1)
        short += len(frames) < n_step
        cut += len(frames) < n_step and not at(replay, "last", frames[-1] + 1)
        after = frames[-1] + 1
        for k, agents in enumerate(rounds.DISCRETE.classes):
            mine, gains = batch.classes[k], batch.gains[k]
            for i in range(len(agents.agents)):
                reward, scale = 0.0, 1.0
                for frame in frames:
                    reward += scale * at(replay, f"reward/{k}", frame)[i]
                    scale *= 0.0 if at(replay, f"terminated/{k}", frame)[i] else GAMMA
                assert gains.reward[i, column] == pytest.approx(reward, rel=1e-5, abs=1e-6)
                assert gains.discount[i, column] == scale
                assert mine.action[i, 0, column] == at(replay, f"action/{k}", row)[i]
                for where, frame in ((column, row), (40 + column, after)):
                    np.testing.assert_array_equal(mine.features[i, :-1, where], at(replay, f"obs/{k}", frame)[i])
                    assert mine.features[i, -1, where] == 1
                    np.testing.assert_array_equal(mine.legal[i, :, where], at(replay, f"mask/{k}", frame)[i])
                    assert mine.alive[i, where] == at(replay, f"alive/{k}", frame)[i]
        np.testing.assert_array_equal(batch.state[0, :-1, column], at(replay, "state", row))
        np.testing.assert_array_equal(batch.state[0, :-1, 40 + column], at(replay, "state", after))
    assert (short > 0) == (cut > 0) == (n_step > 1)


def test_sums_end_where_an_agent_is_truncated_and_its_last_view_comes_after():
    """Of 4 steps, b is truncated in step 1, while a goes on: rewards 1, 2, 4, 8 of a, and 10, 20 of b; γ = ½, n = 3.

    Step 0: 1 + ½·2 = 2 and 10 + ½·20 = 20, then ¼ of what comes after step 1; step 1: 2 and 20, then ½ of that; step 2:
    4 + ½·8 = 8, then ¼ of what comes after step 3, the last.
    """
    spaces = EnvSpaces((AgentClass("pair", ("a", "b"), 1, Discrete(2)),), state_size=0, max_steps=None, deaths=True)
    seen_TN = np.array([[1, 11], [2, 12], [3, 13], [4, 0]], np.float32)  # 13: what b saw last
    arrays = {
        "obs/0": seen_TN[:, :, None, None],
        "action/0": np.zeros((4, 2, 1), np.int32),
        "log_prob/0": np.zeros((4, 2, 1), np.float32),
        "reward/0": np.array([[1, 10], [2, 20], [4, 0], [8, 0]], np.float32)[:, :, None],
        "terminated/0": np.zeros((4, 2, 1), np.bool_),
        "alive/0": np.array([[True, True], [True, True], [True, False], [True, False]])[:, :, None],
        "boot_obs/0": np.array([5, 0], np.float32)[:, None, None],
        "cut": np.array([[False], [False], [False], [True]]),
        "boot_index": np.array([3], np.int32),
    }
    schema = ReplaySchema(spaces, (0,), with_state=False)
    replay = ReplayBuffer(schema, 20)
    replay.insert(0, [Trajectory(arrays)])
    config = IQLConfig.model_validate({"gamma": 0.5, "n_step": 3, "reward_normalisation": False, "warmup": 0})
    classes = ((0, spaces.classes[0], Inputs()),)
    made = BatchSource(
        replay=replay,
        schema=schema,
        classes=classes,
        config=config,
        longest=4,
        team=False,
        with_dead_agents_rewarded=False,
        units=0,
        device=CPU,
    )
    batch = draw(made, 30, RewardMoments((0,), 0.5))
    column = {t: batch.row.tolist().index(t) for t in range(3)}
    reward, discount = batch.gains[0].reward, batch.gains[0].discount
    assert {t: reward[:, c].tolist() for t, c in column.items()} == {0: [2, 20], 1: [2, 20], 2: [8, 0]}
    assert {t: discount[:, c].tolist() for t, c in column.items()} == {0: [0.25, 0.25], 1: [0.5, 0.5], 2: [0.25, 0.25]}
    after = {t: batch.classes[0].features[:, 0, 30 + c].tolist() for t, c in column.items()}
    assert after == {0: [3, 13], 1: [3, 13], 2: [5, 0]}


@pytest.mark.parametrize("unit", ["transitions", "episodes"])
def test_the_rest_of_an_episode_starts_from_what_was_remembered(unit):
    """Numbers of a class: 3 units of its nets, then its last action; burn-in of 2 steps, at most half of a segment."""
    memory = tuple(3 + agents.action.n for agents in rounds.DISCRETE.classes)
    inputs = dict.fromkeys((0, 1), Inputs(last_action=True))
    made, replay = source(seen=inputs, memory=memory, units=3, replay={"unit": unit, "burn_in": 2})
    batch = draw(made, 15 if unit == "episodes" else 40)
    trajectories = [rounds.trajectory(rounds.DISCRETE, seed, memory=memory) for seed in (1, 2)]
    starts = {each["obs/0"][0, 0, b].tobytes(): (each, b) for each in trajectories for b in range(5)}
    seen = set()
    for column, row in enumerate(batch.row.tolist()):
        trajectory, b = starts.get(at(replay, "obs/0", row)[0].tobytes(), (None, 0))
        resumed = trajectory is not None and bool(trajectory["resumed"][b])
        seen.add(resumed)
        for k, agents in enumerate(rounds.DISCRETE.classes):
            mine, before = batch.classes[k], np.zeros((len(agents.agents), memory[k]), np.float32)
            if trajectory is not None:
                before = trajectory[f"memory/{k}"][:, b]
            last = mine.features[:, agents.obs_size : agents.obs_size + agents.action.n, column]
            if resumed:
                np.testing.assert_array_equal(last, before[:, 3:])
            elif at(replay, "first", row):
                assert not last.any()
            if unit == "episodes":
                np.testing.assert_array_equal(mine.memory[:, :, column], before[:, :3])
            else:
                assert mine.memory is None
        if unit == "episodes":
            length = int(replay._length[row])
            burnt = min(2, length // 2) if resumed else 0
            expected = [float(burnt <= t < length) for t in range(batch.steps)]
            assert batch.valid.view(batch.steps, -1)[:, column].tolist() == expected
    assert seen == {True, False}


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_team_gets_its_reward_until_its_last_agent_has_gone(n_step):
    made, replay = source(team=True, n_step=n_step)
    arrays = dict(rounds.trajectory(rounds.DISCRETE, 5).arrays)
    for k in (0, 1):  # so many are gone that often everyone is
        living = np.random.default_rng(k).random(arrays[f"alive/{k}"].shape) < 0.2
        arrays |= {f"alive/{k}": living, f"terminated/{k}": arrays[f"terminated/{k}"] & living}
    replay.insert(1, [rewarded(Trajectory(arrays), rounds.DISCRETE, RewardRule("sum", joint=True))])
    batch = draw(made, 200)
    (gains,) = batch.gains
    assert 5 < int((gains.discount == 0).sum()) < 100
    for column, row in enumerate(batch.row.tolist()):
        reward, scale = 0.0, 1.0
        for i in range(n_step):
            if i and at(replay, "last", row + i):
                break
            reward += scale * at(replay, "reward/1", row + i)[2]
            left = any(
                (at(replay, f"alive/{k}", row + i) & ~at(replay, f"terminated/{k}", row + i)).any() for k in (0, 1)
            )
            scale *= GAMMA if left else 0.0
        assert gains.reward[0, column] == pytest.approx(reward, rel=1e-4, abs=1e-5)
        assert gains.discount[0, column] == scale


def test_episodes_stand_side_by_side_padded_with_their_last_view():
    made, replay = source(replay={"unit": "episodes"}, seen={1: KNOWING})
    batch = draw(made, 5)
    longest = made.replay.draw_episodes(np.random.default_rng(3), 5).length.tolist()
    steps = batch.steps
    assert steps == _padded(max(longest), None)
    assert len(set(longest)) > 1
    for e, (first, length) in enumerate(zip(batch.row.tolist(), longest, strict=True)):
        for t in range(steps + 1):
            frame, column = first + min(t, length), t * 5 + e
            features = batch.classes[1].features[:, :, column].numpy()
            np.testing.assert_array_equal(features[:, :5], at(replay, "obs/1", frame))
            last = np.zeros((4, 4)) if frame == first else np.eye(4)[at(replay, "action/1", frame - 1)]
            if frame > first:  # who comes back has done nothing yet
                last[at(replay, "alive/1", frame) & ~at(replay, "alive/1", frame - 1)] = 0
            np.testing.assert_array_equal(features[:, 5:9], last)
            np.testing.assert_array_equal(features[:, 9:13], np.eye(4))
            if t < steps:
                assert batch.valid[column] == (t < length)
                assert batch.follows[t, e] == (t + 1 < length)
                np.testing.assert_array_equal(batch.gains[1].reward[:, column], at(replay, "reward/1", frame))
                gone = at(replay, "terminated/1", frame)
                np.testing.assert_array_equal(batch.gains[1].discount[:, column], np.where(gone, 0, GAMMA))


def test_continuous_actions_come_as_they_were_chosen():
    made, replay = source(spaces=rounds.CONTINUOUS, seen={0: Inputs(last_action=True)})
    [[batch]] = made.draws(np.random.default_rng(3), 30, 1, RewardMoments((0,), GAMMA), 0.0)
    before = [row for row in batch.row.tolist() if not at(replay, "first", row)]
    assert before
    for column, row in enumerate(batch.row.tolist()):
        np.testing.assert_array_equal(batch.classes[0].action[:, :, column], at(replay, "action/0", row))
        then = at(replay, "action/0", row - 1) if row in before else np.zeros((4, 2))
        np.testing.assert_array_equal(batch.classes[0].features[:, 5:7, column], then)
    assert batch.classes[0].legal is batch.classes[0].alive is None
    assert not isinstance(rounds.CONTINUOUS.classes[0].action, Discrete)


@pytest.mark.parametrize("unit", ["transitions", "episodes"])
def test_prioritised_draws_bring_importance(unit):
    made, replay = source(replay={"unit": unit, "draw": "prioritised"})
    alike = draw(made, 6)
    assert alike.importance.tolist() == [1.0] * (6 * alike.steps)
    replay.reprioritise(alike.row[:1], np.array([50.0]))
    batch = draw(made, 6)
    preferred = batch.row == alike.row[0]
    importance = batch.importance.reshape(batch.steps, 6)
    assert preferred.any()
    assert (importance == importance[0]).all()
    assert importance[0][torch.from_numpy(preferred)].max() < 1 or preferred.all()


@pytest.mark.parametrize(("frames", "sizes"), [(2**17, [3, 2]), (24, [1] * 5)])
def test_batches_that_share_their_priorities_are_drawn_before_these_change(frames, sizes, monkeypatch):
    made, replay = source(replay={"draw": "prioritised", "priorities_every": 3})
    monkeypatch.setattr(draws, "_AT_ONCE", frames * made.schema.frame_bytes)
    tree, asked = replay._priorities, []
    monkeypatch.setattr(tree, "draw", lambda *given, of=tree.draw: asked.append(tree._tree.total) or of(*given))
    rng, found = np.random.default_rng(3), []
    for batches in made.draws(rng, 12, 5, RewardMoments((0, 1), GAMMA), 1.0):
        found.append(len(batches))
        for batch in batches:
            assert len(batch.importance) == len(batch.row) == 12
            assert batch.importance.max() == 1  # of each draw
            replay.reprioritise(batch.row, np.full(12, 50.0))
    assert found == sizes
    assert asked[0] == asked[1] == asked[2] < asked[3] == asked[4]


def test_scaled_rewards_are_summed_as_such():
    moments, of_team = RewardMoments((0, 1), GAMMA), RewardMoments((0, 1), GAMMA, team=True)
    # Deviations 1, 2 and 10 around 0.
    moments.sums[:], of_team.sums[:] = [[10, 0, 10, 0, 0], [10, 0, 40, 0, 0]], [[10, 0, 1000, 0, 0]]
    config = {"n_step": 2, "reward_normalisation": True}
    plain, found = draw(source(n_step=2)[0]), draw(source(**config)[0], moments=moments)
    torch.testing.assert_close(found.gains[0].reward, plain.gains[0].reward)
    torch.testing.assert_close(found.gains[1].reward, plain.gains[1].reward / 2)
    team, normal = (
        draw(source(team=True, **each)[0], moments=of_team) for each in ({}, {"reward_normalisation": True})
    )
    torch.testing.assert_close(normal.gains[0].reward, team.gains[0].reward / 10)


@pytest.mark.parametrize("unit", ["transitions", "episodes"])
def test_targets_are_of_values_from_their_centre(unit):
    """A net that says Q − v has the target of Q, less v: r + d Q − v = (r + (d − 1) v) + d (Q − v)."""
    moments = RewardMoments((0, 1), GAMMA)
    moments.sums[:] = [[10, 6, 40, 2, 1], [10, 0, 10, 0, 0]]
    centre, scale = moments.centre(0), moments.scale(0)
    assert centre == pytest.approx(6 / (10 - GAMMA * 8))
    settings = {"n_step": 1 if unit == "episodes" else 2, "replay": {"unit": unit}}
    plain, found = (draw(source(reward_normalisation=n, **settings)[0], 40, moments) for n in (False, True))
    discount = plain.gains[0].discount
    assert (discount == 0).any()
    torch.testing.assert_close(found.gains[0].discount, discount)
    torch.testing.assert_close(found.gains[0].reward, (plain.gains[0].reward + (discount - 1) * centre) * scale)
    torch.testing.assert_close(found.gains[1].reward, plain.gains[1].reward)


def test_padded_lengths_are_few():
    assert [_padded(n, None) for n in (1, 2, 3, 4, 5, 7, 9, 13, 25, 33, 90)] == [1, 2, 3, 4, 6, 8, 12, 16, 32, 48, 96]
    assert [_padded(n, 25) for n in (3, 20, 25, 26)] == [3, 24, 25, 32]
    assert len({_padded(n, None) for n in range(1, 200)}) < 17
    assert all(n <= _padded(n, 100) for n in range(1, 200))
