"""Seeds of the simulation, and that each of them can be replayed."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from tests.simulation import run
from tests.simulation.chaos import LONG_S, SPAN_S, Fault, drawn
from tests.simulation.network import Weather
from tests.simulation.run import IN_ROUNDS, PLANS, plan_of, simulate
from tests.simulation.system import LEASE_S

SEEDS = range(300)
REPLAYED = range(4)
FINGERPRINTS = (
    "from tests.simulation.run import plan_of, simulate\n"
    f"for seed in range({REPLAYED.start}, {REPLAYED.stop}): print(simulate(seed, plan_of(seed)).fingerprint)"
)


@pytest.mark.alone
def test_whatever_befalls_the_system_a_job_comes_to_what_it_must() -> None:
    """A process for each core simulates its share; the first failing seed ends all, and is printed event by event.

    `make faults` simulates many more.
    """
    command = [sys.executable, "-m", "tests.simulation", f"--seeds={SEEDS.start}:{SEEDS.stop}"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=600)
    assert ended.returncode == 0, ended.stdout[-10_000:]


def test_a_store_that_loses_a_gradient_while_its_learner_publishes_the_next_one() -> None:
    assert not simulate(3831, plan_of(3831)).problems


@pytest.mark.parametrize("seed", [93293, 95077])
def test_a_coordinator_that_dies_after_its_store_has_lost_gradients_that_it_was_about_to_apply(seed: int) -> None:
    """Its successor does not take the gradients that are computed in their place for those that were lost."""
    assert not simulate(seed, plan_of(seed)).problems


def test_workers_that_are_killed_one_after_another_while_they_start() -> None:
    assert not simulate(18750, plan_of(18750)).problems


def test_a_pool_that_drops_the_replay_of_a_job_that_is_being_opened() -> None:
    """A request to close the job arrives a second time."""
    assert not simulate(6422, plan_of(6422)).problems


def test_a_coordinator_that_was_paused_as_it_took_a_job_over_and_finds_another_one_there() -> None:
    assert not simulate(65596, plan_of(65596)).problems


def test_a_pool_that_drops_a_job_before_it_has_a_worker_for_the_first_versions() -> None:
    """So, too; the coordinator opens the job once more, because the pool says that it is not open."""
    assert not simulate(37054, plan_of(37054)).problems


def test_a_coordinator_that_goes_on_after_it_was_replaced_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one has taken the job over, or the client's request; in seed 4, both accept the same one."""
    monkeypatch.setattr(run, "drawn", _with_a_replaced_coordinator)
    found = {seed: simulate(seed, IN_ROUNDS[seed % len(IN_ROUNDS)]).problems for seed in range(30)}
    assert not any(found.values()), found


def _with_a_replaced_coordinator(chance: random.Random) -> tuple[Weather, list[Fault]]:
    weather, faults = drawn(chance)
    paused_s = chance.uniform(LEASE_S, LONG_S)
    paused = Fault(chance.uniform(0.05, SPAN_S), "pause", "coordinator", for_s=paused_s)
    return weather, sorted((*faults, paused), key=lambda fault: fault.at_s)


def test_seeds_take_turns_among_all_plans() -> None:
    assert {plan_of(seed) for seed in SEEDS} == set(PLANS)
    assert len(PLANS) == 8


def test_seeds_differ_in_what_happens() -> None:
    assert len({simulate(seed, PLANS[0]).fingerprint for seed in REPLAYED}) == len(REPLAYED)


def test_a_seed_replays_identically() -> None:
    first, again = ([simulate(seed, plan_of(seed)).fingerprint for seed in REPLAYED] for _ in range(2))
    assert first == again


def test_a_seed_replays_identically_in_a_process_with_other_hashes() -> None:
    here = [simulate(seed, plan_of(seed)).fingerprint for seed in REPLAYED]
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    command, environment = [sys.executable, "-c", FINGERPRINTS], {**os.environ, "PYTHONHASHSEED": hash_seed}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert told.stdout.split() == here
