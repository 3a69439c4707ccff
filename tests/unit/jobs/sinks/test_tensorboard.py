"""TensorBoard's own reader sees what the sink wrote."""

from pathlib import Path

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from marless.jobs.sinks.base import SinkJob
from marless.jobs.sinks.contract import check_sink
from marless.jobs.sinks.tensorboard import TensorBoardSink


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    return events.Reload()


def points(folder: Path) -> list[tuple[str, int, float]]:
    events = read(folder)
    return [(tag, point.step, point.value) for tag in events.Tags()["scalars"] for point in events.Scalars(tag)]


def test_it_keeps_the_contract(tmp_path):
    check_sink(TensorBoardSink, tmp_path, points)


def test_a_torn_last_event_costs_no_other(tmp_path):
    check_sink(TensorBoardSink, tmp_path)
    newest = max((tmp_path / "tensorboard").iterdir())
    before = points(tmp_path)
    with newest.open("ab") as file:
        file.write(b"\x20\0\0\0\0\0\0\0torn")
    sink = TensorBoardSink()
    sink.open(job(tmp_path))
    sink.close("RUNNING")
    assert newest != max((tmp_path / "tensorboard").iterdir())
    assert len(before) > 100
    assert points(tmp_path) == []  # a curve that begins anew drops what was there, whatever its end looks like


def test_time_is_the_rounds(tmp_path):
    check_sink(TensorBoardSink, tmp_path)
    first, *_ = read(tmp_path).Scalars("round/number")
    assert first.wall_time == pytest.approx(1e9 + 2)


def test_the_spec_is_text_and_hyperparameters(tmp_path):
    sink = TensorBoardSink()
    sink.open(job(tmp_path))
    sink.close("SUCCEEDED")
    events = read(tmp_path)
    text = events.Tensors("spec")[0].tensor_proto.string_val[0].decode()
    assert yaml.safe_load(text.strip("`").removeprefix("yaml")) == {"seed": 1}
    metadata = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    start = HParamsPluginData.FromString(metadata).session_start_info
    assert {name: value.WhichOneof("kind") for name, value in start.hparams.items()} == {
        "algorithm.name": "string_value",
        "algorithm.lr": "number_value",
        "learner.on": "bool_value",
    }


def job(folder: Path) -> SinkJob:
    settings = {"algorithm.name": "ippo", "algorithm.lr": 0.5, "learner.on": True}
    return SinkJob(id="board", folder=folder, spec_yaml="seed: 1\n", settings=settings, last=None)
