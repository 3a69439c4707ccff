"""The job for StarCraft's battles without the game, as a user trains it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("smac_map", "seed", "won"), [("8m", 0, 0.9), ("8m", 1, 0.9), ("8m", 2, 0.9), ("3s5z", 0, 0.5)]
)
def test_one_policy_learns_to_win_battles(tmp_path, smac_map, seed, won):
    example = EXAMPLES / f"smac_{smac_map}.yaml"
    command = [sys.executable, "-m", "marless", "train", str(example), "--set", f"seed={seed}", "-o", "json"]
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["random_win_rate"] < 0.01
    assert result["win_rate"] >= won
