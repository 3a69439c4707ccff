"""Weights & Biases and MLflow keep what they were given; no network, their own stores read back. `make test-slow`."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marless.jobs.sinks.base import SinkJob, scalars
from marless.jobs.sinks.contract import check_sink, sample_round
from marless.jobs.sinks.mlflow import MlflowConfig, MlflowSink
from marless.jobs.sinks.wandb import WandbConfig, WandbSink, run_id

pytestmark = pytest.mark.slow
SETTINGS = {"algorithm.lr": 0.5, "algorithm.name": "ippo", "learner.on": True}
_BLOCK = 2**15
_WHOLE, _LAST = 1, 4


def job(folder: Path, **changes) -> SinkJob:
    return SinkJob(**{"id": "job-7", "folder": folder, "spec_yaml": "", "settings": SETTINGS, "last": None} | changes)


class Offline:
    """Reads the run files that W&B leaves for `wandb sync`: its protobuf records in a LevelDB log."""

    def __init__(self, folder: Path, runs: int = 1) -> None:
        """Waits for the ends of so many runs: W&B's own process writes them a moment later."""
        deadline = time.monotonic() + 30
        self.runs: list[list] = []
        while len(self.of_kind("exit")) < runs:
            assert time.monotonic() < deadline, f"{len(self.of_kind('exit'))} of {runs} runs have ended"
            time.sleep(0.01)
            paths = (folder / "wandb").glob("offline-run-*/*.wandb")
            self.runs = [list(self._records(path)) for path in sorted(paths, key=lambda path: path.parent.name)]

    def _records(self, path: Path) -> Iterator:
        from wandb.proto.wandb_internal_pb2 import Record

        data, at, whole = path.read_bytes(), 7, b""
        while at + 7 <= len(data):
            if (rest := _BLOCK - at % _BLOCK) < 7:
                at += rest
                continue
            _, size, kind = struct.unpack_from("<IHB", data, at)
            whole, at = whole + data[at + 7 : at + 7 + size], at + 7 + size
            if kind in (_WHOLE, _LAST):
                yield Record.FromString(whole)
                whole = b""

    def history(self) -> dict[int, dict[str, float]]:
        """W&B's step → what was logged there; of a step that comes twice, the first, as W&B's server has it."""
        steps: dict[int, dict[str, float]] = {}
        for record in (record for run in self.runs for record in run):
            if record.WhichOneof("record_type") == "history":
                values = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                steps.setdefault(int(values["_step"]), values)
        return steps

    def of_kind(self, kind: str) -> list:
        return [getattr(r, kind) for run in self.runs for r in run if r.WhichOneof("record_type") == kind]


@pytest.fixture
def wandb_sink(monkeypatch):
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    return lambda: WandbSink(WandbConfig(project="teams", mode="offline"))


def test_wandb_keeps_rounds_as_steps_over_env_steps(tmp_path, wandb_sink):
    records = [sample_round(number, 1.0) for number in range(4)]
    sink = wandb_sink()
    sink.open(job(tmp_path))
    for before, record in zip([None, *records], records, strict=False):
        sink.write(record, scalars(record, before, None))
    sink.close("SUCCEEDED")

    kept = Offline(tmp_path)
    for before, record in zip([None, *records], records, strict=False):
        shown = kept.history()[record.round]
        assert (shown["env_steps"], shown["_timestamp"]) == (record.env_steps, record.ended_s)
        wanted = scalars(record, before, None)
        assert {name: shown[name] for name in wanted} == pytest.approx(wanted)
    [run] = kept.of_kind("run")
    assert (run.run_id, run.display_name, run.project) == (run_id(job(tmp_path)), "job-7", "teams")
    assert {item.key: json.loads(item.value_json) for item in run.config.update}.items() >= SETTINGS.items()
    axes = {metric.glob_name or metric.name: metric.step_metric for metric in kept.of_kind("metric")}
    assert axes == {"env_steps": "", "*": "env_steps"}


def test_wandb_continues_the_same_run(tmp_path, wandb_sink):
    check_sink(wandb_sink, tmp_path)
    kept = Offline(tmp_path, runs=4)
    [only] = {run.run_id for run in kept.of_kind("run")}
    assert only.startswith("contract-")
    assert sorted(kept.history()) == list(range(8))


def test_several_jobs_at_once_are_several_wandb_runs(tmp_path, wandb_sink):
    sinks = {}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        sinks[name] = wandb_sink()
        sinks[name].open(job(tmp_path / name, id=name))
    for number in range(3):
        for scale, sink in enumerate(sinks.values(), start=1):
            record = sample_round(number, float(scale))
            sink.write(record, scalars(record, None, None))
    for sink in sinks.values():
        sink.close("SUCCEEDED")
    for scale, name in enumerate(sinks, start=1):
        history = Offline(tmp_path / name).history()
        assert [history[step]["policies/all/policy_loss"] for step in range(3)] == pytest.approx(
            [scale, scale / 2, scale / 3]
        )


def test_a_job_of_the_same_id_elsewhere_is_another_wandb_run(tmp_path, wandb_sink):
    for place, scale in (("here", 1.0), ("there", 2.0)):
        (tmp_path / place).mkdir()
        sink = wandb_sink()
        sink.open(job(tmp_path / place))
        record = sample_round(0, scale)
        sink.write(record, scalars(record, None, None))
        sink.close("SUCCEEDED")
    here, there = (Offline(tmp_path / place) for place in ("here", "there"))
    assert here.of_kind("run")[0].run_id != there.of_kind("run")[0].run_id
    assert [kept.history()[0]["policies/all/policy_loss"] for kept in (here, there)] == [1.0, 2.0]


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return f"sqlite:///{tmp_path}/mlflow.db"


def mlflow_points(folder: Path, store: str) -> list[tuple[str, int, float]]:
    from mlflow import MlflowClient

    client, run = MlflowClient(store), json.loads((folder / "mlflow.json").read_text())["run_id"]
    return [
        (name, point.step, point.value)
        for name in client.get_run(run).data.metrics
        for point in client.get_metric_history(run, name)
    ]


def test_mlflow_keeps_every_point_once(tmp_path, store):
    records = [sample_round(number, 1.0) for number in range(4)]
    wanted = set()
    for first, last in ((0, None), (2, records[1])):  # rounds 2 and 3 for the second time
        sink = MlflowSink(MlflowConfig(tracking_uri=store, experiment="teams"))
        sink.open(job(tmp_path, last=last))
        for before, record in list(zip([None, *records], records, strict=False))[first:]:
            numbers = scalars(record, before, None)
            sink.write(record, numbers)
            wanted |= {(name, record.env_steps, value) for name, value in numbers.items()}
        sink.close("RUNNING")
    assert sorted(mlflow_points(tmp_path, store)) == sorted(wanted)


def test_mlflow_continues_the_same_run_and_says_how_it_ended(tmp_path, store):
    from mlflow import MlflowClient

    check_sink(lambda: MlflowSink(MlflowConfig(tracking_uri=store, experiment="teams")), tmp_path)
    client = MlflowClient(store)
    [run] = client.search_runs([client.get_experiment_by_name("teams").experiment_id])
    assert (run.info.run_name, run.info.status) == ("contract", "FAILED")
    assert run.data.params == {"seed": "1", "algorithm.lr": "0.5", "algorithm.name": "ippo", "learner.on": "True"}
    point = client.get_metric_history(run.info.run_id, "round/number")[0]
    assert point.timestamp == round(1000 * sample_round(0, 1.0).ended_s)


def test_mlflow_takes_names_and_numbers_of_any_kind(tmp_path, store):
    sink = MlflowSink(MlflowConfig(tracking_uri=store))
    sink.open(job(tmp_path, settings={f"setting_{n}": "x" * 7000 for n in range(250)}))
    odd = {f"policies/a*b/metric {n}": float(n) for n in range(2500)}
    sink.write(sample_round(0, 1.0), odd | {"policies/all/kl": float("nan")})
    sink.close("SUCCEEDED")
    points = {name: value for name, _, value in mlflow_points(tmp_path, store)}
    assert points["policies/a-x2a-b/metric 2499"] == 2499.0
    assert len(points) == 2501


ODD = {
    "env.options.rewards.win!": 1,
    "env.options.a//b": 2,
    "env.options.end/": 3,
    "env.options.nul": "a\0b",
    "env.options." + "long" * 70: 4,
    "": 5,
}


def test_mlflow_shows_one_run_with_all_rounds_whatever_settings_and_agents_are_called(tmp_path, store):
    from mlflow import MlflowClient

    names = ["agents/a#1/greedy", "agents/a$1/greedy", "agents/a_1/greedy", "agents/../greedy", f"agents/{'é' * 260}"]
    before = None
    for number in range(3):  # opened anew before each round
        sink = MlflowSink(MlflowConfig(tracking_uri=store))
        sink.open(job(tmp_path, settings=ODD, last=before))
        before = sample_round(number, 1.0)
        sink.write(before, {name: 10.0 * number + place for place, name in enumerate(names)})
        sink.close("RUNNING")

    client = MlflowClient(store)
    [run] = client.search_runs([client.get_experiment_by_name("marless").experiment_id])
    assert {key: value for key, value in run.data.params.items() if "long" not in key} == {
        "env.options.rewards.win-x21-": "1",
        "env.options.a/-x2f-b": "2",
        "env.options.end-x2f-": "3",
        "env.options.nul": r"a\0b",
    }  # and not "", which MLflow refuses
    assert len(run.data.params) == 5
    curves: dict[str, list[float]] = {}
    for name, _, value in mlflow_points(tmp_path, store):
        curves.setdefault(name, []).append(value)
    assert sorted(curves.values()) == [[place, 10.0 + place, 20.0 + place] for place in range(5)]
    assert {"agents/a-x23-1/greedy", "agents/a-x24-1/greedy", "agents/a_1/greedy"} < curves.keys()


def test_mlflow_goes_on_with_its_run_after_settings_that_could_not_be_sent(tmp_path, store, monkeypatch):
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    def unreachable(*_, **__):
        raise MlflowException("no answer")

    with monkeypatch.context() as away:
        away.setattr(MlflowClient, "log_batch", unreachable)
        for _ in range(3):
            with pytest.raises(MlflowException, match="no answer"):
                MlflowSink(MlflowConfig(tracking_uri=store)).open(job(tmp_path))
    MlflowSink(MlflowConfig(tracking_uri=store)).open(job(tmp_path))
    client = MlflowClient(store)
    [run] = client.search_runs([client.get_experiment_by_name("marless").experiment_id])
    assert run.data.params == {name: str(value) for name, value in SETTINGS.items()}
