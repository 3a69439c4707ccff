"""The simulation finds bugs that are planted into the system, and nothing in the same seeds without them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from marless.fleet.workers import ConnectedWorkers
from marless.rpc import param_store
from marless.services.coordinator.execution.asynchronous_state import Clocks, StoredGradients
from marless.services.coordinator.execution.planning import RoundPlan
from marless.services.coordinator.execution.recovery import Recovery
from marless.services.coordinator.execution.version_commands import VersionCommands
from marless.services.coordinator.state.pending_rollouts import PendingRollouts
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.learner_pool import stored_results, trajectory_buffer
from marless.services.param_store import store
from tests.simulation import run
from tests.simulation.chaos import LONG_S, SPAN_S, Fault, drawn
from tests.simulation.network import Weather
from tests.simulation.run import IN_ROUNDS, OF_GRADIENTS, OF_UPDATES, REGROUPING, Plan, simulate, undisturbed
from tests.simulation.system import LEASE_S

Plant = Callable[[pytest.MonkeyPatch], None]
GRADIENTS_GO = "for i = gradients, others - 1, 2 do\n  remove(ARGV[i])\nend"
GRADIENTS_STAY = ""


def _in_script(name: str, correct: str, wrong: str) -> Plant:
    script = getattr(store, name)

    def plant(patched: pytest.MonkeyPatch) -> None:
        assert script.count(correct) == 1
        patched.setattr(store, name, script.replace(correct, wrong))

    return plant


def _repeated_writes_are_new(patched: pytest.MonkeyPatch) -> None:
    """An update that is repeated publishes under another key than the first time."""
    request_id, serial = param_store.publish_key, itertools.count()
    patched.setattr(param_store, "publish_key", lambda *given: f"{request_id(*given)}/{next(serial)}")


def _departures_wake_nobody(patched: pytest.MonkeyPatch) -> None:
    leave = ConnectedWorkers.release

    def silent(attendance: ConnectedWorkers, name: str, worker: object) -> None:
        waiting = dict(attendance._departures)
        attendance._departures.clear()
        leave(attendance, name, worker)
        attendance._departures.update(waiting)

    patched.setattr(ConnectedWorkers, "release", silent)


def _pending_is_not_written(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(RunFolder, "write_pending", lambda folder, pending: None)


def _what_was_begun_is_unneeded(patched: pytest.MonkeyPatch) -> None:
    """A coordinator removes the gradient of a learner whose number an earlier one had given, and it has given again."""
    patched.setattr(StoredGradients, "begins", lambda gradients, learner: None)


def _recovery_keeps_its_epoch(patched: pytest.MonkeyPatch) -> None:
    """Numbers of rollouts that were forgotten are given again, and what was sampled under them before is kept.

    It shows if the store loses everything, so it does in each seed.
    """
    begin, drop = Recovery._begin_epoch, Recovery._delete_versions

    async def begun(recovery: Recovery) -> None:
        if not recovery.epoch:
            await begin(recovery)

    async def dropped(recovery: Recovery) -> None:
        await drop(recovery)
        recovery.epoch = 0

    patched.setattr(Recovery, "_begin_epoch", begun)
    patched.setattr(Recovery, "_delete_versions", dropped)
    patched.setattr(run, "drawn", _with_a_wipe)


def _with_a_wipe(chance: random.Random) -> tuple[Weather, list[Fault]]:
    weather, faults = drawn(chance)
    return weather, sorted((*faults, Fault(chance.uniform(0.05, SPAN_S), "wipe")), key=lambda fault: fault.at_s)


def _what_is_lost_stays_pending(patched: pytest.MonkeyPatch) -> None:
    """A coordinator forgets gradients that its store has lost, and its successor finds them in pending.json.

    It shows if the store loses everything, and the coordinator dies soon afterwards, so it does in each seed.
    """

    async def forgotten(pending: PendingRollouts) -> None:
        pending.lost()

    patched.setattr(PendingRollouts, "discard", forgotten)
    patched.setattr(run, "drawn", _with_a_wipe_and_a_kill)


def _with_a_wipe_and_a_kill(chance: random.Random) -> tuple[Weather, list[Fault]]:
    at_s = chance.uniform(0.05, SPAN_S / 2)
    killed = Fault(at_s + chance.uniform(0.05, 0.2), "kill", "coordinator")
    return Weather(), [Fault(at_s, "wipe"), killed]


def _earlier_epochs_publish(patched: pytest.MonkeyPatch) -> None:
    """The store takes what was asked for by a coordinator that has been replaced; each seed may have one."""
    _in_script("_PUBLISH", "if epoch < newest then", "if epoch < newest - 1 then")(patched)
    patched.setattr(run, "drawn", _with_a_late_learner)


def _with_a_late_learner(chance: random.Random) -> tuple[Weather, list[Fault]]:
    """A learner goes on after another coordinator has taken the place of the one that asked for its update."""
    at_s, paused_s = chance.uniform(0.03, SPAN_S / 2), chance.uniform(LEASE_S, LONG_S)
    killed = Fault(at_s + chance.uniform(0.0, 0.02), "kill", "coordinator")
    return Weather(), [Fault(at_s, "pause", "learner", for_s=paused_s), killed]


def _an_update_is_asked_again_of_other_rollouts(patched: pytest.MonkeyPatch) -> None:
    """A coordinator that takes a job over forgets which update it has asked for; the pool answers for any rollouts."""
    go_on = VersionCommands._go_on

    async def forgetful(work: VersionCommands, recorded: object) -> object:
        work._rolled_out.lost()
        return await go_on(work, recorded)

    patched.setattr(VersionCommands, "_go_on", forgetful)
    patched.setattr(stored_results, "update_key", lambda update: update.round)


def _what_was_under_way_goes_on_in_new_groups(patched: pytest.MonkeyPatch) -> None:
    def entered(work: VersionCommands, plan: RoundPlan, state: object, *, fixed: bool) -> tuple[()]:
        work._clocks.enter(plan)
        return ()

    patched.setattr(VersionCommands, "enter", entered)


def _uploads_are_never_there(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(trajectory_buffer, "_is_there", lambda known, header: False)


@pytest.mark.parametrize(
    ("plant", "seeds", "problem"),
    [
        (_pending_is_not_written, range(4), "before its rollout was written"),
        (_departures_wake_nobody, range(16), ""),
        (_uploads_are_never_there, range(16), "was accepted twice"),
        (_in_script("_PUBLISH", "redis.call('HGET', requests, req_id)", "false"), range(16), "this write expects"),
        (_repeated_writes_are_new, range(100), "this write expects"),
        (_earlier_epochs_publish, range(60), "has begun"),
    ],
    ids=["pending", "lost wake-up", "upload's key", "publish's key", "published anew", "fence"],
)
def test_a_planted_bug_is_found(plant: Plant, seeds: range, problem: str) -> None:
    for plan in IN_ROUNDS:
        undisturbed(plan)  # made without the bug
    _is_found(plant, seeds, problem, IN_ROUNDS)


@pytest.mark.parametrize(
    ("plant", "seeds", "problem"),
    [
        (_pending_is_not_written, range(4), "before its rollout was written"),
        (_in_script("_ADVANCE", GRADIENTS_GO, GRADIENTS_STAY), range(4), "and it is still in the store"),
        (_what_was_begun_is_unneeded, range(60), "given twice"),
        (_recovery_keeps_its_epoch, range(100), "has aggregated again"),
        (_what_is_lost_stays_pending, range(77, 200), "something else than its records"),
    ],
    ids=["pending", "gradients stay", "found again", "epoch", "lost"],
)
def test_a_bug_that_is_planted_into_asynchronous_training_is_found(plant: Plant, seeds: range, problem: str) -> None:
    _is_found(plant, seeds, problem, OF_GRADIENTS)


@pytest.mark.parametrize(
    ("plant", "seeds", "problem"),
    [
        (_pending_is_not_written, range(4), "before its rollout was written"),
        (_an_update_is_asked_again_of_other_rollouts, range(91, 200), "something else than its records"),
    ],
    ids=["pending", "other rollouts"],
)
def test_a_bug_that_is_planted_into_updates_without_rounds_is_found(plant: Plant, seeds: range, problem: str) -> None:
    _is_found(plant, seeds, problem, OF_UPDATES)


@pytest.mark.parametrize(
    ("plant", "seeds", "problem"),
    [
        (_what_was_under_way_goes_on_in_new_groups, range(4), "is to be applied to"),
        (lambda patched: patched.setattr(Clocks, "sources", {}), range(4), "something else than its records"),
    ],
    ids=["no restart", "no sources"],
)
def test_a_bug_that_is_planted_into_changes_of_groups_is_found(plant: Plant, seeds: range, problem: str) -> None:
    _is_found(plant, seeds, problem, REGROUPING)


def _is_found(plant: Plant, seeds: range, problem: str, plans: Sequence[Plan]) -> None:
    """One of the seeds, which begin a little before the first that finds it, finds the bug, and nothing without it."""

    def problems_of(seed: int) -> list[str]:
        return simulate(seed, plans[seed % len(plans)]).problems

    with pytest.MonkeyPatch.context() as patched:
        plant(patched)
        seed, problems = next((seed, got) for seed in seeds if (got := problems_of(seed)))
    assert any(problem in each for each in problems), problems
    assert all(not problems_of(each) for each in range(max(0, seed - 2), seed + 1))
