"""Generates Python code from the .proto files: `python -m protos.generate DIRECTORY`."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent
PLUGINS = ("mypy", "mypy_grpc")


def generate(target: Path) -> None:
    """Write messages, service stubs and type stubs below `target`; raises RuntimeError if protoc fails."""
    binaries = Path(sys.executable).parent
    arguments = [
        "protoc",
        f"-I{ROOT}",
        f"-I{files('grpc_tools') / '_proto'}",
        *(f"--{kind}_out={target}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")),
        *(f"--plugin=protoc-gen-{plugin}={binaries / f'protoc-gen-{plugin}'}" for plugin in PLUGINS),
        *(str(path) for path in sorted((ROOT / "marless/rpc/v1").glob("*.proto"))),
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc failed; its messages are above")


if __name__ == "__main__":
    generate(Path(sys.argv[1]))
