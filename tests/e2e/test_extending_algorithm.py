"""A third party's algorithm, as docs/extending/algorithm.md has it, trains like our own."""

import json
import os
import subprocess
import sys

from marless.round_file import read
from tests import extending

SMALL = ("stop.env_steps=null", "stop.rounds=2", "actors.envs=4", "model.hidden=[8]", "evaluation.episodes=4")


def test_the_algorithm_of_the_page_trains_a_job(tmp_path):
    extending.install("algorithm.md", tmp_path)
    own = {"PYTHONPATH": str(tmp_path), "MARLESS_ACTOR_WORKERS": "1", "OMP_NUM_THREADS": "1"}
    settings = [word for setting in SMALL for word in ("--set", setting)]
    command = (sys.executable, "-c", "from marless.cli import command; command()", "train", "job.yaml", *settings)
    done = subprocess.run(
        (*command, "-o", "json"), check=False, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rounds"] == 2
    [folder] = (tmp_path / "runs").iterdir()
    last = list(read(folder / "rounds.jsonl"))[-1]
    assert {each.function for each in last.invocations} >= {"actor", "post_process", "critic", "policy"}
    assert last.metrics["agent_0"]["grad_norm"] > 0
