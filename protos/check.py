"""Fails if the committed generated code differs from what the .proto files generate: `python -m protos.check`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from protos.generate import ROOT, generate

GENERATED = "marless/rpc/v1"


def stale(repository: Path) -> list[str]:
    """Names of generated files that differ, are missing or are superfluous."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = {path.name: path.read_bytes() for path in (Path(scratch) / GENERATED).glob("*_pb2*")}
        committed = {path.name: path.read_bytes() for path in (repository / GENERATED).glob("*_pb2*")}
    return sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))


if __name__ == "__main__":
    differing = stale(ROOT.parent)
    if differing:
        sys.exit(f"generated code is stale: {', '.join(differing)}; run `make protos` and commit the result")
