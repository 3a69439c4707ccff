"""The house's arrows, as a gate: who may import whom, and which processes start without torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TRANSPORT = ("asyncio", "grpc", "redis", "google.protobuf", "uvloop")
"""What the core must not know; only these rooms of `marless` may."""
OUTER_ROOMS = ("marless.rpc", "marless.fleet", "marless.cli", "marless.client")
LONGEST_FUNCTION, LONGEST_FILE = 60, 600


def sources() -> dict[str, str]:
    paths = [path for top in ("marless", "services") for path in (ROOT / top).rglob("*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text() for path in paths}


def imports(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide arrows"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def forbidden(module: str) -> tuple[str, ...]:
    """The packages that a module must not import."""
    if module.startswith("services."):
        here = module.split(".")[1]
        others = {"coordinator", "actor_pool", "learner_pool", "param_store"} - {here}
        return (*(f"services.{other}" for other in others), "marless.cli")
    if within(module, ("marless.cli", "marless.client", "marless.__main__")):
        return ("services", "redis", "torch")
    if within(module, ("marless.fleet",)):
        return ("services", "marless.cli", "torch")
    if within(module, ("marless.rpc",)):
        return ("services", "marless.fleet", "marless.cli", "torch")
    return ("services", *OUTER_ROOMS, *TRANSPORT)


def wrong_arrows(tree: dict[str, str]) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, source in tree.items()
        for name in imports(source)
        if within(name, forbidden(module))
    ]


def too_long(tree: dict[str, str]) -> list[str]:
    found = []
    for module, source in tree.items():
        if module.startswith("marless.rpc.v1"):
            continue
        lines = source.count("\n")
        if lines > LONGEST_FILE:
            found.append(f"{module}: {lines} lines")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    found.append(f"{module}.{node.name}: {length} lines")
    return found


def test_arrows_point_inward():
    assert wrong_arrows(sources()) == []


def test_nothing_is_long():
    assert too_long(sources()) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("marless.envs.mpe", "import asyncio"),
        ("marless.data.rollout", "from marless.rpc.client import Peer"),
        ("marless.spec", "def f():\n    import grpc.aio"),
        ("services.actor_pool.actor", "from services.learner_pool import intake"),
        ("marless.rpc.server", "import services.coordinator"),
        ("marless.rpc.server", "from marless.fleet.dispatch import Dispatcher"),
        ("marless.fleet.session", "import torch"),
        ("marless.cli.train", "from services.coordinator.jobs import Jobs"),
    ],
)
def test_the_gate_sees_a_wrong_arrow(module, source):
    assert len(wrong_arrows({module: source})) == 1


def test_the_gate_sees_a_long_function():
    assert too_long({"marless.spec": "def f():\n" + "    x = 1\n" * LONGEST_FUNCTION})


PROCESSES = (
    "services.coordinator.__main__",
    "services.actor_pool.__main__",
    "services.actor_pool.worker",
    "services.learner_pool.__main__",
    "services.param_store.__main__",
    "marless.cli.main",
)


def loaded_by(module: str) -> set[str]:
    """Top-level packages in memory after a fresh interpreter has imported `module`."""
    program = f"import {module}, sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", PROCESSES)
def test_starts_without_torch(module):
    loaded = loaded_by(module)
    assert "rich" not in loaded  # see marless/log.py
    assert not loaded & {"torch", "matplotlib", "pettingzoo", "mpe2", "tensorboard", "wandb", "mlflow"}


def test_actor_workers_start_light():
    heavy = {"pydantic", "redis", "yaml", "typer", "safetensors.torch", "prometheus_client"}
    assert not loaded_by("services.actor_pool.worker") & heavy


def test_the_learner_worker_is_where_torch_is():
    assert "torch" in loaded_by("services.learner_pool.worker")
