"""The random baseline: batch by batch until it is precise, beside the job, whatever becomes of its worker."""

import asyncio
import math
from types import SimpleNamespace

import pytest

from marless.core.errors import SpecError, UnavailableError, UnreachableError
from marless.jobs import spec as specs
from marless.jobs.job import prepare
from marless.learning.data.returns import EpisodeReturns
from marless.services.coordinator.execution.evaluations import MOST_FAILURES, Baseline
from marless.services.coordinator.execution.pools import Played

RANDOM = {"env": {"name": "game/matrix"}, "algorithm": "ippo", "stop": {"rounds": 1}, "actors": {"envs": 10}}


class Pools:
    """Plays batches at once, or when it is let; every episode takes a second and returns -10 or -30."""

    def __init__(self, *, errors: tuple[Exception, ...] = (), lasting: bool = False) -> None:
        self.played: list[tuple[int, int, bool]] = []
        self._errors = list(errors)
        self._lasting = lasting

    async def play_randomly(self, job_id, job, batch: int, episodes: int, *, background: bool = True) -> Played:
        if self._lasting and background:
            await asyncio.Event().wait()
        if self._errors:
            raise self._errors.pop(0)
        self.played.append((batch, episodes, background))
        low = episodes // 2
        total, scatter = -10.0 * low - 30.0 * (episodes - low), 400.0 * low * (episodes - low) / episodes
        each = {"episodes": episodes, "return_sum": {"a": total}, "judged": 0, "wins": 0, "broken": 0}
        each |= {"return_scatter": {"a": scatter}, "mean_scatter": scatter}
        return Played(SimpleNamespace(**each), played_s=float(episodes))


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    warning = info


def baseline(pools: Pools, log: Log | None = None, told=lambda returns: None, **evaluation: object) -> Baseline:
    job = prepare(specs.parse(RANDOM | {"evaluation": evaluation}, "spec"))
    return Baseline(job_id="j", job=job, pools=pools, log=log or Log(), progressed=told)


async def measured(pools: Pools, **options: object) -> EpisodeReturns | None:
    measuring = baseline(pools, **options)
    measuring.start()
    async with asyncio.timeout(5):
        while measuring.measuring:  # noqa: ASYNC110  # the batches of the test answer at once, but retries wait
            await asyncio.sleep(0.001)
    return measuring.measured()


@pytest.mark.parametrize(
    ("evaluation", "episodes", "bound"),
    [
        ({"limit_s": None, "relative_error": 0, "random_episodes": 45}, 45, "episodes"),
        ({"limit_s": 35}, 30, "time"),  # a fourth batch of ten would take until 40 s
        ({"limit_s": None, "relative_error": 0.1}, 30, "error"),  # 10 / √30 = 1.8 of 20
        ({"limit_s": None, "relative_error": 0.05}, 110, "error"),  # 10 / √99 after 100 episodes is more than 1
    ],
)
async def test_whichever_bound_comes_first_ends_it_and_is_noted(evaluation, episodes, bound):
    pools, log = Pools(), Log()
    found = await measured(pools, log=log, **evaluation)
    assert (found.episodes, found.standard_error) == (episodes, pytest.approx(10 / math.sqrt(episodes), rel=0.05))
    [(event, fields)] = log.lines
    assert (event, fields["ended_by"], fields["episodes"]) == ("baseline.measured", bound, episodes)
    assert [batch for batch, _, _ in pools.played] == list(range(len(pools.played)))


async def test_it_is_taken_once():
    pools = Pools()
    measuring = baseline(pools, random_episodes=5)
    assert measuring.measured() is None  # not begun
    measuring.start()
    await measuring.wait(asyncio.Event())
    assert measuring.measured().episodes == 5
    assert measuring.measured() is None
    assert await measuring.stop() is None


async def test_what_passes_is_tried_again_and_changes_nothing():
    quiet, troubled = Pools(), Pools(errors=(UnreachableError("actor_pool: away"), UnavailableError("it died")))
    assert await measured(quiet, random_episodes=5) == await measured(troubled, random_episodes=5)
    assert quiet.played == troubled.played


@pytest.mark.parametrize(
    "errors", [(SpecError("the environment is broken"),), (UnavailableError("it died"),) * MOST_FAILURES]
)
async def test_a_baseline_that_cannot_be_measured_is_noted_and_ends_no_job(errors):
    log = Log()
    assert await measured(Pools(errors=errors), log=log) is None
    assert [(event, fields["error"]) for event, fields in log.lines] == [("baseline.failed", str(errors[0]))]


async def test_when_training_is_done_a_batch_that_waits_for_a_cpu_is_played_by_an_actor():
    pools = Pools(lasting=True)
    measuring = baseline(pools, random_episodes=25, limit_s=None, relative_error=0)
    measuring.start()
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await measuring.wait(asyncio.Event())
    assert pools.played == [(0, 10, False), (1, 10, False), (2, 5, False)]
    assert measuring.measured().episodes == 25


async def test_nobody_waits_for_it_longer_than_its_limit_or_once_the_job_is_cancelled():
    class Never(Pools):
        async def play_randomly(self, *_args, **_options):
            await asyncio.Event().wait()

    cancelled = asyncio.Event()
    cancelled.set()
    for evaluation, event in (({"limit_s": 0.01}, asyncio.Event()), ({"limit_s": None}, cancelled)):
        measuring = baseline(Never(), **evaluation)
        measuring.start()
        async with asyncio.timeout(5):
            await measuring.wait(event)
            assert measuring.measured() is None
            assert await measuring.stop() is None


async def test_its_progress_is_told():
    told = []
    await measured(Pools(), told=told.append, random_episodes=25)
    assert [returns.episodes for returns in told] == [10]  # once a second at most


async def test_a_batch_without_an_episode_ends_the_baseline(monkeypatch):
    async def nothing(self, job_id, job, batch, episodes, *, background=True):
        each = {"episodes": 0, "return_sum": {"a": 0.0}, "judged": 0, "wins": 0, "broken": 0}
        return Played(SimpleNamespace(**each, return_scatter={"a": 0.0}, mean_scatter=0.0), played_s=10.0)

    monkeypatch.setattr(Pools, "play_randomly", nothing)
    log = Log()
    assert await measured(Pools(), log=log) is None
    [(event, fields)] = log.lines
    assert event == "baseline.given_up"
    assert fields["why"].startswith("no episode ended within evaluation.limit_s = 10 s; training goes on without it")
