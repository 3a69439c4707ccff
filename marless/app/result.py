"""`Result`: what a run on this machine came to, for scripts and notebooks."""

from __future__ import annotations

import base64
import html
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marless.app.cli.output import number
from marless.app.cli.recorded import Recorded, from_folder

if TYPE_CHECKING:
    from marless.app.client import Job
    from marless.cost.billing.bill import Bill
    from marless.learning.policies.team import Team

COLUMNS: Mapping[str, str] = {
    "round": "rounds trained, from 1",
    "env_steps": "env steps sampled until then (one step: all agents act once in one copy)",
    "seconds": "seconds of training until then",
    "actors": "actors of this round",
    "learners": "learners of this round",
    "return": "mean return per agent while exploring; missing if no episode ended",
    "greedy_return": "mean return per agent of the policies after this round; missing if they were not evaluated",
    "greedy_standard_error": "its standard error",
    "cost_usd": "US dollars of this round, by the accounting of the job",
}
"""The columns of `Result.rounds`, with their units."""
_TABLES = ("pandas", "polars")
_MOST_POINTS = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """A run that has ended: `marless.train` returns it, and a notebook shows its training curve."""

    job: str
    """The job's id."""
    folder: Path
    """Its run folder: spec, records, checkpoints, curve and logs."""
    state: str
    """SUCCEEDED; CANCELLED if it was cancelled."""
    reason: str
    """Why it ended."""
    greedy_return: float | None
    """Mean return per agent in the newest greedy evaluation; None without one."""
    random_return: float | None
    """The same for random actions."""
    summary: Mapping[str, Any]  # Any: JSON
    """What `marless train -o json` prints: standard errors, returns of each agent, times, cost."""

    @classmethod
    def of(cls, job: Job) -> Result:
        """The result of a job whose run folder is on this machine."""
        return cls(
            job=job.job,
            folder=Path(job.run_dir),
            state=str(job.state),
            reason=job.reason,
            greedy_return=job.greedy_return,
            random_return=job.random_return,
            summary=job.summary or {},
        )

    @cached_property
    def team(self) -> Team:
        """The trained team, ready to act; loaded when it is first asked for."""
        from marless.storage.saved_policies import load_policy

        return load_policy(self.folder.absolute())

    @cached_property
    def cost(self) -> Mapping[str, float]:
        """US dollars by accounting: paper, billed, serverful; and machines, if some may be rented."""
        from marless.app.cli.costs import amounts

        return amounts(self._bill)

    @property
    def rounds(self) -> Any:  # Any: the data frame of a package that may not be installed
        """A row for each round, with the columns of `marless.app.result.COLUMNS`.

        A DataFrame of pandas if that is installed, else of polars, else a dict with a list for each column.
        """
        for package in _TABLES:
            if importlib.util.find_spec(package):
                return importlib.import_module(package).DataFrame(self._columns)
        return self._columns

    @cached_property
    def _run(self) -> Recorded:
        return from_folder(self.folder)

    @cached_property
    def _bill(self) -> Bill:
        from marless.cost.billing.bill import bill
        from marless.jobs import prices

        return bill(self._run.records, self._run.spec, prices.merged(self._run.spec.bill.prices), self._run.kept)

    @property
    def _columns(self) -> dict[str, list[Any]]:  # Any: numbers, or None where there is none
        greedy = {each.rounds: each.returns for record in self._run.records for each in record.evaluations}
        accounting, seconds, rows = self._run.spec.bill.accounting, 0.0, []
        for record, priced in zip(self._run.records, self._bill.rounds, strict=True):
            seconds += record.spent_s
            evaluated = greedy.get(record.round + 1)
            rows.append(
                (
                    record.round + 1,
                    record.env_steps,
                    seconds,
                    record.actors,
                    sum(invocation.function == "learner" for invocation in record.invocations),
                    record.returns and record.returns.mean,
                    evaluated and evaluated.mean,
                    evaluated and evaluated.standard_error,
                    priced.usd(accounting),
                )
            )
        return {name: [row[place] for row in rows] for place, name in enumerate(COLUMNS)}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {text}" for name, text in self._facts() if text)
        return f"<marless.Result of {self.job}: {shown}>"

    def _repr_html_(self) -> str:
        """The curve and the most important figures, for notebooks; without matplotlib, some returns in its place."""
        lines = [f"<td><b>{html.escape(name)}</b></td><td>{html.escape(text)}</td>" for name, text in self._facts()]
        table = f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
        curve = self.folder / "curve.png"
        if not curve.is_file():
            return table + f"<pre>{html.escape(self._returns())}</pre>"
        picture = base64.b64encode(curve.read_bytes()).decode("ascii")
        return f'<img alt="training curve of {html.escape(self.job)}" src="data:image/png;base64,{picture}">{table}'

    def _facts(self) -> Sequence[tuple[str, str]]:
        error = self.summary.get("return_standard_error")
        usd, accounting = self.summary.get("cost_usd"), self.summary.get("accounting")
        return (
            ("state", f"{self.state}: {self.reason}"),
            ("env steps", f"{self.summary.get('env_steps', 0):,}"),
            ("greedy return", number(self.greedy_return, error)),
            ("random policy", number(self.random_return)),
            ("cost", "" if usd is None else f"{usd:.6f} USD ({accounting})"),
            ("run folder", str(self.folder)),
        )

    def _returns(self) -> str:
        """Env steps and returns of at most `_MOST_POINTS` rounds, as text."""
        from marless.app.cli.card import curve_of, thinned

        kind, points = curve_of(self._run.records)
        rows = (f"{steps:>12,} {number(mean):>12}" for steps, mean in thinned(points, _MOST_POINTS))
        return "\n".join([f"{'env steps':>12} {kind:>12}", *rows])
