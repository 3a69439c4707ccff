"""The job for StarCraft's battles without the game, as a user trains it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "smac_8m.yaml"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
def test_eight_marines_learn_to_beat_eight(tmp_path, seed):
    command = [sys.executable, "-m", "marless", "train", str(EXAMPLE), "--set", f"seed={seed}", "-o", "json"]
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["random_win_rate"] < 0.01
    assert result["win_rate"] >= 0.9
