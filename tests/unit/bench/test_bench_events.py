"""What a measured program says, and when its clock stands still."""

import subprocess
import sys

from bench.harness import ROOT, json_lines

PROGRAM = """
import time
clock = iter({clock})
time.time = lambda: next(clock)
from bench.events import Events, Options
events = Events(Options({options}))
while not events.finished:
    print("a library talks")
    events.iteration(lambda seed: -30.0 + 5 * seed, env_steps=10)
"""


def run(options, clock):
    program = PROGRAM.format(options=options, clock=clock)
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return ended.stdout.splitlines(), ended.stderr


def test_evaluations_stop_the_clock_and_libraries_are_kept_off_stdout():
    # Iterations end at 101, 103 and 113; the second is evaluated from 103 to 108.
    lines, noise = run("30, 0, 2, None, 100.0, 1", [101.0, 101.0, 103.0, 108.0, 113.0, 113.0])
    assert noise.count("a library talks") == 3
    assert [(e["env_steps"], e["wall_s"], e["return"]) for e in json_lines(lines)] == [
        (10, 1.0, None),
        (20, 3.0, -20.0),
        (30, 8.0, None),
    ]
    assert len(lines) == 3


def test_a_run_stops_at_its_return():
    lines, _ = run("1000, 0, 1, -20.0, 0.0, 1", [float(t) for t in range(20)])
    assert [e["return"] for e in json_lines(lines)] == [-25.0, -20.0]
