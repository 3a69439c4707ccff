"""Learners on a simulated device: the cases of simulated_device_cases.py, in a process of their own.

torch's autograd makes a queue for each device when it first computes gradients, so a device that comes later has none.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("simulated_device_cases.py")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_learners_keep_apart_what_is_on_a_device(which, tmp_path):
    arguments = [
        "-m",
        which,
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path / 'cases'}",
        str(CASES),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
