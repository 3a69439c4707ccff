"""Progress display while a job starts and trains: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from marless.app.cli.output import cost, duration, harmless, number, percent
from marless.app.cli.working import EVERY_S, QUIET_S
from marless.jobs.record import RoundRecord
from marless.learning.data.returns import EpisodeReturns

if TYPE_CHECKING:
    from marless.app.cli.sparklines import WatchedCourse
    from marless.jobs.sections import StopSpec

_RATE_ROUNDS = 50
_WIDE = 110
"""Least terminal width in columns for the full status."""
_WIDE_BAR, _NARROW_BAR, _LONGEST_TITLE = 24, 10, 24
_PERCENT = 4
_ROWS = {
    "job": "job",
    "state": "state",
    "reason": "reason",
    "rounds": "rounds",
    "env_steps": "env steps",
    "env_steps_per_s": "env steps per s of training",
    "return": "greedy return per agent",
    "random_return": "random policy",
    "wall_s": "training time, s",
    "elapsed_s": "since submission, s",
}
"""Fields of the summary and their labels in the table."""


class _Lines:
    """Prints a status line after `first_s` seconds, and then whenever nothing has been printed for `EVERY_S`.

    Runs in a thread of its own, so that it prints even while other threads are blocked.
    """

    def __init__(self, console: Console, status: Callable[[], str], first_s: float) -> None:
        self._console = console
        self._status = status
        self._began_s = time.monotonic()
        self._due_s = self._began_s + first_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def start(self) -> None:
        """Start printing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop printing."""
        self._ended.set()
        if self._thread.ident:
            self._thread.join()

    def printed(self) -> None:
        """Note that another line was printed just now."""
        self._due_s = time.monotonic() + EVERY_S

    def _run(self) -> None:
        while not self._ended.wait(max(self._due_s - time.monotonic(), 0.0)):
            now_s = time.monotonic()
            # False if another line was printed during the wait, which has moved the next one.
            if now_s >= self._due_s:
                self._due_s = now_s + EVERY_S
                line = f"{harmless(self._status())} · {duration(now_s - self._began_s)} so far"
                self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class _Bar(Progress):
    """A bar, and rows below it if there are any."""

    below: WatchedCourse | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.below:
            yield self.below


class TrainingProgress:
    """Shows a bar on a terminal; elsewhere a line for each evaluation, and one every few seconds.

    `stop` holds the stop rules, if known, by which progress is measured. `status` is shown before the first round; if
    there is no terminal, after `first_s` seconds. `below` is shown below the bar.
    """

    def __init__(
        self,
        console: Console,
        title: str,
        stop: StopSpec | None,
        status: str,
        *,
        first_s: float = QUIET_S,
        lively: bool = True,
        below: WatchedCourse | None = None,
    ) -> None:
        self._console = console
        self._below = below
        self._lively = lively
        self._in_place = lively and console.is_terminal
        self._stop = stop
        self._now = status
        """The text of the next status line."""
        self._lines = _Lines(console, lambda: self._now, first_s)
        self._recent: deque[RoundRecord] = deque(maxlen=_RATE_ROUNDS)
        self._trained_s = 0.0
        self._greedy: EpisodeReturns | None = None
        self._course: deque[tuple[float, float]] = deque(maxlen=_RATE_ROUNDS)
        """For recent rounds: the fraction of the job done, and the seconds of training until then."""
        self._wide = console.width >= _WIDE
        # Cut in the middle, because jobs of one name differ at the end.
        half = _LONGEST_TITLE // 2
        shortened = title if len(title) <= _LONGEST_TITLE else f"{title[: half - 1]}…{title[-half:]}"
        self._title = title if self._wide else shortened
        self._bar = _Bar(
            *_columns(wide=self._wide),
            console=console,
            expand=True,
            disable=not self._in_place,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # data for a file or pipe must stay there
        )
        self._bar.below = below
        self._task = self._bar.add_task(self._title, total=1.0, status=status)

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        if self._lively and not self._in_place:
            self._lines.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.stop()
        self._bar.stop()

    @property
    def status(self) -> str:
        """The whole status, as a line of text."""
        return harmless(self._now)

    @property
    def rounds(self) -> int:
        """The number of rounds that the job has trained."""
        return self._recent[-1].round + 1 if self._recent else 0

    @property
    def done(self) -> float:
        """The fraction of the job that is done, from 0 to 1."""
        return self._course[-1][0] if self._course else 0.0

    def doing(self, reason: str) -> None:
        """Show the job's current activity; while it is simply training, the last round's status is shown instead."""
        if self._recent and reason == "training":
            self._now, status = self._whole(self._recent[-1]), self._status(self._recent[-1])
        else:
            self._now = status = reason
        self._bar.update(self._task, status=harmless(status))

    def look_back(self, record: RoundRecord) -> None:
        """Process a round recorded before the display began, for rates and the last evaluation."""
        self._trained_s += record.spent_s
        self._recent.append(record)
        self._greedy = record.newest_evaluation or self._greedy
        self._course.append((fraction_done(self._stop, record, self._trained_s), self._trained_s))
        if self._below:
            self._below.add(record)

    def show(self, record: RoundRecord) -> None:
        """Process and show a round that has just been recorded."""
        self.look_back(record)
        status = self._status(record)
        if self._below:
            self._below.left = "".join(left for left in self._left() if left not in status)
        self._bar.update(self._task, completed=self._course[-1][0], status=status)
        self._now = self._whole(record)
        if record.evaluations and not self._in_place:
            self._lines.printed()
            self._console.print(self._now, highlight=False, soft_wrap=True)

    def note(self, sentence: str) -> None:
        """Print a message above the progress display."""
        self._console.print(f"marless: {harmless(sentence)}", highlight=False, markup=False, soft_wrap=True)

    def _status(self, record: RoundRecord) -> str:
        """The status beside the bar: as much as fits, the most important parts first."""
        if self._wide:
            return " · ".join([*self._left(), self._line(record)])
        room = self._console.width - len(self._title) - _NARROW_BAR - _PERCENT - len("   ")
        greedy = self._greedy or record.returns
        parts = [f"{'return' if self._greedy else 'exploring'} {number(greedy.mean)}"] if greedy else []
        parts += self._left()
        if greedy and greedy.win_rate is not None:
            parts.append(f"won {percent(greedy.win_rate)}")
        status = ""
        for part in [*parts, self._round(record), f"{record.env_steps:,} env steps"]:
            longer = f"{status} · {part}" if status else part
            if len(longer) > room:
                break
            status = longer
        return status

    def _whole(self, record: RoundRecord) -> str:
        return " · ".join([self._line(record), *self._left()])

    def _left(self) -> list[str]:
        """The estimated time left at the present rate, if it can be computed."""
        (done, trained_s), (first, first_s) = self._course[-1], self._course[0]
        if len(self._course) == 1:
            if self._recent[-1].round:
                return []  # the training time before it is unknown
            first = first_s = 0.0
        if done <= first or trained_s <= first_s:
            return []
        return [f"{duration((1 - done) * (trained_s - first_s) / (done - first))} left"]

    def _line(self, record: RoundRecord) -> str:
        learners = sum(invocation.function == "learner" for invocation in record.invocations)
        parts = [self._round(record), f"{record.env_steps:,} env steps"]
        first, last = self._recent[0], self._recent[-1]
        if first is last:  # a single round tells the rate only if it is the first
            steps, spent_s = (last.env_steps if last.round == 0 else 0), last.spent_s
        else:
            steps = last.env_steps - first.env_steps
            spent_s = self._course[-1][1] - self._course[0][1]
        if steps > 0 and spent_s > 0:
            parts.append(f"{steps / spent_s:,.0f}/s")
        if self._greedy is not None:
            parts.append(f"greedy return {number(self._greedy.mean)}")
            if self._greedy.win_rate is not None:
                parts.append(f"won {self._greedy.win_rate:.0%}")
        if record.returns:
            parts.append(f"exploring {number(record.returns.mean)}")
        if record.aggregation:
            parts.append(f"staleness {record.aggregation.mean_staleness:.1f}")
        return " · ".join([*parts, f"{record.actors} actors, {learners} learners"])

    def _round(self, record: RoundRecord) -> str:
        of = f" of {self._stop.rounds:,}" if self._stop and self._stop.rounds else ""
        return f"round {record.round + 1:,}{of}"


def _columns(*, wide: bool) -> list[ProgressColumn]:
    status = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = [
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=_WIDE_BAR if wide else _NARROW_BAR),
        TaskProgressColumn(),
        TextColumn("{task.fields[status]}", table_column=status),
    ]
    return [*columns, TimeElapsedColumn()] if wide else columns


def fraction_done(stop: StopSpec | None, record: RoundRecord, trained_s: float) -> float:
    """Progress towards the nearest stop rule, from 0 to 1; `stop.return` is ignored, because it cannot be foreseen."""
    if stop is None:
        return 0.0
    fractions = [0.0]
    if stop.rounds:
        fractions.append((record.round + 1) / stop.rounds)
    if stop.env_steps:
        fractions.append(record.env_steps / stop.env_steps)
    if stop.wall_s:
        fractions.append(trained_s / stop.wall_s)
    return min(max(fractions), 1.0)


def summary_table(summary: dict[str, object]) -> Table:
    """The summary of a finished job as a table."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, label in _ROWS.items():
        table.add_row(label, _shown(summary.get(name), summary.get(f"{name}_standard_error")) + _played(summary, name))
    for name, label in (("win_rate", "greedy episodes won"), ("random_win_rate", "random policy won")):
        if (rate := summary.get(name)) is not None:
            table.add_row(label, f"{rate:.0%}")
    table.add_row("cost", cost(summary))
    table.add_row("run folder", str(summary.get("run_dir", "")))
    return table


def _shown(value: object, error: object) -> str:
    match value:
        case None:
            return ""
        case float():
            return number(value, error if isinstance(error, float) else None)
        case int():
            return f"{value:,}"
    return str(value)


def _played(summary: dict[str, object], name: str) -> str:
    """The number of episodes of a mean return, if the summary has it."""
    episodes = summary.get(f"{name}_episodes")
    if not isinstance(episodes, int):
        return ""
    return " (1 episode)" if episodes == 1 else f" ({episodes:,} episodes)"
