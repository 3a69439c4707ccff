"""The house's arrows, as a gate: who may import whom, and which processes start without torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TRANSPORT = ("asyncio", "grpc", "redis", "google.protobuf")
"""What the core must not know; only these rooms of `marless` may."""
COORDINATOR = ("state", "execution", "jobs", "api")
"""The coordinator's folders; each may import those before it."""
WIRE = ("services.coordinator.execution.pools", "services.coordinator.execution.wire", "services.coordinator.api")
"""Where the coordinator makes and reads messages; the rest of it knows none."""
OUTER_ROOMS = ("marless.rpc", "marless.fleet", "marless.cli", "marless.client")
LONGEST_FUNCTION, LONGEST_FILE = 60, 600


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    paths = [path for top in ("marless", "services") for path in (ROOT / top).rglob("*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text() for path in paths}


@cache
def statements(source: str) -> list[ast.stmt]:
    """Those that import or define, wherever they stand."""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


def imports(source: str) -> Iterator[str]:
    for node in statements(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide arrows"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def above(module: str) -> tuple[str, ...]:
    """The coordinator's folders above that of a module."""
    folder = module.split(".")[2]
    later = COORDINATOR[COORDINATOR.index(folder) + 1 :] if folder in COORDINATOR else ()
    return tuple(f"services.coordinator.{each}" for each in later)


def forbidden(module: str) -> tuple[str, ...]:
    """The packages that a module must not import."""
    if module.startswith("services."):
        here = module.split(".")[1]
        others = {"coordinator", "actor_pool", "learner_pool", "param_store", "relay"} - {here}
        messages = ("marless.rpc.v1",) if here == "coordinator" and not within(module, WIRE) else ()
        return (*(f"services.{other}" for other in others), *above(module), *messages, "marless.cli")
    if within(module, ("marless.cli", "marless.client", "marless.__main__")):
        return ("services", "redis", "torch")
    if within(module, ("marless.fleet",)):
        return ("services", "marless.cli", "torch")
    if within(module, ("marless.rpc",)):
        return ("services", "marless.fleet", "marless.cli", "torch")
    if within(module, ("marless.envs.starcraft",)):  # the game's protocol is made of protobuf messages
        return ("services", *OUTER_ROOMS, *(each for each in TRANSPORT if each != "google.protobuf"))
    return ("services", *OUTER_ROOMS, *TRANSPORT)


def wrong_arrows(tree: dict[str, str]) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, source in tree.items()
        for name in imports(source)
        if within(name, forbidden(module))
    ]


def run_time_imports(source: str) -> Iterator[str]:
    """Those of functions, too, but none that only a type checker sees."""
    tree = ast.parse(source)
    unseen = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in unseen:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and id(node) not in unseen:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package(module: str) -> str:
    """`marless.algos` of `marless.algos.ppo.losses`, and `marless.spec` of itself."""
    return ".".join(module.split(".")[:2])


def circles(tree: dict[str, str]) -> list[str]:
    """Packages that are left over when those that import no other are taken away, again and again."""
    arrows = {package(module): set[str]() for module in tree}
    for module, source in tree.items():
        arrows[package(module)] |= {package(name) for name in run_time_imports(source)} - {package(module)}
    while free := {one for one, others in arrows.items() if not others & set(arrows)}:
        arrows = {one: others for one, others in arrows.items() if one not in free}
    while last := {one for one in arrows if not any(one in others for others in arrows.values())}:
        arrows = {one: others for one, others in arrows.items() if one not in last}
    return [f"{one} → {', '.join(sorted(others & set(arrows)))}" for one, others in sorted(arrows.items())]


def too_long(tree: dict[str, str]) -> list[str]:
    found = []
    for module, source in tree.items():
        if module.startswith("marless.rpc.v1"):
            continue
        lines = source.count("\n")
        if lines > LONGEST_FILE:
            found.append(f"{module}: {lines} lines")
        for node in statements(source):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    found.append(f"{module}.{node.name}: {length} lines")
    return found


def test_arrows_point_inward(sources):
    assert wrong_arrows(sources) == []


def test_nothing_is_long(sources):
    assert too_long(sources) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("marless.envs.mpe", "import asyncio"),
        ("marless.data.rollout", "from marless.rpc.client import Peer"),
        ("marless.spec", "def f():\n    import grpc.aio"),
        ("services.actor_pool.actor", "from services.learner_pool import buffer"),
        ("services.coordinator.state.journal", "from services.coordinator.execution.pools import Pools"),
        ("services.coordinator.jobs.jobs", "import services.coordinator.api.servicer"),
        ("services.coordinator.execution.planning", "from marless.rpc.v1.learner_pool_pb2 import Measure"),
        ("marless.rpc.server", "import services.coordinator"),
        ("marless.rpc.server", "from marless.fleet.dispatch import Dispatcher"),
        ("marless.fleet.session", "import torch"),
        ("marless.cli.train", "from services.coordinator.jobs.jobs import Jobs"),
    ],
)
def test_the_gate_sees_a_wrong_arrow(module, source):
    assert len(wrong_arrows({module: source})) == 1


def test_the_gate_sees_a_long_function():
    assert too_long({"marless.spec": "def f():\n" + "    x = 1\n" * LONGEST_FUNCTION})


def test_packages_do_not_import_each_other_in_circles(sources):
    assert circles(sources) == []


def test_a_circle_would_be_seen():
    away = {"marless.a.x": "def f():\n    from marless.b import y", "marless.b.y": "import marless.c", "marless.c": ""}
    back = {"marless.c": "from marless.a.x import f"}
    assert circles(away) == []
    assert circles(away | back) == ["marless.a → marless.b", "marless.b → marless.c", "marless.c → marless.a"]
    assert circles(away | {"marless.c": "if TYPE_CHECKING:\n    from marless.a.x import f"}) == []


PROCESSES = (
    "services.actor_pool.worker",  # first, as one that has nothing from the others
    "services.coordinator.__main__",
    "services.actor_pool.__main__",
    "services.learner_pool.__main__",
    "services.param_store.__main__",
    "services.relay.__main__",
    "marless.fleet.hosts.program",
    "marless.cli.main",
)


WITHOUT_TORCH = """
import importlib, sys
known = set(sys.modules)
for module in sys.argv[1:]:
    importlib.import_module(module)
    print(module, *{name.partition(".")[0] for name in set(sys.modules) - known})
    known |= set(sys.modules)
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)


def loaded_by(*modules: str) -> dict[str, set[str]]:
    """Top-level packages that each module adds to a fresh interpreter, which imports one after the other."""
    done = run(WITHOUT_TORCH, *modules)
    assert done.returncode == 0, done.stderr
    return {module: set(packages) for module, *packages in map(str.split, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    return loaded_by(*PROCESSES)


@pytest.mark.parametrize("module", PROCESSES)
def test_starts_without_torch(loaded, module):
    assert "rich" not in loaded[module]  # see marless/log.py
    assert not loaded[module] & {"torch", "matplotlib", "pettingzoo", "mpe2", "tensorboard", "wandb", "mlflow", "ray"}


def test_actor_workers_start_light(loaded):
    heavy = {"pydantic", "redis", "yaml", "typer", "safetensors.torch", "prometheus_client"}
    assert PROCESSES[0] == "services.actor_pool.worker" and not loaded[PROCESSES[0]] & heavy


def test_algorithms_can_be_looked_up_without_torch():
    program = """
import sys
sys.modules["torch"] = None
from marless.algos.registry import ALGORITHMS
print(*(ALGORITHMS.find(name).config_type.__name__ for name in sorted(ALGORITHMS.modules)))
"""
    done = run(program)
    assert done.stdout.split() == [
        f"{name}Config" for name in ("IDDPG", "Impact", "IPPO", "IQL", "MADDPG", "MAPPO", "QMIX", "VDN")
    ]


def test_the_learner_worker_is_where_torch_is():
    done = run("import sys; sys.modules['torch'] = None; import services.learner_pool.worker")
    assert done.returncode and "import of torch halted" in done.stderr
