"""Commands that run jobs on this machine refuse sinks that cannot work there, before anything is started."""

import pytest

from marless.app.cli import train
from marless.jobs import examining


@pytest.fixture
def nothing_begins(monkeypatch, tmp_path):
    """No environment is made and no service started; the package of W&B is missing."""

    def begun(*_, **__):
        raise AssertionError("something was started")

    monkeypatch.setattr(train, "train", begun)
    monkeypatch.setattr(examining, "examined", begun)
    monkeypatch.setattr("marless.jobs.sinks.base.find_spec", lambda name: None if name == "wandb" else "installed")
    for name in ("MLFLOW_TRACKING_URI", "MARLESS_MLFLOW_URIS", "MARLESS_COORDINATOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", [["train"], ["compare", "--presets", "vanilla,no-sharing"]])
@pytest.mark.parametrize(
    ("sink", "sentence"),
    [
        ("wandb", "sinks: wandb needs the package 'wandb' where the coordinator runs: pip install 'marless[wandb]'"),
        ("mlflow", "sinks: mlflow needs MLFLOW_TRACKING_URI where the coordinator runs, or a tracking_uri of"),
    ],
)
def test_a_sink_that_cannot_work_is_refused_at_once(marless, job_file, nothing_begins, command, sink, sentence):
    code, out, said = marless(command[0], job_file, *command[1:], "--set", f"sinks=[tensorboard, {sink}]")
    assert (code, out) == (2, "")
    assert sentence in " ".join(said.split())
    assert [path.name for path in job_file.parent.iterdir()] == ["job.yaml"]
