"""Simulate seeds: `python -m tests.simulation --seeds 0:1000`. `--seeds 17` replays one, and prints all that happens.

Of a seed that fails, all that happens and its problems are printed, and seeds that have not begun are left undone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.simulation.run import Simulation, plan_of, simulate

LEAST, MOST = 50, 500
"""Seeds that a process simulates: its start takes as long as many, and it keeps a little of each."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, required=True, metavar="FROM:TO", help="or one seed, to replay it")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one for each core")
    options = parser.parse_args()
    seeds, processes = options.seeds, max(1, options.processes)
    if len(seeds) == 1:
        return _tell(seeds[0], simulate(seeds[0], plan_of(seeds[0])))
    size = min(MOST, max(LEAST, -(-len(seeds) // processes)))
    parts = [seeds[at : at + size] for at in range(0, len(seeds), size)]
    return _here(parts[0]) if len(parts) == 1 else _in_processes(parts, processes)


def _seeds(text: str) -> range:
    first, colon, end = text.partition(":")
    if not first.isdecimal() or (colon and not end.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a seed nor FROM:TO")
    seeds = range(int(first), int(end) if colon else int(first) + 1)
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} holds no seed: TO is the first that is left out")
    return seeds


def _here(seeds: range) -> int:
    """Simulate seeds in this process."""
    begun_s, events = time.process_time(), 0
    for seed in seeds:
        simulation = simulate(seed, plan_of(seed))
        events += simulation.loop.events
        if simulation.problems:
            return _tell(seed, simulation)
    cpu_s = time.process_time() - begun_s
    sys.stdout.write(f"seeds {seeds.start}:{seeds.stop}: {events:,} events, {cpu_s:.1f} s of CPU, no problem\n")
    return 0


def _in_processes(parts: list[range], processes: int) -> int:
    """Simulate each part in a process of its own; those that have begun are finished, whatever the others find."""
    failed: list[int] = []

    def run(seeds: range) -> None:
        command = [sys.executable, "-m", "tests.simulation", "--processes=1", f"--seeds={seeds.start}:{seeds.stop}"]
        if not failed and (code := subprocess.run(command, check=False).returncode):
            failed.append(code)

    begun_s = time.monotonic()
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(run, parts))
    sys.stdout.write(f"{'FAILED' if failed else 'no problem'} after {time.monotonic() - begun_s:.1f} s\n")
    return 1 if failed else 0


def _tell(seed: int, simulation: Simulation) -> int:
    """Print what happened in a seed."""
    said = f"seed {seed}, {plan_of(seed)}, {simulation.loop.events:,} events, fingerprint {simulation.fingerprint}"
    problems = [f"problem: {problem}" for problem in simulation.problems]
    again = f"replay: python -m tests.simulation --seeds {seed}"
    sys.stdout.write("\n".join((*simulation.lines, said, *problems, again)) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
