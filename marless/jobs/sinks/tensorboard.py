"""TensorBoard sink: event files in `<run folder>/tensorboard`, written with TensorBoard's own record writer.

Each `open` begins a new file; files are numbered, because TensorBoard reads a directory's files in order of their
names. A file begins with a session start at the first env step that will be written again. TensorBoard then drops later
points of earlier files, so that a round that is written twice is shown once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from marless.jobs.record import RoundRecord
from marless.jobs.sinks.base import SinkConfig, SinkJob, SinkKind

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

DIRECTORY = "tensorboard"
_FILE = "events.out.tfevents."


class TensorBoardConfig(SinkConfig):
    """Writes event files to the run folder; `tensorboard --logdir <runs>` shows all jobs."""

    name: Literal["tensorboard"] = "tensorboard"


class TensorBoardSink:
    """Writes scalars, the spec as text, and its fields as hyperparameters."""

    _writer: RecordWriter

    def open(self, job: SinkJob) -> None:
        """Create the next event file in the job's directory."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        directory = job.folder / DIRECTORY
        directory.mkdir(exist_ok=True)
        serials = [int(path.name.removeprefix(_FILE)) for path in directory.glob(f"{_FILE}*")]
        self._writer = RecordWriter((directory / f"{_FILE}{max(serials, default=-1) + 1:06d}").open("xb"))
        step, time_s = (job.last.env_steps + 1, job.last.ended_s) if job.last else (0, time.time())
        self._put(Event(file_version="brain.Event:2", wall_time=time_s))
        self._put(Event(session_log=SessionLog(status=SessionLog.START), step=step, wall_time=time_s))
        if job.last is None:
            spec = text_pb("spec", f"```yaml\n{job.spec_yaml}\n```")
            # TensorBoard's own id is a digest of the settings, by which jobs with equal ones would be one trial.
            settings = hparams_pb(dict(job.settings), trial_id=job.id)
            for summary in (spec, settings):
                self._put(Event(summary=summary, wall_time=time_s))
        self._writer.flush()

    def write(self, record: RoundRecord, scalars: Mapping[str, float]) -> None:
        """Append one event with all scalars."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._put(Event(step=record.env_steps, wall_time=record.ended_s, summary=Summary(value=values)))
        self._writer.flush()

    def close(self, state: str) -> None:
        """Close the file; the job's state is not recorded in it."""
        self._writer.close()

    def _put(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())


SINK = SinkKind(
    config_type=TensorBoardConfig,
    make=lambda _: TensorBoardSink(),
    package="tensorboard",
    install="marless[tensorboard]",
)
