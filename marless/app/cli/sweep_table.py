"""The results of a sweep in one table: its jobs, and the mean of each setting over its seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marless.app.cli.job_table import TableColumn, fitted
from marless.app.cli.options import Output
from marless.app.cli.output import console, data, duration, harmless, job_fields, number, percent, show_object
from marless.app.cli.sweep import SweepRun
from marless.app.client import Job


@dataclass(frozen=True)
class _Row:
    """A row of the table: a job, or the mean of several."""

    name: str
    state: str
    jobs: Sequence[Job]

    def known(self, of: Callable[[Job], float | None]) -> list[float]:
        """The known values of a quantity for its jobs."""
        return [value for job in self.jobs if (value := of(job)) is not None]


def show_sweep(runs: Sequence[SweepRun], jobs: Sequence[Job], output: Output) -> None:
    """Print the jobs of a sweep, with the mean of each setting."""
    match output:
        case Output.table:
            shown = console()
            shown.print(fitted(_columns(_rows(runs, jobs)), shown.width))
        case Output.name:
            for job in jobs:
                data(job.job)
        case Output.jsonl:
            for run, job in zip(runs, jobs, strict=True):
                data(json.dumps(_about(run, job)))
        case _:
            rows = [_about(run, job) for run, job in zip(runs, jobs, strict=True)]
            show_object({"jobs": rows, "settings": _settings(runs, jobs)}, "", output)


def show_planned(runs: Sequence[SweepRun], output: Output) -> None:
    """Print the jobs that a sweep would submit."""
    rows: list[dict[str, Any]] = [{"job": run.id, "setting": run.setting, "seed": run.seed} for run in runs]
    match output:
        case Output.table:
            shown = console()
            columns = [
                TableColumn(title=name, cells=[f"{row[name]}" for row in rows], right=name == "seed")
                for name in rows[0]
            ]
            shown.print(fitted([each for each in columns if any(each.cells)], shown.width))
        case Output.name | Output.jsonl:
            for row in rows:
                data(row["job"] if output is Output.name else json.dumps(row))
        case _:
            show_object({"jobs": rows}, "", output)


def _about(run: SweepRun, job: Job) -> dict[str, Any]:  # Any: JSON
    return {"setting": run.setting, "seed": run.seed} | job_fields(job)


def _settings(runs: Sequence[SweepRun], jobs: Sequence[Job]) -> list[dict[str, Any]]:  # Any: JSON
    """The mean of each setting over its seeds."""
    found = []
    for setting, members in _by_setting(runs, jobs).items():
        returns = [job.greedy_return for job in members if job.greedy_return is not None]
        wins = [job.win_rate for job in members if job.win_rate is not None]
        found.append(
            {
                "setting": setting,
                "seeds": len(members),
                "succeeded": sum(job.state == "SUCCEEDED" for job in members),
                "return": statistics.fmean(returns) if returns else None,
                "standard_error": _standard_error(returns),
                "win_rate": statistics.fmean(wins) if wins else None,
            }
        )
    return found


def _by_setting(runs: Sequence[SweepRun], jobs: Sequence[Job]) -> dict[str, list[Job]]:
    found: dict[str, list[Job]] = {}
    for run, job in zip(runs, jobs, strict=True):
        found.setdefault(run.setting, []).append(job)
    return found


def _standard_error(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def _rows(runs: Sequence[SweepRun], jobs: Sequence[Job]) -> list[_Row]:
    """A row for every job, and after the jobs of a setting, if there are several, a row for their mean."""
    rows = []
    for setting, members in _by_setting(runs, jobs).items():
        rows += [_Row(job.job, job.state, [job]) for job in members]
        if len(members) > 1:
            done = sum(job.state == "SUCCEEDED" for job in members)
            name = f"mean of {setting}" if setting else "mean"
            rows.append(_Row(name, f"{done} of {len(members)}", members))
    return rows


def _columns(rows: Sequence[_Row]) -> list[TableColumn]:
    def column(title: str, of: Callable[[Job], float | None], text: Callable[[float], str], goes: int) -> TableColumn:
        cells = [text(statistics.fmean(known)) if (known := row.known(of)) else "" for row in rows]
        return TableColumn(title=title, cells=cells, right=True, goes=goes)

    columns = [
        TableColumn(title="job", cells=[harmless(row.name) for row in rows]),
        TableColumn(title="state", cells=[row.state for row in rows]),
        TableColumn(title="return", cells=[_return(row) for row in rows], right=True),
        column("random", lambda job: job.random_return, number, 2),
        column("won", lambda job: job.win_rate, percent, 1),
        column("rounds", lambda job: job.rounds, "{:,.0f}".format, 5),
        column("time", lambda job: (job.summary or {}).get("wall_s"), duration, 4),
        column("USD", lambda job: (job.summary or {}).get("cost_usd"), "{:.4f}".format, 3),
    ]
    return [each for each in columns if each.title != "won" or any(each.cells)]


def _return(row: _Row) -> str:
    """A return, or the mean of several with its standard error, for display."""
    known = row.known(lambda job: job.greedy_return)
    if not known:
        return ""
    error = _standard_error(known)
    return number(statistics.fmean(known)) + ("" if error is None else f" ± {error:.2f}")
