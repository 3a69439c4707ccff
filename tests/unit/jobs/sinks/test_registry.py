"""Sinks by name: ours, and those of other packages."""

import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace
from typing import Literal

import pytest

from marless.core.errors import SpecError
from marless.jobs.sinks.base import SinkConfig, SinkKind, check_sinks, make_sink
from marless.jobs.spec import from_json, parse
from tests.contract.test_sink_contract import Lines

SPEC = {"env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 3}}


class LinesConfig(SinkConfig):
    name: Literal["lines"] = "lines"
    width: int = 80


@pytest.fixture
def installed(monkeypatch):
    """As if a package had declared `lines = "their_package:SINK"` in the group `marless.sinks`."""
    kind = SinkKind(config_type=LinesConfig, make=lambda _: Lines())
    entry = metadata.EntryPoint("lines", "their_package:SINK", "marless.sinks")
    monkeypatch.setitem(sys.modules, "their_package", SimpleNamespace(SINK=kind))
    monkeypatch.setattr(
        "marless.core.registry.entry_points", lambda group: metadata.EntryPoints([entry]).select(group=group)
    )


def test_entry_points_add_sinks_with_fields_of_their_own(installed):
    spec = parse({**SPEC, "sinks": [{"name": "lines", "width": 9}]}, "job.yaml")
    assert from_json(spec.to_json()).sinks == (LinesConfig(width=9),)
    check_sinks(spec.sinks[0])
    assert isinstance(make_sink(spec.sinks[0]), Lines)


@pytest.mark.parametrize(
    ("sinks", "sentence"),
    [
        ([{"name": "lines", "with": 9}], "job.yaml: sinks.0.with: unknown field 'with'; did you mean 'width'?"),
        (["tensorboard", {"name": "lines", "width": "x"}], "job.yaml: sinks.1.width: got 'x'; allowed: a whole number"),
        (["lins"], "job.yaml: sinks.0: unknown sink 'lins'; did you mean 'lines'?"),
        ([{"width": 3}], "job.yaml: sinks.0: needs a name, e.g. `sinks: [{name: tensorboard}]`"),
        ([{"name": "wandb", "api_key": "s3cret"}], "job.yaml: sinks.0.api_key: unknown field 'api_key'"),
        ("tensorboard", "job.yaml: sinks: got 'tensorboard'; allowed: a list"),
        (["lines", "lines"], "job.yaml: sinks: lines is given twice; a job writes to each sink once"),
    ],
)
def test_a_mistake_is_one_sentence(installed, sinks, sentence):
    with pytest.raises(SpecError) as caught:
        parse({**SPEC, "sinks": sinks}, "job.yaml")
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_naming_every_sink_loads_no_package_of_theirs():
    document = {**SPEC, "sinks": ["tensorboard", "wandb", {"name": "mlflow", "tracking_uri": "http://127.0.0.1:1"}]}
    program = f"import sys; from marless.jobs.spec import parse; parse({document}, 'spec'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"tensorboard", "wandb", "mlflow"} & {name.partition(".")[0] for name in done.stdout.split()}


def sinks(*sections) -> tuple[SinkConfig, ...]:
    return parse({**SPEC, "sinks": sections}, "spec").sinks


def test_a_sink_whose_package_is_missing_is_refused(monkeypatch):
    monkeypatch.setattr("marless.jobs.sinks.base.find_spec", lambda name: None if name == "wandb" else "installed")
    check_sinks(*sinks("tensorboard"))
    with pytest.raises(SpecError, match=r"wandb needs the package 'wandb'.*pip install 'marless\[wandb\]'"):
        check_sinks(*sinks("tensorboard", "wandb"))


def test_mlflow_needs_to_know_where_to(monkeypatch):
    monkeypatch.setattr("marless.jobs.sinks.base.find_spec", lambda _: "installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(SpecError, match="needs MLFLOW_TRACKING_URI where the coordinator runs"):
        check_sinks(*sinks("mlflow"))
    monkeypatch.setenv("MARLESS_MLFLOW_URIS", "http://there:5000, sqlite:///m.db")
    check_sinks(*sinks({"name": "mlflow", "tracking_uri": "sqlite:///m.db"}))


def test_a_password_does_not_belong_in_a_spec():
    with pytest.raises(SpecError, match=r"sinks\.0\.tracking_uri: holds a password") as caught:
        sinks({"name": "mlflow", "tracking_uri": "https://me:hunter2@host"})
    assert "hunter2" not in str(caught.value)
