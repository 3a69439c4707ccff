"""`marless compare` with real runs: killed in the middle, resumed, explained."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from marless.cost.comparison.controls import shuffled
from marless.jobs.scaling.base import PlaceboConfig
from marless.jobs.scaling.placebo import placebo_value
from marless.storage.round_file import read
from tests.unit.cost.comparison.synthetic import JOB

COMPARE = ("compare", "job.yaml", "--presets", "vanilla,no-sharing", "--seeds", "1", "-o", "json", "--no-controls")
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


CONTROLLED = ("compare", "job.yaml", "--presets", "no-sharing", "--seeds", "1", "--rounds", "4", "-o", "json")


@pytest.mark.slow  # five cold starts of the stack
def test_controls_are_run_interrupted_and_go_on(tmp_path):
    (tmp_path / "spool").mkdir()
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    first = marless(tmp_path, *CONTROLLED)
    for line in first.stderr:
        if line.startswith("marless: control run 3 of 3"):
            first.send_signal(signal.SIGINT)
            break
    out, said = first.communicate(timeout=GONE_S)
    assert (first.returncode, out) == (130, "")
    assert "--resume --out runs/compare-tiny continues" in said

    out, said = (again := marless(tmp_path, *CONTROLLED, "--resume")).communicate(timeout=GONE_S)
    assert again.returncode == 0, said
    assert "2 of 3 control runs exist already" in said
    verdict = json.loads(out)["verdicts"]["no-sharing"]
    assert list(verdict["controls"]) == ["mean", "shuffled", "placebo"]
    assert {each["outcome"] for each in verdict["controls"].values()} == {"unknown"}  # of one seed

    folder = tmp_path / "runs" / "compare-tiny"
    own = list(read(folder / "runs" / "tiny-no-sharing-seed0" / "rounds.jsonl"))
    runs = {each.name.split("-")[3]: each for each in (folder / "controls").iterdir()}
    records = {kind: list(read(each / "rounds.jsonl")) for kind, each in runs.items()}
    count = math.floor(fmean(each.actors for each in own) + 0.5)
    assert [each.actors for each in records[f"mean{count}"]] == [count] * 4
    assert [each.actors for each in records["shuffled"]] == list(shuffled([each.actors for each in own], 0))
    # The placebo measures C as its variant does, and decides by other numbers, which a resumed job draws again.
    spec = yaml.safe_load((runs["placebo"] / "spec.yaml").read_text())
    placebo = PlaceboConfig(**spec["scaling"]["placebo"])
    for number, record in enumerate(records["placebo"][1:], start=1):
        [decision] = [each for each in record.decisions if each.kind == "scaling"]
        assert decision.inputs["window"] == {
            name: [placebo_value(placebo, 0, name, earlier) for earlier in range(number)]
            for name in ("agent_0", "agent_1")
        }
        assert "curvature" in record.metrics["agent_0"]

    out, _ = marless(tmp_path, "explain", str(runs["shuffled"]), "--round", "2").communicate()
    assert "given: number 2 of a list of 4" in out
