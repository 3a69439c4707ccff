"""Makes the runs of a comparison one after another: locally, each on a stack of its own, or on a coordinator.

Finished runs are not repeated; interrupted ones are resumed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from marless.app.cli.output import console, say
from marless.app.cli.recorded import Recorded, from_folder
from marless.core import regular_files
from marless.core.errors import JobStateError, NotFoundError, SpecError
from marless.cost.comparison.plan import Run
from marless.jobs.presets import training_key

if TYPE_CHECKING:
    from marless.app.cli.train import Show
    from marless.app.client import Client
    from marless.jobs.spec import JobSpec

Result = TypeVar("Result")


class InterruptedRunError(JobStateError):
    """The run was interrupted by Ctrl-C."""


@dataclass(frozen=True)
class ComparisonFolder:
    """The directory with the run folders of a comparison."""

    runs: Path

    def finished(self, run: Run) -> bool:
        """True if the run has succeeded; raises SpecError if another job has its id."""
        found = self._found(run, records=False)
        return found is not None and found.state == "SUCCEEDED"

    def read(self, run: Run) -> Recorded:
        """Read a finished run with its records; raises NotFoundError if it no longer exists."""
        found = self._found(run, records=True)
        if found is None:
            raise NotFoundError(f"{self.runs / run.id} no longer exists; --resume repeats that run")
        return found

    def _found(self, run: Run, *, records: bool) -> Recorded | None:
        folder = self.runs / run.id
        if not regular_files.is_there(folder / "job.json"):
            return None
        found = from_folder(folder, records=records)
        check_same(run, found.spec, str(folder))
        return found

    def make_here(self, run: Run, number: str) -> None:
        """Make a run on this machine, on a stack of its own, so that all runs have the same cold starts."""
        from marless.app.cli import train

        folder = self.runs / run.id
        known = regular_files.is_there(folder / "job.json")
        if folder.exists() and not known:
            shutil.rmtree(folder)  # it was interrupted before the job existed
        if known:
            outcome = _shown(run, number, lambda show: train.resume(run.id, runs=self.runs, stop=None, show=show))
        else:
            outcome = _shown(run, number, lambda show: train.train(run.spec, job_id=run.id, runs=self.runs, show=show))
        if outcome.interrupted:
            raise InterruptedRunError(f"interrupted in run {run.id}")
        _check_succeeded(run, outcome.job.state, outcome.job.reason)

    def make_there(self, run: Run, number: str, client: Client) -> None:
        """Make a run on a coordinator, and download its run folder."""
        try:
            known = client.get(run.id)
        except NotFoundError:
            known = client.submit(run.spec, job=run.id)
        else:
            check_same(run, _spec_there(client, run.id), f"the coordinator's job {run.id}")
            if known.state.ended and known.state != "SUCCEEDED":
                known = client.resume(run.id)
        if not known.state.ended:
            _shown(run, number, lambda show: _follow(client, run.id, show))
            known = client.get(run.id)
        _check_succeeded(run, known.state, known.reason)
        client.download(run.id, self.runs / run.id)


def check_same(run: Run, found: JobSpec, where: str) -> None:
    """Raise SpecError, naming the sections, if `found` does not train identically to the run's spec."""
    wanted, there = (json.loads(training_key(spec)) for spec in (run.spec, found))
    differing = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
    if differing:
        raise SpecError(
            f"{where} was run with other settings ({', '.join(differing)}); choose another --out, "
            "or another name for the job"
        )


def _shown(run: Run, number: str, action: Callable[[Show], Result]) -> Result:
    from marless.app.cli.progress import TrainingProgress
    from marless.app.cli.train import Show

    say(f"run {number}: {run.id} for {', '.join(run.presets)}")
    with TrainingProgress(console(stderr=True), run.id, run.spec.stop, "starting four services …") as shown:
        return action(Show(record=shown.show, past=shown.look_back, trouble=shown.note, doing=shown.doing))


def _follow(client: Client, job: str, show: Show) -> None:
    for event in client.watch(job):
        if event.record:
            show.record(event.record)
        elif event.job and not event.job.state.ended:
            show.doing(event.job.reason)


def _spec_there(client: Client, job: str) -> JobSpec:
    from marless.core import documents
    from marless.jobs import spec as specs

    return specs.parse(documents.yaml_of(client.read(job, "spec.yaml").decode(), f"job {job}"), f"job {job}")


def _check_succeeded(run: Run, state: str, reason: str) -> None:
    if state != "SUCCEEDED":
        raise JobStateError(f"run {run.id} ended {state}: {reason}")
