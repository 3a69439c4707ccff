"""The sink that `marless new` makes; tests/docs runs its page."""

import importlib
import re

from marless.jobs.sinks.base import scalars
from marless.jobs.sinks.contract import sample_round
from tests.docs.blocks import text_of
from tests.unit.jobs.sinks.test_tensorboard import job

KIND = "sink"


def test_its_sink_is_what_the_registry_wants(package, tmp_path):
    kind = importlib.import_module("curves.sink").SINK
    sink = kind.make(kind.config_type(separator=";"))
    sink.open(job(tmp_path))
    sink.write(sample_round(0, 1.0), {"round/number": 0})
    sink.close("SUCCEEDED")
    assert (tmp_path / "curves.csv").read_text() == "round/number;100;0\n"


def test_the_page_of_metrics_names_every_scalar():
    named = set(re.findall(r"`([\w<>]+/[\w</>]+)`", text_of("docs/metrics.md")))
    patterns = [re.sub(r"<\w+>", r"[^/]+", name) for name in named]
    record = sample_round(0, 1.0)
    unnamed = [
        name
        for name in scalars(record, None, record.returns)
        if not any(re.fullmatch(pattern, name) for pattern in patterns)
    ]
    assert [name for name in unnamed if not name.startswith("agents/")] == []
