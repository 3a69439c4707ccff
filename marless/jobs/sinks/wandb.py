"""Weights & Biases sink: a run named after the job, whose id is stored in `<run folder>/wandb.json`, so that a resumed
job continues it, and a job of the same id with another run folder does not.

Rounds are W&B's steps. W&B ignores a step that it already has, so that of a round that is written twice, the first is
kept. The API key comes from the coordinator's environment (`WANDB_API_KEY`) or from `wandb login` on its machine.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from marless.jobs.record import RoundRecord
from marless.jobs.sinks.base import SinkConfig, SinkJob, SinkKind

if TYPE_CHECKING:
    import wandb

_RUN_FILE = "wandb.json"
_RANDOM_BYTES = 4


class WandbConfig(SinkConfig):
    """Project, entity and mode of the run."""

    name: Literal["wandb"] = "wandb"
    project: str = Field("marless", min_length=1)
    entity: str | None = Field(None, min_length=1, description="user or team; else the key's own")
    mode: Literal["online", "offline", "disabled"] = Field(
        "online", description="offline: into <run folder>/wandb, for `wandb sync`"
    )


class WandbSink:
    """Writes one job to one W&B run."""

    _run: wandb.Run

    def __init__(self, config: WandbConfig) -> None:
        self._config = config

    def open(self, job: SinkJob) -> None:
        """Start the run, or continue it."""
        import wandb

        self._run = wandb.init(
            id=run_id(job),
            name=job.id,
            project=self._config.project,
            entity=self._config.entity,
            mode=self._config.mode,
            dir=job.folder,
            config=dict(job.settings),
            resume="allow",
            reinit="create_new",  # one process may have several runs, one per job
            settings=wandb.Settings(
                console="off",  # standard output and error belong to the service, not to a job
                silent=True,
                disable_git=True,
                save_code=False,
                x_disable_stats=True,
            ),
        )
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def write(self, record: RoundRecord, scalars: Mapping[str, float]) -> None:
        """Pass the round to W&B's own process, which stores it on disk until it is sent."""
        about = {"env_steps": record.env_steps, "_timestamp": record.ended_s}
        self._run.log({**scalars, **about}, step=record.round, commit=True)

    def close(self, state: str) -> None:
        """Finish the run; if another process continues the job, it also continues the run."""
        self._run.finish(exit_code=1 if state == "FAILED" else 0)


def run_id(job: SinkJob) -> str:
    """The id of the run of this run folder, made at the first call: the job's id and a random number.

    W&B drops the rows of steps that a run has, so two jobs must never share a run. Their ids may be equal, in other
    runs directories or on other machines.
    """
    path = job.folder / _RUN_FILE
    if path.exists():
        return str(json.loads(path.read_text(encoding="utf-8"))["run_id"])
    made = f"{job.id}-{secrets.token_hex(_RANDOM_BYTES)}"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"run_id": made}), encoding="utf-8")
    partial.replace(path)
    return made


SINK = SinkKind(config_type=WandbConfig, make=WandbSink, package="wandb", install="marless[wandb]")
