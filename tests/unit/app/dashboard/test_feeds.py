"""What streams send: made once for all that are at one place, in bounded batches, and at one moment."""

import asyncio
import json

import pytest_asyncio

from marless.app.client import LogLine
from marless.app.dashboard import feeds, rows
from marless.app.dashboard.feeds import BATCH, MOST_POSITIONS, JobFeed, StreamPosition
from marless.app.dashboard.following import JobFollower
from tests.unit.jobs.test_record import record


class Silent:
    """A source in which nothing happens."""

    place = "a test"

    async def follow(self, job, cursor):
        await asyncio.Event().wait()
        yield ()

    async def logs(self, job, cursor):
        await asyncio.Event().wait()
        yield ()


@pytest_asyncio.fixture
async def follower():
    found = JobFollower(Silent(), "tiny")
    yield found
    await found.stop()


def grow(follower, rounds):
    for number in range(follower.series.rounds, follower.series.rounds + rounds):
        line = record(number, invocations=(), idle_s=0.0).to_json().encode()
        follower.series.add(rows.decode(line, number, "rounds.jsonl"))
    follower.announce()


def kinds(data):
    return [part.split(b"\n")[0].removeprefix(b"event: ").decode() for part in data.split(b"\n\n") if part]


async def test_streams_at_one_place_get_the_same_bytes(follower):
    feed, start = JobFeed(follower), StreamPosition.parse("", follower)
    grow(follower, 3)
    data, position = feed.after(start)
    again, _ = feed.after(start)
    assert again is data and kinds(data) == ["rounds", "state"]
    assert feed.after(position) == (b"", position)
    grow(follower, 1)
    assert kinds(feed.after(position)[0]) == ["rounds"]  # the state is the same


async def test_many_rounds_come_in_batches_and_the_state_after_all_of_them(follower):
    feed, position = JobFeed(follower), StreamPosition.parse("", follower)
    follower.log.append(LogLine(cursor=7, text='{"event": "x"}'))
    grow(follower, 2 * BATCH + 1)
    found = []
    while data := feed.after(position)[0]:
        found.append(kinds(data))
        position = feed.after(position)[1]
    assert found == [["rounds"], ["rounds"], ["rounds", "log", "state"]]
    assert (position.rounds, position.log) == (2 * BATCH + 1, 7)


async def test_only_some_places_are_kept(follower):
    feed = JobFeed(follower)
    grow(follower, 4 * MOST_POSITIONS)
    for rounds in range(3 * MOST_POSITIONS):
        data, _ = feed.after(StreamPosition(generation=0, rounds=rounds, log=0))
        [line] = [each for each in data.split(b"\n") if each.startswith(b"data: [{")]
        assert json.loads(line[6:])[0]["rows"][0]["round"] == rounds
    assert len(feed._known) <= MOST_POSITIONS


async def test_turns_come_with_changes_and_in_silence(follower, monkeypatch):
    monkeypatch.setattr(feeds, "FASTEST_S", 0.0)
    monkeypatch.setattr(feeds, "ALIVE_S", 0.0)
    feed = JobFeed(follower)
    follower.loaded.set()
    async with feed.watched(), feed.watched():
        feed.after(StreamPosition.parse("", follower))
        turn = feed.turn
        async with asyncio.timeout(10):
            await turn.wait()
            assert feed.silent
        monkeypatch.setattr(feeds, "ALIVE_S", 60.0)
        async with asyncio.timeout(10):
            while feed.turn.is_set() or feed.silent:  # the turn that began with the short silence ends
                grow(follower, 1)
                await feed.turn.wait()
        assert follower.watchers == 2
    assert follower.watchers == 0 and feed._task is None
