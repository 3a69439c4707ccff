"""One target under atheris, in a process of its own: libFuzzer does not return.

Much of what is fuzzed is parsed in C, where coverage says nothing, and libFuzzer then keeps shorter and shorter inputs.
So the decisions of the makers of inputs count as coverage too, and an input that is used up goes on with bytes that
follow from it.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path

import atheris

from tests.fuzz.choices import LONGEST

with atheris.instrument_imports(include=["marless", "marless_minions", "tests"]):
    from tests.fuzz import scratch
    from tests.fuzz.running import Findings, execute
    from tests.fuzz.targets import TARGETS

_BEGINNINGS = 200


def guide(name: str, executions: int, seed: int) -> None:
    """Print the findings of so many inputs as one line of JSON, and end the process."""
    found, target, source = Findings(), TARGETS[name], random.Random(f"{name}/{seed}")
    corpus = tempfile.TemporaryDirectory(prefix="marless-fuzz-")
    for number in range(_BEGINNINGS):
        (Path(corpus.name) / f"{number}").write_bytes(source.randbytes(source.randrange(4, LONGEST)))
    started_s = time.perf_counter()

    def one(data: bytes) -> None:
        execute(target, data + random.Random(data).randbytes(LONGEST - len(data)), found)
        if found.executions == executions:
            found.seconds = time.perf_counter() - started_s
            corpus.cleanup()
            scratch.clean()
            print(found.to_json(), flush=True)
            os._exit(0)

    options = [f"-seed={seed + 1}", f"-max_len={LONGEST}", "-timeout=60", f"-artifact_prefix={corpus.name}/"]
    atheris.Setup([sys.argv[0], *options, corpus.name], one)
    atheris.Fuzz()
