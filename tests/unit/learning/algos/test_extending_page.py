"""The algorithm that `marless new` makes; tests/docs runs its page."""

import importlib
import subprocess
import sys

from marless.jobs import spec
from marless.jobs.job import prepare
from marless.learning.algos.registry import algorithm
from tests.docs.blocks import text_of

KIND = "algorithm"


def test_a_job_finds_it_by_its_entry_point(package):
    job = prepare(spec.load(package / "job.yaml"))
    assert job.spec.algorithm.name == "spo"
    assert job.spec.algorithm.clip == 0.1
    assert algorithm("spo").config_type is type(job.spec.algorithm)


def test_its_config_loads_no_torch(package):
    program = "import spo.algorithm, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=package, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_everything_it_names_is_there():
    table = text_of("docs/extending/algorithm.md").partition("| part | module |")[2].partition("\n\n")[0]
    for path in {part for part in table.split("`") if part.startswith("marless.")}:
        module, _, name = path.rpartition(".")
        try:
            importlib.import_module(path)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), name), path
