"""Run one target on many inputs, and keep what was found."""

from __future__ import annotations

import json
import random
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import marless
from marless.core.errors import MarlessError
from tests.fuzz.choices import LONGEST, Choices
from tests.fuzz.targets import TARGETS, Target

OURS = (str(Path(marless.__file__ or "").parent), str(Path(__file__).parents[2] / "plugins"))


@dataclass
class Findings:
    """What came of a target's inputs."""

    executions: int = 0
    refused: int = 0
    """Ended in a domain error."""
    seconds: float = 0.0
    uncaught: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    """By kind of error and the line that raised it: an input, and the traceback."""

    def to_json(self) -> str:
        """For the process that counts; inputs as hexadecimal digits."""
        uncaught = {key: (data.hex(), trace) for key, (data, trace) in self.uncaught.items()}
        return json.dumps(vars(self) | {"uncaught": uncaught})


def execute(target: Target, data: bytes, found: Findings) -> None:
    """One input."""
    found.executions += 1
    try:
        target.read(Choices(data))
    except MarlessError:
        found.refused += 1
    except Exception as error:  # noqa: BLE001  # what is looked for
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if frame.filename.startswith(OURS)]
        where = (ours or list(frames))[-1]
        key = f"{type(error).__name__} at {where.filename.rpartition('/')[2]}:{where.lineno}"
        if key not in found.uncaught:
            found.uncaught[key] = (data, "".join(traceback.format_exception(error)[-6:]))


def plainly(name: str, executions: int, seed: int) -> Findings:
    """Random decisions from a seed."""
    found, source, started_s = Findings(), random.Random(f"{name}/{seed}"), time.perf_counter()
    for _ in range(executions):
        execute(TARGETS[name], source.randbytes(source.randrange(4, LONGEST)), found)
    found.seconds = time.perf_counter() - started_s
    return found
