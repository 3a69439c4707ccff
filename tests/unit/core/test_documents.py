"""What plain scalars of job files, `--set`, sweeps and options mean: those of YAML 1.2, and underscores in numbers."""

import math
import subprocess
import sys

import pytest
import yaml

from marless.app.cli.sweep import axes, runs
from marless.core.documents import to_yaml, yaml_of
from marless.jobs.spec import of_document

MEANT = {
    "010": 10,
    "008": 8,
    "0o17": 15,
    "0x1F": 31,
    "1_000": 1000,
    "1e3": 1000,
    "1.5e3": 1500,
    "1e-3": 0.001,
    "-5": -5,
    "+7": 7,
    ".5": 0.5,
    "-.inf": -math.inf,
    "12:30:00": "12:30:00",
    "1:30.5": "1:30.5",
    "2026-11-27": "2026-11-27",
    "0b11": "0b11",
    "on": "on",
    "off": "off",
    "yes": "yes",
    "No": "No",
    "true": True,
    "False": False,
    "~": None,
    "null": None,
    "'010'": "010",
}


@pytest.mark.parametrize(("text", "value"), MEANT.items())
def test_plain_scalars_mean_what_yaml_1_2_says(text, value):
    found = yaml_of(f"key: {text}", "job")["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", [*MEANT, "<<", "=", ".nan", "True", "1__0", ""])
def test_strings_that_look_like_something_else_are_written_so_that_both_versions_read_them_as_strings(text):
    written = to_yaml({"key": text})
    assert yaml_of(written, "job") == {"key": text}
    assert yaml.safe_load(written) == {"key": text}


def test_mappings_are_still_merged():
    assert yaml_of("{a: &a {x: 1, y: 2}, b: {<<: *a, y: 3}}", "job")["b"] == {"x": 1, "y": 3}


def test_numbers_mean_the_same_in_overrides_and_sweeps():
    document = {"env": {"name": "game/matrix"}, "algorithm": "ippo", "stop": {"rounds": 1}}
    assert of_document(document, ["seed=010"], "job").seed == 10
    assert of_document(document, ["seed=008"], "job").seed == 8
    swept = runs(document, "job", prefix="", overrides=[], sweep=axes(["seed=010,008"]), seeds=None)
    assert [each.spec.seed for each in swept] == [10, 8]


IN_THREADS = """
import dataclasses, sys, threading
from marless.core.documents import dataclass_of

sys.setswitchinterval(1e-6)
Inner = dataclasses.make_dataclass("Inner", [(f"x{i}", "int | float | str | None") for i in range(30)])
Outer = dataclasses.make_dataclass("Outer", [(f"y{i}", Inner) for i in range(10)])
data = {f"y{i}": {f"x{j}": j for j in range(30)} for i in range(10)}
together = threading.Barrier(8)

def read():
    together.wait()
    for _ in range(5):
        assert dataclass_of(Outer, data).y3.x4 == 4

threads = [threading.Thread(target=read) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


@pytest.mark.parametrize("_", range(3))
def test_threads_may_read_the_first_documents_of_a_kind_at_once(_):
    """As a coordinator's do that takes up an interrupted job while somebody asks for it."""
    done = subprocess.run([sys.executable, "-c", IN_THREADS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
