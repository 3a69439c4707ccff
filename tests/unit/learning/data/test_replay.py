"""Replays against lists of rounds, drawn numbers worked out by hand, and updates that were cut short anywhere."""

import dataclasses
import os
from itertools import count, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marless.core.errors import CorruptError, SpecError, StaleError, UnavailableError
from marless.learning.data.replay_buffer import ReplayBuffer, ReplayCounts, ReplaySchema
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces
from tests.unit.learning.algos.rounds import CONTINUOUS, DISCRETE, trajectory

EVERYTHING = ReplaySchema(DISCRETE, (0, 1), with_state=True)
ONE = EnvSpaces((AgentClass("a", ("a",), 1, Discrete(2)),), 0, None)
PLAIN = ReplaySchema(ONE, (0,), with_state=False)
FIELDS = tuple(EVERYTHING.fields())


def flat_round(values: list[float], *, steps: int, over: bool = False) -> Trajectory:
    """One agent in one copy; it sees each value, ends every `steps` steps, and last sees the value + 100."""
    total = len(values)
    cut = np.arange(1, total + 1) % steps == 0
    cut[-1] = True
    index = np.flatnonzero(cut & ~np.array([over] * total)).astype(np.int32)
    obs = np.array(values, np.float32)
    return Trajectory(
        {
            "obs/0": obs.reshape(-1, 1, 1, 1),
            "action/0": np.ones((total, 1, 1), np.int32),
            "log_prob/0": np.zeros((total, 1, 1), np.float32),
            "reward/0": obs.reshape(-1, 1, 1) * 2,
            "terminated/0": (cut & over).reshape(-1, 1, 1),
            "cut": cut.reshape(-1, 1),
            "boot_index": index,
            "boot_obs/0": obs[index].reshape(1, -1, 1) + 100,
        }
    )


def segments(trajectory: Trajectory, schema: ReplaySchema) -> list[dict[str, np.ndarray]]:
    """What each segment of a trajectory is to be remembered as: step by step, in the plainest way."""
    found = []
    for b in range(trajectory.batch):
        start = 0
        for t in range(trajectory.steps):
            if trajectory["cut"][t, b]:
                found.append(
                    {
                        name: _frames(trajectory, name, b, start, t, shape)
                        for name, (_, shape) in schema.fields().items()
                    }
                )
                start = t + 1
    return found


def _frames(trajectory: Trajectory, name: str, b: int, start: int, end: int, shape: tuple[int, ...]) -> np.ndarray:
    if name in ("first", "last"):
        marked = start if name == "first" else end + 1
        return np.array([t == marked for t in range(start, end + 2)])
    steps = [trajectory[name][t, b] if name == "state" else trajectory[name][t, :, b] for t in range(start, end + 1)]
    return np.stack([*steps, _last(trajectory, name, b, end, shape)])


def _last(trajectory: Trajectory, name: str, b: int, t: int, shape: tuple[int, ...]) -> np.ndarray:
    kind, _, k = name.partition("/")
    if kind == "alive":
        return np.array(
            [
                a and not e
                for a, e in zip(trajectory[name][t, :, b], trajectory[f"terminated/{k}"][t, :, b], strict=True)
            ]
        )
    index = trajectory["boot_index"].tolist()
    if kind in ("obs", "mask", "state") and (place := t * trajectory.batch + b) in index:
        boots = trajectory[f"boot_{name}"]
        return boots[index.index(place)] if kind == "state" else boots[:, index.index(place)]
    return np.full(shape, kind == "mask")


def contents(replay: ReplayBuffer, schema: ReplaySchema) -> dict[bytes, dict[str, np.ndarray]]:
    """All segments, by what was first seen in them."""
    everything = replay.draw_episodes(np.random.default_rng(0), replay.episodes)
    assert len(set(everything.first.tolist())) == replay.episodes
    found = {}
    for first, length in zip(everything.first, everything.length, strict=True):
        rows = np.arange(first, first + length + 1)
        held = {name: replay.take(name, rows) for name in schema.fields()}
        found[held["obs/1"][0].tobytes()] = held
    return found


def same(one, other) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].tobytes() == other[name].tobytes(), name


@given(st.data())
@settings(max_examples=40)
def test_it_holds_what_a_list_of_rounds_holds(data):
    # rounds of 1 to 3 actors with 1 to 3 copies and up to 5 steps; deaths, early ends, cuts in mid-rollout
    capacity = data.draw(st.integers(10, 120))
    replay, model = ReplayBuffer(EVERYTHING, capacity), []
    for number in range(data.draw(st.integers(1, 12))):
        actors = data.draw(st.integers(1, 3))
        batch, steps = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
        made = [trajectory(DISCRETE, 1000 * number + i, steps=steps, batch=batch) for i in range(actors)]
        new = [each for one in made for each in segments(one, EVERYTHING)]
        before = replay.episodes
        replay.insert(number, made)
        frames = sum(len(each["last"]) for each in new)
        if frames <= capacity:  # all of it is there, and no more was dropped than had to be
            longest = max(len(each["last"]) for one in [*model, new] for each in one)
            held = sum(len(each["last"]) for one in model for each in one)
            assert replay.episodes == before + len(new) or held + frames + longest > capacity
        else:  # the first segments
            ends = np.cumsum([len(each["last"]) for each in new])
            new = new[: int((ends <= capacity).sum())]
        model.append(new)
        while sum(len(one) for one in model) > replay.episodes:  # the oldest rounds, as a whole
            model.pop(0)
        assert model, "the newest round is not there"
        held = contents(replay, EVERYTHING)
        assert len(held) == replay.episodes == sum(len(one) for one in model)
        for each in (each for one in model for each in one):
            same(held[each["obs/1"][0].tobytes()], each)
        assert replay.size == sum(len(each["last"]) - 1 for one in model for each in one)
        counts = replay.counts
        assert counts.inserted == counts.dropped + replay.size
        assert counts.lost == 0


def test_as_many_env_steps_are_drawn_from_as_came_in_and_none_of_them_is_a_last_frame():
    replay = ReplayBuffer(EVERYTHING, 500)
    for number in range(3):
        replay.insert(number, [trajectory(DISCRETE, number)])
    assert (replay.size, replay.counts.inserted) == (90, 90)
    row = replay.draw(np.random.default_rng(0), 2000).row
    assert len(set(row.tolist())) == 90
    assert not replay.take("last", row).any()
    assert replay.counts.drawn == 2000


def test_the_oldest_rounds_make_room_and_a_round_may_go_around_the_end():
    replay = ReplayBuffer(PLAIN, 16)  # rounds of 2 segments of 2 steps: 6 frames
    seen = []
    for number in range(5):
        replay.insert(number, [flat_round([10 * number + i for i in range(4)], steps=2)])
        first = replay.draw_episodes(np.random.default_rng(0), replay.episodes).first
        seen.append(sorted(replay.take("obs/0", first).ravel().tolist()))
    # The third begins with frames 12 to 14, goes on with 0 to 2, and leaves frame 15 empty.
    assert seen == [[0, 2], [0, 2, 10, 12], [10, 12, 20, 22], [20, 22, 30, 32], [30, 32, 40, 42]]
    assert replay.counts == ReplayCounts(inserted=20, dropped=12, lost=0, drawn=2 + 4 * 4)


def test_what_is_left_at_the_end_of_the_ring_goes_before_what_is_newer():
    replay = ReplayBuffer(PLAIN, 10)
    for number, steps in enumerate([3, 3, 1, 5, 4]):  # frames 0-3, 4-7, 8-9; then 0-5; then 6-9 would not do: 0-4
        replay.insert(number, [flat_round([10.0 * number] * steps, steps=steps)])
    assert (replay.size, replay.counts.dropped) == (4, 3 + 3 + 1 + 5)
    assert set(replay.take("obs/0", replay.draw(np.random.default_rng(0), 50).row).ravel()) == {40.0}


def test_of_a_round_larger_than_all_the_first_segments_are_kept():
    replay = ReplayBuffer(PLAIN, 7)
    replay.insert(0, [flat_round([1, 2, 3, 4], steps=2), flat_round([5, 6, 7, 8], steps=2)])
    assert (replay.size, replay.episodes, replay.counts.dropped) == (4, 2, 4)


def test_a_capacity_below_one_episode_is_refused():
    with pytest.raises(SpecError, match="capacity 2 does not hold one episode"):
        ReplayBuffer(PLAIN, 2).insert(0, [flat_round([1, 2], steps=2)])


def test_nothing_is_drawn_from_nothing():
    with pytest.raises(SpecError, match="empty"):
        ReplayBuffer(PLAIN, 5).draw(np.random.default_rng(0), 1)


def test_the_successor_of_a_row_is_the_next_and_its_last_view_follows_a_segment():
    replay = ReplayBuffer(PLAIN, 50)
    replay.insert(0, [flat_round([1, 2, 3, 4], steps=2)])
    rows = np.arange(6)
    assert replay.take("obs/0", rows).ravel().tolist() == [1, 2, 102, 3, 4, 104]
    assert replay.take("reward/0", rows).ravel().tolist() == [2, 4, 0, 6, 8, 0]
    assert replay.take("first", rows).tolist() == [True, False, False, True, False, False]
    assert replay.take("last", rows).tolist() == [False, False, True, False, False, True]


def test_after_an_end_nothing_is_seen():
    replay = ReplayBuffer(PLAIN, 50)
    replay.insert(0, [flat_round([1, 2], steps=2, over=True)])
    assert replay.take("obs/0", np.arange(3)).ravel().tolist() == [1, 2, 0]
    assert replay.take("terminated/0", np.arange(3)).ravel().tolist() == [False, True, False]


def test_everybody_lives_and_everything_is_legal_where_nothing_else_is_known():
    replay = ReplayBuffer(PLAIN, 50)
    assert replay.take("alive/0", np.zeros((2, 3), np.int64)).shape == (2, 3, 1)
    assert replay.take("mask/0", np.zeros(4, np.int64)).all()
    with pytest.raises(KeyError, match="reward/1"):
        replay.take("reward/1", np.zeros(1, np.int64))


def test_bytes_are_counted_by_hand():
    # obs, action, reward, terminated, alive, mask of the scout, and of the walkers; state; two flags
    assert EVERYTHING.frame_bytes == (12 + 4 + 4 + 1 + 1 + 2) + (80 + 16 + 16 + 4 + 4 + 16) + 24 + 2
    assert ReplaySchema(CONTINUOUS, (0,), with_state=False).frame_bytes == 4 * (5 * 4 + 2 * 4 + 4 + 1) + 2
    assert 0 <= EVERYTHING.file_bytes(100) - 100 * EVERYTHING.frame_bytes <= 64 * (1 + len(FIELDS))


def test_uniform_draws_are_uniform_and_episodes_come_once():
    replay = ReplayBuffer(PLAIN, 100)
    replay.insert(0, [flat_round([float(i) for i in range(8)], steps=4)])
    rng = np.random.default_rng(3)
    drawn = np.bincount(replay.take("obs/0", replay.draw(rng, 8000).row).ravel().astype(int), minlength=8)
    assert drawn.min() > 850
    assert replay.draw(rng, 5).weight.tolist() == [1.0] * 5
    for _ in range(5):
        assert sorted(replay.draw_episodes(rng, 2).first.tolist()) == [0, 5]
    assert replay.draw_episodes(rng, 3).length.tolist() == [4, 4, 4]


class TestPrioritised:
    @pytest.fixture
    def replay(self):
        replay = ReplayBuffer(PLAIN, 50, alpha=0.5)
        replay.insert(0, [flat_round([1, 2, 3, 4], steps=4)])
        replay.reprioritise(np.arange(4), np.array([1.0, 4.0, 9.0, 16.0]))  # to the power 0.5: 1, 2, 3, 4 of 10
        return replay

    def test_draws_are_one_of_each_equal_part(self, replay):
        rng = np.random.default_rng(0)
        rows = np.concatenate([replay.draw(rng, 10).row for _ in range(50)]).reshape(50, 10)
        assert (rows == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]).all()

    def test_weights_make_up_for_it(self, replay):
        draw = replay.draw(np.random.default_rng(0), 10, beta=1.0)
        # 1 / (4 · P) = 2.5, 1.25, 0.8333, 0.625, over the greatest
        assert draw.weight[[0, 1, 3, 6]] == pytest.approx([1.0, 0.5, 1 / 3, 0.25])
        half = replay.draw(np.random.default_rng(0), 10, beta=0.5)
        assert half.weight[[0, 1, 3, 6]] == pytest.approx(np.sqrt([1.0, 0.5, 1 / 3, 0.25]))

    def test_weights_are_over_the_greatest_that_was_drawn(self, replay):
        replay.reprioritise(np.arange(2), np.array([0.0, 0.0]))
        assert replay.draw(np.random.default_rng(0), 7, beta=1.0).weight.max() == 1.0

    def test_new_samples_have_the_highest_priority_so_far(self, replay):
        replay.reprioritise(np.array([3]), np.array([1.0]))
        replay.insert(1, [flat_round([5, 6], steps=2)])
        # 1 + 2 + 3 + 1 + 4 + 4 = 15
        drawn = replay.take("obs/0", replay.draw(np.random.default_rng(0), 15).row).ravel()
        assert drawn.tolist() == [1, 2, 2, 3, 3, 3, 4, 5, 5, 5, 5, 6, 6, 6, 6]

    def test_the_priority_of_the_first_samples_is_no_floor_of_the_highest(self):
        replay = ReplayBuffer(PLAIN, 50, alpha=0.5)
        replay.insert(0, [flat_round([1, 2, 3], steps=3)])
        replay.reprioritise(np.arange(3), np.array([0.01, 0.04, 0.09]))  # to the power 0.5: 1, 2, 3 tenths
        replay.insert(1, [flat_round([4, 5], steps=2)])  # 3 tenths each, of 12
        again = ReplayBuffer(PLAIN, 50, alpha=0.5)
        again.insert(0, [flat_round([1, 2, 3], steps=3)])
        again.insert(1, [flat_round([4, 5], steps=2)])
        again.restore(replay.arrays())
        for each in (replay, again):
            drawn = each.take("obs/0", each.draw(np.random.default_rng(0), 12).row).ravel()
            assert drawn.tolist() == [1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5]

    def test_what_has_no_new_error_keeps_its_priority(self, replay):
        replay.reprioritise(np.arange(4), np.full(4, np.nan))
        assert replay.draw(np.random.default_rng(0), 10).row.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]

    def test_what_was_dropped_meanwhile_gets_no_priority(self):
        replay = ReplayBuffer(PLAIN, 6, alpha=1.0)
        replay.insert(0, [flat_round([1, 2], steps=2)])
        replay.insert(1, [flat_round([3, 4], steps=2)])
        replay.insert(2, [flat_round([5], steps=1)])  # over the first, which left frame 2
        replay.reprioritise(np.array([1, 2]), np.array([50.0, 50.0]))
        row = replay.draw(np.random.default_rng(0), 100).row
        assert set(replay.take("obs/0", row).ravel().tolist()) == {3, 4, 5}

    def test_errors_without_bounds_do_no_harm(self, replay):
        replay.reprioritise(np.arange(3), np.array([0.0, np.inf, 0.0]))
        row = replay.draw(np.random.default_rng(0), 50).row
        assert set(row.tolist()) == {1, 3}

    def test_episodes(self):
        replay = ReplayBuffer(PLAIN, 50, alpha=1.0, unit="episodes")
        replay.insert(0, [flat_round([1, 2, 3, 4], steps=2)])
        replay.reprioritise(np.array([0, 3]), np.array([3.0, 1.0]))
        draw = replay.draw_episodes(np.random.default_rng(0), 4, beta=1.0)
        assert (draw.first.tolist(), draw.length.tolist()) == ([0, 0, 0, 3], [2, 2, 2, 2])
        assert draw.weight == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1.0])
        assert set(replay.draw(np.random.default_rng(0), 100).row.tolist()) == {0, 1, 3, 4}  # uniform, as ever


def work(replay: ReplayBuffer, number: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """What an update does to a replay; returns what it learned from."""
    made = [trajectory(DISCRETE, 100 * number + i) for i in range(1 + number % 3)]
    replay.insert(number, made)
    rng = np.random.default_rng([seed, number])
    found = []
    for _ in range(2):
        draw = replay.draw(rng, 6, 0.4)
        replay.reprioritise(draw.row, 3 * rng.random(6))
        found += [replay.take("obs/1", draw.row), replay.take("obs/1", draw.row + 1), draw.weight]
    return tuple(found)


class Killed(Exception):  # noqa: N818  # it is no error
    """Stands for kill -9: nothing after it happens."""


class TestGoingOn:
    """A file and what was published last are the whole state."""

    ROUNDS = 12

    @pytest.fixture(params=[None, 0.6], ids=["uniform", "prioritised"])
    def make(self, request, tmp_path):
        return lambda name="r", capacity=200: ReplayBuffer(EVERYTHING, capacity, tmp_path / name, alpha=request.param)

    def undisturbed(self, make):
        replay, learned, published = make("undisturbed"), [], []
        for number in range(self.ROUNDS):
            learned.append(work(replay, number))
            published.append(replay.arrays())
        return learned, published

    def test_in_another_process_each_time(self, make):
        learned, published = self.undisturbed(make)
        arrays = make().arrays()
        for number in range(self.ROUNDS):
            replay = make()
            replay.restore(arrays)
            assert all(map(np.array_equal, work(replay, number), learned[number]))
            arrays = replay.arrays()
            same(arrays, published[number])

    @pytest.mark.parametrize("writes", [1, 7, 12])
    def test_killed_in_the_middle_of_an_insert(self, make, monkeypatch, writes):
        learned, published = self.undisturbed(make)
        arrays = make().arrays()
        for number in range(self.ROUNDS):
            doomed, calls = make(), count()
            doomed.restore(arrays)
            with monkeypatch.context() as patch:
                patch.setattr("marless.learning.data.frames._by_copy", lambda *a, c=calls: _until(next(c), writes, *a))
                with pytest.raises(Killed):
                    work(doomed, number)
            doomed._file.release()  # as the kernel does
            replay = make()
            replay.restore(arrays)
            assert all(map(np.array_equal, work(replay, number), learned[number]))
            arrays = replay.arrays()
            same(arrays, published[number])

    def test_killed_before_it_published(self, make):
        learned, published = self.undisturbed(make)
        arrays = make().arrays()
        for number in range(self.ROUNDS):
            for _ in range(2):
                replay = make()
                replay.restore(arrays)
                again = work(replay, number, seed=0)
                replay._file.release()
            assert all(map(np.array_equal, again, learned[number]))
            arrays = replay.arrays()
            same(arrays, published[number])

    def test_the_same_process_redoes_its_update(self, make):
        _, published = self.undisturbed(make)
        replay, before = make(), make("other").arrays()
        for number in range(self.ROUNDS):
            work(replay, number)
            replay.restore(before)  # it was not published: the store did not answer
            work(replay, number)
            before = replay.arrays()
            same(before, published[number])

    def test_a_paused_writer_writes_into_a_file_of_its_own(self, make, tmp_path):
        learned, published = self.undisturbed(make)
        paused, arrays = make(), None
        for number in range(6):
            work(paused, number)
            arrays = paused.arrays()
        work(paused, 6)  # and keeps the lock
        for number in range(6, self.ROUNDS):
            other = make()
            other.restore(arrays)
            assert all(map(np.array_equal, work(other, number), learned[number]))
            arrays = other.arrays()
        for number in range(7, 14):
            work(paused, number, seed=9)  # it wakes up and goes on
        check = make()
        check.restore(arrays)
        check.draw(np.random.default_rng(0), 1)
        same(published[-1] | {"counts": 0 * arrays["counts"]}, check.arrays() | {"counts": 0 * arrays["counts"]})
        assert check.counts.lost == 0
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith("r")] == ["r"]

    def test_who_was_overtaken_before_it_wrote_does_not_write(self, make):
        slow, arrays = make(), make().arrays()
        slow.restore(arrays)
        other = make()
        other.restore(arrays)
        work(other, 0)
        newer = other.arrays()
        with pytest.raises(StaleError, match="another learner"):
            work(slow, 0)
        slow.restore(newer)
        work(slow, 1)
        assert slow.counts.lost == 0

    def test_a_file_that_is_gone_is_lost_and_filled_again(self, make):
        _, published = self.undisturbed(make)
        held = int(published[-1]["rounds"][:, 4].sum())
        replay = make("fresh")
        replay.restore(published[-1])
        replay.insert(self.ROUNDS, [trajectory(DISCRETE, 0)])
        counts = replay.counts
        assert (replay.size, counts.lost > 0) == (30, True)
        assert counts.inserted == counts.dropped + counts.lost + replay.size
        assert counts.lost + counts.dropped == published[-1]["counts"][[1, 2]].sum() + held

    def test_a_damaged_round_alone_is_lost(self, make):
        replay = make()
        for number in range(3):
            replay.insert(number, [trajectory(DISCRETE, number, steps=4, batch=4)])
        row = replay.draw_episodes(np.random.default_rng(0), 1).first[0]
        arrays = replay.arrays()
        replay._file.arrays["reward/1"][row] += 1
        again = make()
        again.restore(arrays)
        again.draw(np.random.default_rng(0), 1)
        assert (again.size, again.counts.lost) == (32, 16)

    def test_a_file_that_is_removed_under_a_learner_is_put_back(self, make, tmp_path):
        _, published = self.undisturbed(make)
        replay = make()
        for number in range(self.ROUNDS):
            work(replay, number)
            arrays = replay.arrays()
            if number == 5:
                (tmp_path / "r").unlink()
        same(arrays, published[-1])
        again = make()
        again.restore(arrays)
        again.draw(np.random.default_rng(0), 1)
        assert again.counts.lost == 0

    def test_another_capacity_is_another_replay(self, make):
        _, published = self.undisturbed(make)
        replay = make("other", capacity=150)
        replay.restore(published[-1])
        assert replay.size == 0
        assert replay.counts.lost == published[-1]["rounds"][:, 4].sum()
        work(replay, self.ROUNDS)

    def test_a_round_that_is_known_is_left_alone(self, make):
        replay = make()
        work(replay, 0)
        work(replay, 1)
        before = replay.arrays()
        for number in (0, 1):
            replay.insert(number, [trajectory(DISCRETE, 100 * number + i) for i in range(1 + number % 3)])
        same(before, replay.arrays())

    def test_rounds_of_another_job_are_not_taken_for_its_own(self, make):
        """A job that starts from another's checkpoint counts its rounds from 0, in a file of its own."""
        _, published = self.undisturbed(make)
        replay = make("own")
        replay.restore(published[-1])
        replay.insert(0, [trajectory(DISCRETE, 5)])
        assert replay.size == 30

    @pytest.mark.parametrize("damage", ["ring", "rounds", "counts"])
    def test_arrays_of_something_else_are_refused(self, make, damage):
        replay = make()
        work(replay, 0)
        arrays = dict(replay.arrays())
        wrong = np.array([[1, 10**9, 5, 5, 4, 1, 0]]) if damage == "rounds" else np.zeros(0, np.int64)
        with pytest.raises(CorruptError, match="no state of a replay"):
            make().restore(arrays | {damage: wrong})
        del arrays[damage]
        with pytest.raises(CorruptError, match="no state of a replay"):
            make().restore(arrays)


def _until(call: int, writes: int, name: str, array: np.ndarray) -> np.ndarray:
    if call >= writes:
        raise Killed
    return array.swapaxes(0, 1) if name == "state" else np.moveaxis(array, 2, 0)


def test_a_full_disk_is_said_before_anything_is_written(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(UnavailableError, match=r"No space left.*lower algorithm\.replay\.capacity"):
        ReplayBuffer(PLAIN, 10, tmp_path / "r")
    assert not list(tmp_path.iterdir())


def test_a_replay_that_is_no_longer_used_leaves_its_lock(tmp_path):
    for number, _ in pairwise(range(4)):
        replay = ReplayBuffer(PLAIN, 10, tmp_path / "r")
        replay.insert(number, [flat_round([1, 2], steps=2)])
        inode = (tmp_path / "r").stat().st_ino
        del replay
    assert (tmp_path / "r").stat().st_ino == inode, "a copy was made though nobody held the file"


def test_counts_are_what_an_update_reports():
    replay = ReplayBuffer(PLAIN, 10)
    replay.insert(0, [flat_round([1, 2], steps=2)])
    assert replay.report() == {"size": 2.0, "inserted": 2.0, "dropped": 0.0, "lost": 0.0, "drawn": 0.0}
    assert [each.name for each in dataclasses.fields(ReplayCounts)] == ["inserted", "dropped", "lost", "drawn"]
