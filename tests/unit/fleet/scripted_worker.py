"""A module of workers: notes what a worker finds in its process, then does what its last word says."""

import json
import os
import signal
import sys
from pathlib import Path

import numpy.random  # at once: NumPy imports it when it is first used, and then no fork would share it


def main(arguments):
    place, name = Path(arguments[arguments.index("--place") + 1]), arguments[-1]
    descriptors = sorted(Path("/proc/self/fd").iterdir(), key=lambda each: int(each.name))
    facts = {
        "arguments": arguments,
        "session": os.getsid(0),
        "descriptors": [str(each.readlink()) for each in descriptors[:-1]],  # the last one listed them
        "variables": dict(os.environ),
        "mark": os.environ["MARLESS_WORKER"],
        "drawn": numpy.random.random(),
        "handover": json.loads(sys.stdin.readline()),
    }
    unfinished = place / f"{name}.part"
    unfinished.write_text(json.dumps(facts))
    unfinished.rename(place / name)
    if name == "exits":
        sys.exit(3)
    if name == "dies":
        os.kill(os.getpid(), signal.SIGTERM)
    sys.stdin.read()
