"""`marless compare` with real runs: killed in the middle, resumed, explained."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from marless.storage.round_file import read
from tests.unit.cost.comparison.synthetic import JOB

COMPARE = ("compare", "job.yaml", "--presets", "vanilla,no-sharing", "--seeds", "1", "-o", "json")
GONE_S = 60.0


def marless(place: Path, *arguments: str) -> subprocess.Popen[str]:
    own = {"TMPDIR": str(place), "MARLESS_ACTOR_WORKERS": "2", "OMP_NUM_THREADS": "1"}
    own |= {"MARLESS_SPOOL": str(place / "spool")}
    return subprocess.Popen(
        (sys.executable, "-c", "from marless.app.cli import command; command()", *arguments),
        cwd=place,
        env={name: value for name, value in os.environ.items() if name != "MARLESS_COORDINATOR"} | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow  # three cold starts of the stack
def test_a_comparison_is_interrupted_goes_on_and_explains_itself(tmp_path):
    (tmp_path / "spool").mkdir()
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    first = marless(tmp_path, *COMPARE)
    for line in first.stderr:
        if line.startswith("marless: run 2 of 2"):
            first.send_signal(signal.SIGINT)
            break
    out, said = first.communicate(timeout=GONE_S)
    assert (first.returncode, out) == (130, "")
    assert "--resume --out runs/compare-tiny continues" in said
    runs = tmp_path / "runs" / "compare-tiny" / "runs"
    before = (runs / "tiny-vanilla-seed0" / "rounds.jsonl").read_bytes()

    out, said = (again := marless(tmp_path, *COMPARE, "--resume")).communicate(timeout=GONE_S)
    assert again.returncode == 0, said
    assert "1 of 2 runs exist already" in said
    assert (runs / "tiny-vanilla-seed0" / "rounds.jsonl").read_bytes() == before
    presets = json.loads(out)["variants"]
    assert [presets[name]["runs"][0]["rounds"] for name in ("vanilla", "no-sharing")] == [3, 3]
    assert presets["no-sharing"]["cost_ratio"]["vanilla"]["mean"] > 0
    assert presets["vanilla"]["learners"]["mean"] == 4.0

    records = list(read(runs / "tiny-no-sharing-seed0" / "rounds.jsonl"))
    out, _ = marless(
        tmp_path, "explain", str(runs / "tiny-no-sharing-seed0"), "--round", "3", "-o", "json"
    ).communicate()
    [decision] = [each for each in json.loads(out)["decisions"] if each["kind"] == "scaling"]
    assert decision["outcome"] == f"{records[-1].actors} actors"
