"""Shared by all benchmarks: running commands with a deadline, medians with ranges, tables, and JSON files."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import psutil  # type: ignore[import-untyped]  # psutil ships no types

ROOT = Path(__file__).parents[1]
OWN_ENVIRONMENTS = ROOT / "bench" / "own_environments"
"""A folder with an environment whose steps wait, another that becomes harder, and their entry points."""

Row = dict[str, Any]  # Any: a cell is text, a number, a spread as a mapping, or None for "never"

Watch = Callable[[psutil.Process], None]
WATCH_S = 0.5


class BenchError(Exception):
    """A measured program failed; the message holds the end of its output."""


@dataclass(frozen=True)
class Spread:
    """Median and range of several measurements; infinite for runs that never reached their target."""

    median: float
    low: float
    high: float
    runs: int

    def cell(self, digits: int) -> Row:
        """As a table's cell, rounded to `digits` decimals (0: integers); None for infinite values."""
        values = {"median": self.median, "min": self.low, "max": self.high}
        places = digits or None
        return {name: round(value, places) if math.isfinite(value) else None for name, value in values.items()}


def spread(values: Sequence[float]) -> Spread:
    """Median, smallest and largest of at least one value."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` % of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(math.ceil(percent / 100 * len(ordered)) - 1, 0)]


@dataclass(frozen=True)
class Output:
    """The output of a program."""

    started_s: float
    """Unix time of its start."""
    lines: tuple[Row, ...]
    """The JSON objects that it printed, in order."""


def run(argv: Sequence[str | Path], *, timeout_s: float, cwd: Path = ROOT, watch: Watch = lambda _: None) -> Output:
    """Run a program until it ends or `timeout_s` is over; then end it and its descendants, and return its output.

    While it runs, `watch` is called every `WATCH_S` seconds. Raises BenchError if it fails.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started_s = time.time()
        command = [str(part) for part in argv]
        process = psutil.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd, env=variables())
        try:
            code = _wait(process, started_s + timeout_s, watch)
        finally:
            end_tree(process)
        if code:
            raise BenchError(f"{' '.join(command)} ended with exit code {code}:\n{_tail(err)}{_tail(out)}")
        out.seek(0)
        return Output(started_s, tuple(json_lines(out.readlines())))


def variables() -> dict[str, str]:
    """The environment variables of what is measured: this program's, but for PYTHONDONTWRITEBYTECODE.

    With it, every process of marless would compile all that it imports from a checkout. Peers would compile nothing,
    because pip did that when it installed them.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def own_environments(variables_: Mapping[str, str]) -> dict[str, str]:
    """Add `OWN_ENVIRONMENTS` to PYTHONPATH, so that processes with these variables find the environments there."""
    path = os.pathsep.join(filter(None, (str(OWN_ENVIRONMENTS), variables_.get("PYTHONPATH"))))
    return {**variables_, "PYTHONPATH": path}


def _wait(process: psutil.Popen, deadline_s: float, watch: Watch) -> int:
    """Wait for the program; returns its exit code, or 0 if the deadline came first."""
    while (left_s := deadline_s - time.time()) > 0:
        try:
            return int(process.wait(min(WATCH_S, left_s)))
        except psutil.TimeoutExpired:
            watch(process)
    return 0


def json_lines(lines: Sequence[str]) -> list[Row]:
    """The JSON objects among `lines`; other lines, which libraries print, are ignored."""
    objects = []
    for line in lines:
        try:
            parsed = json.loads(line)
        except ValueError:
            continue
        if isinstance(parsed, dict):
            objects.append(parsed)
    return objects


def end_tree(process: psutil.Process) -> None:
    """End a process and its descendants: with SIGTERM, and after ten seconds with SIGKILL."""
    try:
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for signal in (psutil.Process.terminate, psutil.Process.kill):
        for member in family:
            if member.is_running():
                signal(member)
        _, family = psutil.wait_procs(family, timeout=10)


def _tail(stream: IO[str], characters: int = 2000) -> str:
    stream.seek(0)
    return stream.read()[-characters:]


def machine() -> Row:
    """The machine and versions used for the measurement, and the load average before it."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in ("torch", "numpy", "grpcio")},
        "load_before": round(os.getloadavg()[0], 2),
        "measured": time.strftime("%Y-%m-%d"),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def table(rows: Sequence[Row]) -> str:
    """An aligned Markdown table; columns in order of appearance, spreads as median (min – max)."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    body = [[_cell(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in [columns, *body]) for i in range(len(columns))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |"
        for line in [columns, rule, *body]
    )


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return f"{_cell(value['median'])} ({_cell(value['min'])} – {_cell(value['max'])})"
    if value is None:
        return "never"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def positive(text: str) -> int:
    """Parse an option that counts something; raises ArgumentTypeError, with the sentence for the user."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def rates(text: str) -> tuple[float, ...]:
    """Parse learning rates, by comma; raises ArgumentTypeError, with the sentence for the user."""
    try:
        found = numbers(text)
    except ValueError:
        found = ()
    if not found or not all(0 < rate < math.inf for rate in found):
        raise argparse.ArgumentTypeError(f"{text!r} are not learning rates above 0, as in 1e-3,2e-3")
    return found


def chosen(value: float, grid: Sequence[float]) -> str:
    """A value that was chosen from a grid, for a table: at an edge of the grid, a better one may lie beyond it."""
    edge = {max(grid): " (largest tried)", min(grid): " (smallest tried)"}.get(value, "")
    return f"{value:g}{edge if len(set(grid)) > 1 else ''}"


def parser(description: str | None, *, runs: int) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--runs", type=positive, default=runs, help="runs of each system, with seeds 0, 1, …")
    options.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the table here too")
    return options


def numbers(text: str) -> tuple[float, ...]:
    """Parse an option's numbers, by comma; raises ValueError."""
    return tuple(map(float, text.split(",")))


def report(bench: str, about: Row, rows: Sequence[Row], headline: Mapping[str, Any], file: Path | None) -> None:
    """Print the table and, if a file is named, write it with the headline figures and the machine (`about`)."""
    print(table(rows))
    print(json.dumps(headline))
    if file is not None:
        document = {"bench": bench, "machine": about, **headline, "rows": rows}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)
