"""Measures what libraries would do in the place of our own code or of Python's: which of them pay, and which do not.

    pip install --target LIBRARIES ruamel.yaml pydantic-settings uvloop
    PYTHONPATH=LIBRARIES python -m bench.libraries --before DIR

Each part is measured in processes of its own, ours and the library's in turns. A library that is not installed is left
out. `--before` is a checkout, with its own environment, of the code that read records without msgspec.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import harness
from bench.harness import ROOT, Row, spread
from bench.round_cpu import TOTAL, Case, measured
from bench.systems import checkout, program_of
from marless.core.compiling import COMPILED

ENV_STEPS = 240_000
TIMED = """
import time, json

def best(call, seconds=0.3):
    found, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until or len(found) < 3:
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    print(json.dumps(1000 * min(found)))

"""
"""The beginning of programs that print the CPU milliseconds of a call, in the best of its runs."""
YAML_OURS = """
from pathlib import Path
from marless.core.documents import yaml_of
text = Path("examples/spread.yaml").read_text()
best(lambda: yaml_of(text, "job file"))
"""
YAML_RUAMEL = """
from pathlib import Path
from ruamel.yaml import YAML
text = Path("examples/spread.yaml").read_text()

def read():
    for _ in YAML(typ="safe", pure=True).parse(text):  # our bounds are checked on events
        pass
    YAML(typ="safe", pure=True).load(text)

best(read)
"""
ARGUMENTS = ["--actor-pool=unix:a", "--learner-pool=unix:b", "--param-store=unix:c", "--runs=r"]
OPTIONS_OURS = f"""
import marless.services.coordinator.config as config
start = time.process_time()
config.parse({ARGUMENTS})
print(json.dumps(1000 * (time.process_time() - start)))
"""
OPTIONS_PYDANTIC = f"""
import marless.services.coordinator.config
start = time.process_time()
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

texts = "actor_pool learner_pool param_store runs listen advertise metrics tokens tls_cert tls_key tls_ca copies only"
fields = {{name: (str, Field("", description="a text")) for name in texts.split()}}
fields |= {{name: (float, Field(9.0, gt=0)) for name in ("running_jobs", "lease_s", "patience_s", "uploads_bytes")}}
config = SettingsConfigDict(cli_parse_args={ARGUMENTS}, cli_kebab_case=True, cli_prog_name="coordinator")
body = {{"__module__": "m", "model_config": config}} | {{name: field for name, (_, field) in fields.items()}}
body["__annotations__"] = {{name: kind for name, (kind, _) in fields.items()}}
type("Options", (BaseSettings,), body)()
print(json.dumps(1000 * (time.process_time() - start)))
"""
START = """
import asyncio, statistics, sys

async def main():
    ballast = bytearray(200 * 2**20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    found = []
    for _ in range(30):
        start = time.perf_counter()
        process = await asyncio.create_subprocess_exec("/bin/true")
        found.append(1000 * (time.perf_counter() - start))
        await process.wait()
    print(json.dumps(statistics.median(found)))

"""
START_ASYNCIO = START + "asyncio.run(main())\n"
START_UVLOOP = START + "import uvloop\nuvloop.run(main())\n"
RECORD = """
from marless.jobs.record import from_json
from pathlib import Path
lines = Path(RECORDS).read_text().splitlines()
best(lambda: [from_json(line) for line in lines])
"""


@dataclass(frozen=True)
class Part:
    """One comparison; programs print a number of milliseconds."""

    what: str
    ours: str
    theirs: str
    library: str
    module: str


PARTS = (
    Part("a job file read (CPU ms)", YAML_OURS, YAML_RUAMEL, "ruamel.yaml", "ruamel.yaml"),
    Part(
        "options of the coordinator (CPU ms)", OPTIONS_OURS, OPTIONS_PYDANTIC, "pydantic-settings", "pydantic_settings"
    ),
    Part("a process started beside 200 MB (ms)", START_ASYNCIO, START_UVLOOP, "uvloop", "uvloop"),
)


def is_there(module: str) -> bool:
    """True if a library can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even its parent
        return False


def milliseconds(program: str, root: Path = ROOT) -> float:
    """What a program prints, run in a checkout with its own environment."""
    python = Path(sys.executable) if root == ROOT else program_of(root).with_name("python")
    ended = subprocess.run(
        [python, "-c", TIMED + program], cwd=root, env=harness.variables(), capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise harness.BenchError(ended.stderr[-2000:])
    return float(ended.stdout)


def compared(what: str, library: str, found: Mapping[str, list[float]], digits: int = 2) -> Row:
    """A row: ours and theirs."""
    ours, theirs = (spread(values) for values in found.values())
    ratio = round(theirs.median / ours.median, 2)
    return {"part": what, "ours": ours.cell(digits), "library": library, "its": theirs.cell(digits), "ratio": ratio}


@contextmanager
def loop_of(library: str) -> Iterator[None]:
    """Run services that are started in the context on the loop of a library; "": on that of asyncio."""
    before = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory() as folder:
        set_policy = "import asyncio, uvloop\nasyncio.set_event_loop_policy(uvloop.EventLoopPolicy())\n"
        Path(folder, "sitecustomize.py").write_text(set_policy if library else "", "utf-8")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, before)))
        try:
            yield
        finally:
            os.environ["PYTHONPATH"] = before or ""


def rounds(runs: int, env_steps: int) -> Row:
    """CPU of a synchronous round, with services on each loop in turns."""
    found: dict[str, list[float]] = {"": [], "uvloop": []}
    for seed in range(runs):
        for library, values in found.items():
            with loop_of(library):
                values.append(measured(Case("synchronous", COMPILED), seed, env_steps)[TOTAL])
            harness.say(f"round {seed + 1} of {runs}, {library or 'asyncio'}: {values[-1]:.1f} ms")
    return compared("a round of all processes (CPU ms)", "uvloop", found, 1)


def records(before: Path, runs: int) -> Row:
    """Reading the records of a job, with the code of another checkout and with this one."""
    with tempfile.TemporaryDirectory() as folder:
        job, forty = ROOT / "examples" / "spread.yaml", "stop={rounds: 40}"
        command: list[str | Path] = [program_of(ROOT), "train", job, "--set", forty, "--in-process", "-o", "json"]
        output = harness.run(command, timeout_s=120, cwd=Path(folder))
        program = RECORD.replace("RECORDS", repr(str(Path(output.lines[-1]["run_dir"], "rounds.jsonl"))))
        found: dict[str, list[float]] = {"before": [], "now": []}
        for _ in range(runs):
            found["before"].append(milliseconds(program, before))
            found["now"].append(milliseconds(program))
    return compared("40 records read (CPU ms)", "msgspec", found)


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=7)
    parser.add_argument("--before", type=Path, help="a checkout of the code before msgspec")
    parser.add_argument("--env-steps", type=int, default=ENV_STEPS, help="of each run of a job")
    args = parser.parse_args()
    before, about, rows = checkout(parser, args.before), harness.machine(), []
    for part in PARTS:
        if is_there(part.module):
            found: dict[str, list[float]] = {"ours": [], "theirs": []}
            for _ in range(args.runs):
                found["ours"].append(milliseconds(part.ours))
                found["theirs"].append(milliseconds(part.theirs))
            rows.append(compared(part.what, part.library, found))
            harness.say(f"{part.what}: {rows[-1]['ratio']} with {part.library}")
    if is_there("uvloop"):
        rows.append(rounds(args.runs, args.env_steps))
    if before:
        rows.append(records(before, args.runs))
    harness.report("libraries", about, rows, {row["part"]: row["ratio"] for row in rows}, args.json)


if __name__ == "__main__":
    main()
