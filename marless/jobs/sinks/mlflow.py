"""MLflow sink: one run per job, whose id is stored in `<run folder>/mlflow.json`, so that a resumed job continues it.

MLflow's database stores keep equal points once, so that a round that is written twice is shown once. If a resume from a
checkpoint runs rounds again, their old points remain beside the new ones. Credentials come from the coordinator's
environment (`MLFLOW_TRACKING_USERNAME`, `MLFLOW_TRACKING_PASSWORD` or `MLFLOW_TRACKING_TOKEN`). MLflow sends them to
any server, and writes to any file or database, that it is given; therefore a job can choose only among those that the
operator lists.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from marless.core.errors import SpecError
from marless.jobs.record import RoundRecord
from marless.jobs.sinks.base import SinkConfig, SinkJob, SinkKind

if TYPE_CHECKING:
    from pathlib import Path

    from mlflow import MlflowClient
    from mlflow.entities import Param

ADDRESS, OTHERS = "MLFLOW_TRACKING_URI", "MARLESS_MLFLOW_URIS"
"""Environment variables of the coordinator: the default tracking URI, and a comma list of others that are allowed."""
_RUN_FILE = "mlflow.json"
_STATUS = {"SUCCEEDED": "FINISHED", "FAILED": "FAILED", "CANCELLED": "KILLED"}
_METRICS_A_CALL, _SETTINGS_A_CALL, _LONGEST_SETTING = 1000, 100, 6000  # limits of a tracking server
_LONGEST_NAME, _DIGEST = 250, 16
_REFUSED = re.compile(r"[^\w\-. :/]|(?<![^/])[./]|/\Z|-(?=x)")
"""What `name_of` escapes: characters that MLflow refuses in names; points and slashes at the start of a part of a path
and a slash at the end, because names must be paths in their shortest form; and what would look like an escape.
"""
Item = TypeVar("Item")


class MlflowConfig(SinkConfig):
    """Tracking server and experiment of the run."""

    name: Literal["mlflow"] = "mlflow"
    tracking_uri: str | None = Field(
        None,
        min_length=1,
        description=f"server or database, of the coordinator's ${ADDRESS} (also the default) and ${OTHERS}",
    )
    experiment: str = Field("marless", min_length=1)

    @field_validator("tracking_uri")
    @classmethod
    def _no_password(cls, uri: str | None) -> str | None:
        if uri and urlsplit(uri).password:
            raise ValueError(
                "holds a password, and specs are kept; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD "
                "where the coordinator runs"
            )
        return uri


class MlflowSink:
    """Writes one job to one MLflow run."""

    _client: MlflowClient
    _run: str

    def __init__(self, config: MlflowConfig) -> None:
        self._config = config

    def open(self, job: SinkJob) -> None:
        """Create the run, or continue it."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(tracking_uri=self._config.tracking_uri)
        path = job.folder / _RUN_FILE
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            self._run = kept["run_id"]
            self._client.update_run(self._run, status="RUNNING")
            if kept.get("has_settings", True):
                return
        else:
            created = self._client.create_run(self._experiment(), run_name=job.id, tags={"marless.job": job.id})
            self._run = created.info.run_id
            # Kept before anything else is sent: if that fails, the next attempt continues this run, not a second one.
            self._keep(path, has_settings=False)
        # PostgreSQL stores no NUL.
        texts = {name: str(value).replace("\0", "\\0")[:_LONGEST_SETTING] for name, value in job.settings.items()}
        settings = [Param(name_of(name), text) for name, text in texts.items()]
        for some in _batches(settings, _SETTINGS_A_CALL):
            if not self._is_taken(some):
                for each in some:  # one by one, without those that this server refuses
                    self._is_taken([each])
        self._keep(path, has_settings=True)

    def write(self, record: RoundRecord, scalars: Mapping[str, float]) -> None:
        """Send one round."""
        from mlflow.entities import Metric

        time_ms = round(1000 * record.ended_s)
        metrics = [Metric(name_of(name), value, time_ms, record.env_steps) for name, value in scalars.items()]
        for some in _batches(metrics, _METRICS_A_CALL):
            self._client.log_batch(self._run, metrics=some)

    def close(self, state: str) -> None:
        """Set the run's final status; it stays RUNNING if another process continues the job."""
        if state in _STATUS:
            self._client.set_terminated(self._run, _STATUS[state])

    def _keep(self, path: Path, *, has_settings: bool) -> None:
        # Written beside it and moved: from a half file a resumed job could not read which run is its own.
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"run_id": self._run, "has_settings": has_settings}), encoding="utf-8")
        partial.replace(path)

    def _is_taken(self, settings: list[Param]) -> bool:
        """Send settings; False if the server refuses one. Older servers take shorter values, for example."""
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(self._run, params=settings)
        except MlflowException as error:
            if error.error_code not in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
                raise
            return False
        return True

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        name = self._config.experiment
        if known := self._client.get_experiment_by_name(name):
            return str(known.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:
            if known := self._client.get_experiment_by_name(name):  # another job has just created it
                return str(known.experiment_id)
            raise


def name_of(name: str) -> str:
    """The name of a metric or setting in MLflow: different names stay different, and the same name is always the same.

    A character c that MLflow refuses there becomes "-x<hexadecimal code of c>-", as in "agents/a-x23-1/greedy" for the
    agent "a#1". Names that become too long end in a digest of the whole name.
    """
    escaped = _REFUSED.sub(lambda found: f"-x{ord(found[0]):x}-", name)
    if len(escaped) <= _LONGEST_NAME:
        return escaped
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{escaped[: _LONGEST_NAME - _DIGEST - 1]}-{digest}"


def _batches(items: Sequence[Item], size: int) -> Iterator[list[Item]]:
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


def _check(config: MlflowConfig) -> None:
    usual, others = (os.environ.get(name, "") for name in (ADDRESS, OTHERS))
    if not config.tracking_uri and not usual:
        raise SpecError(
            f"sinks: mlflow needs {ADDRESS} where the coordinator runs, or a tracking_uri of {OTHERS} there"
        )
    if config.tracking_uri and config.tracking_uri not in (usual, *map(str.strip, others.split(","))):
        raise SpecError(
            "sinks: mlflow: that tracking_uri is not allowed, because credentials would be shown to it; leave it out "
            f"to use {ADDRESS} of the coordinator, whose operator may list others in {OTHERS}"
        )


SINK = SinkKind(config_type=MlflowConfig, make=MlflowSink, package="mlflow", install="marless[mlflow]", check=_check)
