"""The page that teaches how to add a sink does what it says."""

import re
from pathlib import Path

import pytest

from marless.sinks.contract import sample_round
from marless.sinks.scalars import scalars
from tests.unit.sinks.test_tensorboard import job

PAGES = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def page():
    names = {}
    for block in re.findall(r"```python\n(.*?)```", (PAGES / "extending/sink.md").read_text("utf-8"), re.DOTALL):
        exec(block, names)  # the second block runs the contract check
    return names


def test_its_sink_is_what_the_registry_wants(page, tmp_path):
    kind = page["SINK"]
    sink = kind.make(kind.config_type(separator=";"))
    sink.open(job(tmp_path))
    sink.write(sample_round(0, 1.0), {"round/number": 0})
    sink.close("SUCCEEDED")
    assert (tmp_path / "curves.csv").read_text() == "round/number;100;0\n"


def test_the_page_of_metrics_names_every_scalar():
    text = (PAGES / "metrics.md").read_text("utf-8")
    named = set(re.findall(r"`([\w<>]+/[\w</>]+)`", text))
    patterns = [re.sub(r"<\w+>", r"[^/]+", name) for name in named]
    record = sample_round(0, 1.0)
    unnamed = [
        name
        for name in scalars(record, None, record.returns)
        if not any(re.fullmatch(pattern, name) for pattern in patterns)
    ]
    assert [name for name in unnamed if not name.startswith("agents/")] == []
