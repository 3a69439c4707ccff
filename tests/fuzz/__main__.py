"""`python -m tests.fuzz`: ten million structured inputs, all targets, all cores; exit code 1 if anything is found.

`python -m tests.fuzz --replay TARGET HEX` shows what one input does. Where atheris is installed (`make fuzz`), coverage
of our own code guides which decisions are tried; the seed makes a run repeatable either way. Nothing is written but
what readers need, in temporary places.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

FULL = 10_000_000
"""Executions at full size: `reliability.md`, S11."""
SLICES, SLICE = 8, 50_000
"""Processes per target, at most, so that all cores are busy to the end; and inputs of one, at least."""


def shares(total: int, chosen: list[str]) -> Iterator[tuple[str, int]]:
    """How many executions each target gets."""
    from tests.fuzz.targets import TARGETS

    whole = sum(TARGETS[name].share for name in chosen)
    for name in chosen:
        yield name, -(-total * TARGETS[name].share // whole)


def slices(count: int) -> list[int]:
    """So many inputs, divided among processes."""
    processes = min(max(count // SLICE, 1), SLICES)
    return [-(-count // processes)] * processes


def run(name: str, executions: int, seed: int, guided: bool) -> dict[str, object]:
    """One process on one target; its findings. Raises RuntimeError, with its last words, if it dies."""
    command = [
        sys.executable,
        "-m",
        "tests.fuzz",
        "--worker",
        name,
        "--executions",
        str(executions),
        "--seed",
        str(seed),
    ]
    done = subprocess.run([*command, *(["--guided"] if guided else [])], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"executions"')]
    if not lines:
        raise RuntimeError(f"{name}, seed {seed}, ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return json.loads(lines[-1])


def work(name: str, executions: int, seed: int, guided: bool) -> None:
    """What a process does: print its findings as one line of JSON."""
    warnings.simplefilter("ignore")
    if guided:
        from tests.fuzz.guided import guide

        guide(name, executions, seed)
        return
    from tests.fuzz.running import plainly

    print(plainly(name, executions, seed).to_json())


def replay(name: str, data: str) -> int:
    """Run one input again; its traceback, or what it ended in."""
    from marless.core.errors import MarlessError
    from tests.fuzz.choices import Choices
    from tests.fuzz.targets import TARGETS

    try:
        print("it was read:", TARGETS[name].read(Choices(bytes.fromhex(data))))
    except MarlessError as error:
        print(f"{type(error).__name__}: {error}")
    return 0


def fuzz(total: int, chosen: list[str], seed: int, guided: bool) -> int:
    """Run all slices on all cores; a line for each target and each finding."""
    started_s, executed, kinds = time.perf_counter(), 0, 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {
            name: [
                pool.submit(run, name, size, seed * SLICES + part, guided) for part, size in enumerate(slices(count))
            ]
            for name, count in shares(total, chosen)
        }
        for name, futures in running.items():
            parts = [future.result() for future in futures]
            count, seconds, refused = (sum(part[key] for part in parts) for key in ("executions", "seconds", "refused"))
            uncaught = {key: found for part in parts for key, found in part["uncaught"].items()}
            executed, kinds = executed + count, kinds + len(uncaught)
            print(
                f"{name:12} {count:>10,} inputs  {count / seconds:>8,.0f}/s  {refused / count:4.0%} refused  ", end=""
            )
            print(f"{len(uncaught)} uncaught", flush=True)
            for key, (data, trace) in uncaught.items():
                print(f"  {key}\n  replay: python -m tests.fuzz --replay {name} {data}\n{trace}")
    print(f"{executed:,} inputs in {time.perf_counter() - started_s:,.0f} s, {kinds} kinds of uncaught errors")
    return 1 if kinds else 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="which; all by default")
    parser.add_argument("--executions", type=int, default=FULL, help="inputs of all targets together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="without atheris")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "HEX"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--guided", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker, given.executions, given.seed, given.guided)
        return 0
    if given.replay:
        return replay(*given.replay)
    from tests.fuzz.targets import TARGETS

    guided = not given.plain and importlib.util.find_spec("atheris") is not None
    print("guided by coverage (atheris)" if guided else "not guided by coverage", flush=True)
    return fuzz(given.executions, given.targets or list(TARGETS), given.seed, guided)


if __name__ == "__main__":
    sys.exit(main())
