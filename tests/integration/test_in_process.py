"""A job in one process, by plain calls or with worker processes, comes to the weights of the services, bit for bit."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from marless.jobs.asynchronous_run import replayed
from marless.learning.algos.training import precision
from marless.learning.data.player import Mode
from marless.rpc.v1 import actor_pool_pb2
from marless.services.coordinator.execution.pools import Pools
from marless.services.coordinator.in_process.actors import ActorRunner, PlainActors, ProcessActors
from marless.services.coordinator.in_process.pools import InProcessPools
from marless.services.coordinator.state.run_folder import RunFolder
from marless.storage.saved_policies import load_policy
from tests.integration.one_process import check_same_weights
from tests.integration.running import KilledError, broken, created, go_on
from tests.integration.running import spec as spec_of
from tests.integration.test_same_weights import ALGORITHMS, EVERYTHING, RIVALS, TEAM
from tests.templates import SCRIPTED

MISBEHAVING = "pettingzoo/tests.misbehaving_env:Misbehaving"
FRESH = {"count": 2, "envs": 2, "steps": 5, "episodes": "fresh"}
_serials = count()


def new(tmp_path, **changes) -> RunFolder:
    return created(tmp_path / f"job-{next(_serials)}", spec_of(**changes))


@asynccontextmanager
async def pools_of(folder: RunFolder, workers: int) -> AsyncIterator[InProcessPools]:
    actors: ActorRunner = ProcessActors(workers) if workers else PlainActors()
    pools = InProcessPools(actors, folder.path / "store" / "replay")
    yield pools
    await pools.close()


async def run(folder: RunFolder, workers: int = 0) -> None:
    """Run the job from where its folder says it is, as another process would, and check that it has succeeded."""
    async with pools_of(folder, workers) as pools:
        await run_on(folder, pools)


async def run_on(folder: RunFolder, pools: Pools) -> None:
    done = await go_on(folder, pools)
    assert done.status.state == "SUCCEEDED", (done.status.reason, done.detail)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ALGORITHMS)
async def test_every_algorithm(tmp_path, monkeypatch, name, workers):
    """With lanes that rest and come back, policies that are shared and split, evaluations beside updates."""
    monkeypatch.syspath_prepend(SCRIPTED)
    env = TEAM if name in ("vdn", "qmix", "pqn_vdn") else RIVALS
    folder = new(tmp_path, env=env, algorithm={"name": name, **ALGORITHMS[name]}, **EVERYTHING)
    await run(folder, workers)
    check_same_weights(folder)


@pytest.mark.parametrize("workers", [0, 2])
async def test_rollouts_beside_updates(tmp_path, workers):
    folder = new(tmp_path, schedule={"name": "pipelined"}, stop={"rounds": 6})
    await run(folder, workers)
    check_same_weights(folder, staleness=1)


@pytest.mark.parametrize("name", ["ippo", "qmix"])
async def test_a_job_that_was_killed_goes_on_from_its_checkpoint(tmp_path, kill_at, name):
    algorithm = {"name": name, **ALGORITHMS[name]}
    folder = new(tmp_path, algorithm=algorithm, checkpoint={"every": 2, "keep": 2}, stop={"rounds": 6})
    kill_at("coordinator.record.before", 4)
    with pytest.raises(KilledError):
        await run(folder)
    await run(folder)
    check_same_weights(folder)


@pytest.mark.parametrize("killed", [False, True])
async def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path, kill_at, killed):
    folder = new(
        tmp_path,
        seed=1,
        algorithm={"name": "ippo", "lr": 0.5},
        evaluation={"every": 2, "episodes": 4, "random_episodes": 4},
        checkpoint={"every": 0, "keep": 1, "best": True},
        stop={"rounds": 9},
    )
    if killed:
        kill_at("coordinator.record.before", 7)
        with pytest.raises(KilledError):
            await run(folder)
    await run(folder)
    evaluated = [each for record in folder.records() for each in record.evaluations]
    assert [each.rounds for each in evaluated] == [2, 4, 6, 8, 9]
    best = max(evaluated, key=lambda each: each.returns.mean).rounds
    assert best < 9, "the newest one would be kept anyway"
    assert folder.checkpoints.rounds() == (best, 9)
    assert load_policy(folder.path, round="best").origin.round == best


async def test_an_asynchronous_job_can_be_rerun(tmp_path):
    """Its own events, in a process of its own, with other actors: the same weights."""
    first = new(tmp_path, actors=FRESH, schedule={"name": "stellaris"}, stop={"rounds": 8})
    await run(first)
    spec, _ = first.load()
    again = created(tmp_path / "again", replayed(spec, list(first.records())))
    await run(again, 2)
    assert saved(first) == saved(again)
    played = {each.worker for record in again.records() for each in record.invocations if each.function == "actor"}
    assert played == {"actor-0", "actor-1"}


@pytest.mark.parametrize("schedule", ["synchronous", "stellaris"])
async def test_device_is_measured_as_in_services_and_recorded(tmp_path, monkeypatch, schedule):
    asked = []
    monkeypatch.setattr(precision, "choose_device", lambda *given: asked.append(given) or ("cpu", "measured"))
    folder = new(tmp_path, actors=FRESH, schedule=schedule, stop={"rounds": 3})
    await run(folder)
    [(device, load)] = asked
    assert (device, load.samples) == ("auto", folder.load()[0].minibatch_samples)
    assert [bool(record.computed_by) for record in folder.records()] == [True, False, False]


def saved(folder: RunFolder) -> dict[str, dict[str, bytes]]:
    rounds = len(list(folder.records()))
    policies = folder.checkpoints.load(rounds).policies
    return {name: {part: bytes(blob) for part, blob in each.blobs.items()} for name, each in policies.items()}


async def test_a_task_whose_worker_dies_is_repeated_on_a_new_one(tmp_path):
    """Its lane is loaded there from its carry."""
    folder = new(tmp_path, actors={"count": 2, "envs": 2, "steps": 3, "episodes": "carried"})
    actors = ProcessActors(2)
    pools = InProcessPools(actors, tmp_path / "replay")
    real, rounds = pools.update, []

    async def update(*arguments, **options):
        rounds.append(options["round_"])
        if options["round_"] == 3:
            os.kill(actors._workers[1]._process.pid, signal.SIGKILL)
        return await real(*arguments, **options)

    pools.update = update
    await run_on(folder, pools)
    await pools.close()
    attempts = [each.attempt for record in folder.records() for each in record.invocations if each.function == "actor"]
    assert rounds == [0, 1, 2, 3, 4] and attempts.count(2) == 1 and set(attempts) == {1, 2}
    check_same_weights(folder)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("way", ["sys_exit", "keyboard_interrupt", "generator_exit", "cancelled"])
async def test_an_environment_cannot_end_the_command_without_a_word(tmp_path, monkeypatch, way, workers):
    """It ended with exit code 0 and no result, and its job seemed to run for ever."""
    monkeypatch.setenv("MARLESS_ENV_MODULES", "tests.misbehaving_env")
    env = {"name": MISBEHAVING, "options": {"way": way, "call": "step"}}
    folder = new(tmp_path, env=env, actors=FRESH)
    async with pools_of(folder, workers) as pools:
        done = await go_on(folder, pools)
    assert done.status.state == "FAILED"
    assert done.status.reason.startswith("the code that ran tried to end its process: ")


async def test_an_environment_that_kills_its_worker_is_not_blamed_on_time(tmp_path, monkeypatch):
    monkeypatch.setenv("MARLESS_ENV_MODULES", "tests.misbehaving_env")
    env = {"name": MISBEHAVING, "options": {"way": "sigkill", "call": "step"}}
    folder = new(tmp_path, env=env, actors=FRESH)
    async with pools_of(folder, 1) as pools:
        done = await go_on(folder, pools)
    assert done.status.state == "FAILED"
    assert "tried 3 times, and each time its process has ended" in done.status.reason


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("schedule", ["synchronous", "stellaris"])
async def test_episodes_that_a_fault_has_ended_are_counted_apart(tmp_path, monkeypatch, workers, schedule):
    monkeypatch.syspath_prepend(SCRIPTED)
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTED))
    folder = new(tmp_path, **broken(tmp_path / "notes"), schedule={"name": schedule})
    await run(folder, workers)
    rounds = [(each.broken_episodes, each.returns.episodes if each.returns else 0) for each in folder.records()]
    assert all(faults == counted for faults, counted in rounds) and sum(faults for faults, _ in rounds) >= 5


@pytest.mark.parametrize("workers", [0, 2])
async def test_an_environment_that_raises_ends_its_job_in_one_sentence(tmp_path, monkeypatch, workers):
    monkeypatch.setenv("MARLESS_ENV_MODULES", "tests.misbehaving_env")
    env = {"name": MISBEHAVING, "options": {"way": "memory_error", "call": "step"}}
    folder = new(tmp_path, env=env, actors=FRESH)
    async with pools_of(folder, workers) as pools:
        done = await go_on(folder, pools)
    assert done.status.state == "FAILED"
    assert "\n" not in done.status.reason


async def test_a_number_that_is_none_ends_its_job_with_copy_and_step(tmp_path, monkeypatch):
    monkeypatch.setenv("MARLESS_ENV_MODULES", "tests")
    name = "gymnasium/tests.unit.learning.envs.gymnasium_cases:Wrong"
    folder = new(tmp_path, env={"name": name, "options": {"way": "nan"}}, actors=FRESH)
    async with pools_of(folder, 0) as pools:
        done = await go_on(folder, pools)
    assert done.status.state == "FAILED"
    assert "copy 0 at step 3 of its episode observes NaN or infinite values" in done.status.reason


async def test_an_environment_that_hangs_in_a_worker_ends_its_job_with_advice(tmp_path, monkeypatch):
    monkeypatch.setenv("MARLESS_ENV_MODULES", "tests.misbehaving_env")
    env = {"name": MISBEHAVING, "options": {"way": "hold_the_lock", "call": "step"}}
    folder = new(tmp_path, env=env, actors={**FRESH, "timeout_s": 1.0})
    async with pools_of(folder, 1) as pools:
        done = await go_on(folder, pools)
    assert done.status.state == "FAILED"
    assert "tried 3 times" in done.status.reason and "actors.timeout_s (1 s); raise it" in done.status.reason


def test_modes_have_the_numbers_of_the_services():
    """They are a part of every actor's seed."""
    numbers = {mode.name: mode.value for mode in Mode}
    assert numbers == {
        name.removeprefix("ROLLOUT_MODE_"): number for name, number in actor_pool_pb2.RolloutMode.items() if number
    }
