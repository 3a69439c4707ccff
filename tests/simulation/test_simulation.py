"""Seeds of the simulation, and that each of them can be replayed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.run import PLANS, plan_of, simulate

SEEDS = range(1000)
REPLAYED = range(4)
FINGERPRINTS = (
    "from tests.simulation.run import plan_of, simulate\n"
    f"for seed in range({REPLAYED.start}, {REPLAYED.stop}): print(simulate(seed, plan_of(seed)).fingerprint)"
)


@pytest.mark.alone
def test_whatever_befalls_the_system_a_job_comes_to_what_it_must() -> None:
    """A process for each core simulates its share; the first failing seed ends all, and is printed event by event."""
    command = [sys.executable, "-m", "tests.simulation", f"--seeds={SEEDS.start}:{SEEDS.stop}"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=600)
    assert ended.returncode == 0, ended.stdout[-10_000:]


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
