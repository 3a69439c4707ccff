"""What is left on disks: run folders, checkpoints, trained schedulers."""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from safetensors import numpy as safetensors

from marless.cost.billing import spot_files
from marless.rpc import tokens
from marless.rpc.roles import Role
from marless.services.coordinator.jobs import view
from marless.services.coordinator.state.run_folder import RunFolder
from marless.storage import checkpoint, round_file
from marless.storage.bucket.head import RunHead
from marless_minions import scheduler as schedulers
from marless_minions.features import FEATURES
from tests.fuzz import scratch
from tests.fuzz.choices import Choices, document, raw, text

RETURNS = {"episodes": 2, "mean": -1.5, "per_agent": {"a": -1.5}, "standard_error": 0.1, "wins": None}
RECORD: dict[str, Any] = {
    "job": "tiny",
    "round": 0,
    "env_steps": 40,
    "actors": 2,
    "groups": [{"policy": "a", "agents": ["a"], "version": 2, "source": ""}],
    "versions": {"a": 2},
    "started_s": 1.7e9,
    "ended_s": 1.8e9,
    "phases": {"rollout": 0.1, "update": 0.2, "evaluation": 0.0},
    "returns": RETURNS,
    "evaluation": {**RETURNS, "return": -1.5, "win_rate": None},
    "earlier_evaluation": {"rounds": 0, "env_steps": 0, "returns": {**RETURNS, "return": -1.5, "win_rate": None}},
    "metrics": {"a": {"kl": 0.1}},
    "invocations": [
        {
            **{"id": "i", "function": "actor", "name": "0", "index": 0, "attempt": 0, "worker": "w", "queued_s": 1.0},
            **{"start_s": 1.0, "end_s": 2.0, "vcpu_s": 0.5, "memory_bytes": 10, "cold": True, "after": []},
        }
    ],
    "decisions": [{"kind": "scaling", "rule": "fixed", "outcome": "2 actors", "reason": "fixed", "inputs": {"a": 1}}],
    "distances": [{"agents": ["a", "b"], "values": [[0, 1], [1, 0]]}],
    "lanes": [{"lane": 0, "version": 2, "digest": "a" * 16}],
    "machines": [],
}
MANIFEST: dict[str, Any] = {
    **{"round": 3, "env_steps": 10, "seed": 5, "actors": 2, "algorithm": "ippo", "groups": {"a": ["a", "b"]}},
    "lanes": [{"lane": 0, "version": 2, "digest": "a" * 16}],
    "policies": {"a": {"version": 2, "sha256": {"acting": hashlib.sha256(b"x").hexdigest()}}},
}
STATUS: dict[str, Any] = {
    **{"job": "tiny", "state": "RUNNING", "reason": "", "accepted_s": 1.0, "random": RETURNS, "resumes": 0},
    "summary_json": '{"rounds": 3, "env_steps": 9, "return": -1.0, "random_return": null}',
}
HISTORY: dict[str, Any] = {
    "SpotPriceHistory": [
        {
            "Timestamp": f"2026-10-01T00:0{minute}:00Z",
            **{"ProductDescription": "Linux/UNIX", "InstanceType": "c6a.large", "AvailabilityZone": "us-east-1b"},
            "SpotPrice": price,
        }
        for minute, price in ((2, "0.25"), (1, "0.75"), (0, "0.5"))
    ]
}
SERIES = "# prices\ntime,usd_h,killed\n0,0.5,0\n60,0.6,1\n120,0.4,0\n"
PART: dict[str, Any] = {"change": "0123456789abcdef-1", "bytes": 3, "sha256": "a" * 64}
HEAD: dict[str, Any] = {
    **{"format": 1, "owner": "0123456789abcdef", "holder": "host 1", "serial": 4, "deleted": False, "status": "{}"},
    **{"pending": "", "files": {"spec.yaml": PART, "checkpoints/round-000050/manifest.json": PART}},
    **{"segments": [{"part": PART, "rounds": 2}], "tail": ['{"round": 2}']},
}
SCHEDULER: dict[str, Any] = {
    "format": schedulers.FORMAT,
    "task": {"rounds": 10, "max_actors": 4, "target": -5.0, "budget_usd": 1.0, "usd_per_gb_s": 0.1, "beta": 0.1},
    "features": {name: {"center": 0.0, "scale": 1.0} for name in FEATURES},
    "sha256": {},
    "report": {},
}


def _line(choices: Choices) -> bytes:
    made = json.dumps(document(RECORD, choices), separators=choices.pick(((",", ":"), (", ", ": "))))
    line = text(made, choices).encode("utf-8", "surrogatepass").replace(b"\n", b" ")
    return raw(line, choices).replace(b"\n", b" ") if choices.sometimes(3) else line


def record(choices: Choices) -> None:
    """One line, read in each way that it is read."""
    line, path = _line(choices), Path("rounds.jsonl")
    round_file.may_be_evaluated(line)
    round_file.spent_s(path, line)
    read = round_file.parse(path, line)
    read.to_json()


def rounds(choices: Choices) -> None:
    """A file of a few lines, from its front and its end."""
    path = scratch.directory() / "rounds.jsonl"
    good = [
        json.dumps({**RECORD, "round": number}, separators=(",", ":")).encode() for number in range(choices.below(4))
    ]
    lines = [*good, _line(choices), *good[: choices.below(2)]]
    path.write_bytes(b"\n".join(lines) + choices.pick((b"\n", b"", b"\n\n", b"{")))
    first = choices.below(5)
    round_file.RoundReader(path).batch(first)
    list(round_file.read_backwards(path))
    list(round_file.read(path, first))


def spot_prices(choices: Choices) -> None:
    """Prices of a spot machine, as AWS tells them or as CSV, with and without a bid, and what a run costs by them."""
    told = choices.sometimes(2)
    made = text(scratch.json_text(document(HISTORY, choices)) if told else SERIES, choices)
    place = scratch.files({"prices": made.encode("utf-8", "surrogatepass")}) / "prices"
    found = spot_files.read_spot_prices(
        place, Decimal(choices.pick(("0.5", "1e-9", "NaN"))) if choices.byte() & 1 else None
    )
    assert not found.rows[-1].killed
    begin_us = found.rows[0].time_us
    assert found.run([1_000_000] * 3, begin_us, restart_us=10**6, minimum_s=60).picos >= 0


def head(choices: Choices) -> None:
    """head.json of a run folder in a bucket."""
    data = json.dumps(document(HEAD, choices)).encode("utf-8", "surrogatepass")
    found = RunHead.parse(raw(data, choices) if choices.sometimes(3) else data, "head.json")
    assert RunHead.parse(found.encoded(), "head.json") == found
    assert found.rounds >= 0 and len(found.checkpoints) <= len(found.files)


def manifest(choices: Choices) -> None:
    """A checkpoint's manifest, and the files that it names."""
    made = text(scratch.json_text(document(MANIFEST, choices)), choices).encode("utf-8", "surrogatepass")
    for file in checkpoint.Manifest.parse(made, "manifest.json").files:
        file.check(b"x", file.name)


def job_file(choices: Choices) -> None:
    """The status of a run folder."""
    made = text(scratch.json_text(document(STATUS, choices)), choices).encode("utf-8", "surrogatepass")
    folder = RunFolder(scratch.files({"job.json": made}))
    if folder.read_status().summary_json:
        view.read(folder)


@cache
def _tokens() -> Path:
    path = scratch.directory() / "tokens"
    tokens.create(path)
    return path


def token_files(choices: Choices) -> None:
    """The tokens of a role, one a line, and what a caller shows."""
    directory, role = _tokens(), choices.pick(list(Role))
    good = (directory / role).read_bytes()
    try:
        lines = [choices.pick((good.strip(), b"x" * 16, b"y" * 15, b"", b"z" * 600, b"a b" * 9)) for _ in range(3)]
        (directory / role).write_bytes(raw(b"\n".join(lines[: choices.below(4)]), choices))
        held = tokens.Tokens(directory)
        assert held.role_of(raw(good.strip(), choices)) in (None, *Role)
        assert len(held.of(role)) >= 16
    finally:
        (directory / role).write_bytes(good)


@cache
def _weights() -> bytes:
    import numpy as np

    sizes = (len(FEATURES), 3, 3, 4)
    arrays = {}
    for at, (inputs, outputs) in enumerate(pairwise(sizes)):
        arrays[f"policy.{at}.weight"] = np.zeros((inputs, outputs))
        arrays[f"policy.{at}.bias"] = np.zeros(outputs)
    return safetensors.save(arrays)


def scheduler(choices: Choices) -> None:
    """A trained scheduler's manifest and weights."""
    blob = raw(_weights(), choices) if choices.sometimes(2) else _weights()
    base = {**SCHEDULER, "sha256": {"best": hashlib.sha256(blob).hexdigest()}}
    changed = document(base, choices) if choices.sometimes(2) else base
    made = text(scratch.json_text(changed), choices).encode("utf-8", "surrogatepass")
    schedulers.load(scratch.files({schedulers.MANIFEST: made, "best.safetensors": blob}), "best")
