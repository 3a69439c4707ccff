"""The house's arrows, as a gate: who may import whom, and which processes start without torch."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TRANSPORT = ("asyncio", "grpc", "redis", "google.protobuf")
"""What most storeys of `marless` must not know."""
COORDINATOR = ("state", "execution", "jobs", "api")
"""The coordinator's folders; each may import those before it."""
WIRE = (
    "services.coordinator.execution.service_pools",
    "services.coordinator.execution.wire",
    "services.coordinator.api",
)
"""Where the coordinator makes and reads messages; the rest of it knows none."""
GAME = ("marless_smac.starcraft",)
"""The game's own protocol is made of protobuf messages."""
STOREYS = {
    "core": (),
    "learning": ("core",),
    "jobs": ("core", "learning"),
    "storage": ("core", "learning", "jobs"),
    "cost": ("core", "learning", "jobs", "storage"),
    "rpc": ("core",),
    "fleet": ("core", "rpc"),
    "app": ("core", "learning", "jobs", "storage", "cost", "rpc", "fleet"),
}
"""The storeys of `marless`, each with those that it may import. Services may import all of them but `app`."""
QUIET = ("core", "learning", "jobs", "storage", "cost")
"""The storeys that know no transport."""
PLUGINS = {
    "marless_atari": ("core", "learning"),
    "marless_docker": ("core", "fleet", "rpc"),
    "marless_ec2": ("core", "fleet", "rpc", "app"),
    "marless_kubernetes": ("core", "fleet", "rpc"),
    "marless_minions": ("core", "learning", "jobs", "cost", "app"),
    "marless_mujoco": ("core", "learning"),
    "marless_ray": ("core", "fleet", "rpc"),
    "marless_smac": ("core", "learning"),
    "marless_wall_model": ("core", "learning", "jobs", "app"),
}
"""The plug-ins, each with the storeys that it imports. Nothing imports a plug-in, not even another one."""
ROOMS, FLOORS = 16, 9
LONGEST_FUNCTION, LONGEST_FILE = 60, 600


def modules(root: Path, *tops: str) -> dict[str, str]:
    """The source of each module below these folders of `root`, by name."""
    paths = [path for top in tops for path in (root / top).rglob("*.py")]
    return {".".join(path.relative_to(root).with_suffix("").parts): path.read_text() for path in paths}


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return modules(ROOT, "marless", "services")


@pytest.fixture(scope="module")
def plugins() -> dict[str, str]:
    return modules(ROOT / "plugins", *PLUGINS)


@cache
def statements(source: str) -> list[ast.stmt]:
    """Those that import or define, wherever they stand."""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


def imports(source: str) -> Iterator[str]:
    for node in statements(source):
        if isinstance(node, ast.Import):
            yield from (by_path(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide arrows"
            yield from (by_path(f"{node.module}.{alias.name}") for alias in node.names)


def by_path(name: str) -> str:
    """A module's name by its path: `services/` is imported by a link, as `marless.services`."""
    return name.removeprefix("marless.") if within(name, ("marless.services",)) else name


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def above(module: str) -> tuple[str, ...]:
    """The coordinator's folders above that of a module."""
    folder = module.split(".")[2]
    later = COORDINATOR[COORDINATOR.index(folder) + 1 :] if folder in COORDINATOR else ()
    return tuple(f"services.coordinator.{each}" for each in later)


def forbidden(module: str) -> tuple[str, ...]:
    """The packages that a module must not import."""
    top, here = module.split(".")[:2]
    if top in PLUGINS:
        upper = tuple(f"marless.{storey}" for storey in STOREYS if storey not in PLUGINS[top])
        return ("services", *upper, *(other for other in PLUGINS if other != top))
    return (*PLUGINS, *_forbidden_in_house(module, here))


def _forbidden_in_house(module: str, here: str) -> tuple[str, ...]:
    if module.startswith("services."):
        others = {"coordinator", "actor_pool", "learner_pool", "param_store", "relay"} - {here}
        messages = ("marless.rpc.v1",) if here == "coordinator" and not within(module, WIRE) else ()
        return (*(f"services.{other}" for other in others), *above(module), *messages, "marless.app")
    if here not in STOREYS:  # `marless.__main__`, which only calls the command line
        return ("services",)
    upper = tuple(f"marless.{other}" for other in STOREYS if other not in (here, *STOREYS[here]))
    if here == "app":
        return ("services", "redis", "torch")
    if here not in QUIET:
        return ("services", *upper, "torch")
    return ("services", *upper, *TRANSPORT)


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
            yield from (by_path(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and id(node) not in unseen:
            yield from (by_path(f"{node.module}.{alias.name}") for alias in node.names)


def room(module: str, depth: int = 2) -> str:
    """`marless.learning` of `marless.learning.nets.learner_states`; at depth 3, `marless.learning.nets`."""
    return ".".join(module.split(".")[:depth])


def arrows(tree: dict[str, str], depth: int = 2) -> dict[str, set[str]]:
    """The rooms that each room imports when it runs."""
    found: dict[str, set[str]] = {room(module, depth): set() for module in tree}
    for module, source in tree.items():
        found[room(module, depth)] |= {room(name, depth) for name in run_time_imports(source)} & set(found)
    return {one: others - {one} for one, others in found.items()}


def circles(tree: dict[str, str], depth: int = 2) -> list[str]:
    """Rooms that are left over when those that import no other are taken away, again and again."""
    left = arrows(tree, depth)
    while free := {one for one, others in left.items() if not others & set(left)}:
        left = {one: others for one, others in left.items() if one not in free}
    while last := {one for one in left if not any(one in others for others in left.values())}:
        left = {one: others for one, others in left.items() if one not in last}
    return [f"{one} → {', '.join(sorted(others & set(left)))}" for one, others in sorted(left.items())]


def floors(found: dict[str, set[str]]) -> int:
    """How many rooms stand upon one another at most."""
    left, count = dict(found), 0
    while left:
        free = {one for one, others in left.items() if not others & set(left)}
        assert free, "there is a circle"
        left, count = {one: others for one, others in left.items() if one not in free}, count + 1
    return count


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


def test_arrows_point_inward(sources, plugins):
    assert wrong_arrows(sources | plugins) == []


def test_services_are_imported_by_one_name(sources):
    """Else they are two sets of modules: from the root of the checkout, `services` can be imported, too."""
    plain = re.compile(r"^\s*(?:from|import) services\b", re.MULTILINE)
    tests = modules(ROOT, "tests", "bench")
    assert [module for module, text in (sources | tests).items() if plain.search(text)] == []
    assert (ROOT / "marless" / "services").samefile(ROOT / "services")


def test_nothing_names_a_plugin(sources):
    """Not even in a text, by which it could be imported."""
    assert [f"{module}: {name}" for module, text in sources.items() for name in PLUGINS if name in text] == []


def test_all_plugins_are_known_and_packed():
    built = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {path.parent.name for path in (ROOT / "plugins").glob("*/__init__.py")} == set(PLUGINS)
    assert {*built["packages"]} == {"marless", *(f"plugins/{name}" for name in PLUGINS)}


def test_what_plugins_declare_is_there_and_is_found_without_being_imported():
    """Entries of plug-ins can be listed without importing any, and imported without what only extras install."""
    done = run(LISTED)
    assert done.returncode == 0, done.stderr
    groups, imported = (set(line.split()) for line in done.stdout.splitlines())
    assert imported == set(PLUGINS)
    assert groups <= {
        group for text in modules(ROOT, "marless").values() for group in re.findall(r'"(marless\.\w+)"', text)
    }


def test_nothing_is_long(sources, plugins):
    assert too_long(sources | plugins) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("marless.learning.envs.mpe.engine", "import asyncio"),
        ("marless.learning.data.rollout", "from marless.rpc.client import Peer"),
        ("marless.learning.policies.team", "from marless.jobs.record import RoundRecord"),
        ("marless.jobs.spec", "def f():\n    import grpc.aio"),
        ("marless.jobs.spec", "from marless.cost.pricing import Charge"),
        ("marless.core.log", "from marless.rpc.roles import Role"),
        ("services.actor_pool.worker", "from services.learner_pool import buffer"),
        ("services.actor_pool.worker", "from marless.app.client.jobs import Job"),
        ("services.coordinator.state.journal", "from services.coordinator.execution.pools import Pools"),
        ("services.coordinator.jobs.jobs", "import services.coordinator.api.servicer"),
        ("services.coordinator.execution.planning", "from marless.rpc.v1.learner_pool_pb2 import Measure"),
        ("marless.rpc.server", "import services.coordinator"),
        ("marless.rpc.server", "from marless.fleet.dispatch import Dispatcher"),
        ("marless.fleet.session", "import torch"),
        ("marless.app.cli.train", "from services.coordinator.jobs.jobs import Jobs"),
        ("marless.learning.envs.registry", "def f():\n    from marless_smac.maps import MAPS"),
        ("services.actor_pool.worker", "import marless_smac"),
        ("marless_smac.maps", "from services.actor_pool import actor"),
        ("marless_smac.maps", "from marless.jobs.spec import JobSpec"),
    ],
)
def test_the_gate_sees_a_wrong_arrow(module, source):
    assert len(wrong_arrows({module: source})) == 1


def test_the_gate_sees_a_long_function():
    assert too_long({"marless.jobs.spec": "def f():\n" + "    x = 1\n" * LONGEST_FUNCTION})


def test_the_house_has_few_rooms_and_floors(sources):
    entries = {name: each for name, each in sources.items() if name.count(".") > 1}
    assert len(arrows(entries)) <= ROOMS
    assert floors(arrows(entries)) <= FLOORS


def test_the_root_holds_storeys_only():
    here = {
        path.name for path in (ROOT / "marless").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert here == {*STOREYS, "services", "__init__.py", "__main__.py"}


@pytest.mark.parametrize("storey", STOREYS)
def test_each_storey_has_a_page_that_names_what_is_there(storey):
    text = (ROOT / "marless" / storey / "README.md").read_text("utf-8")
    assert text.count("\n") <= 60
    for name in re.findall(r"`([a-z_/]+\.py|[a-z_/]+/)`", text):
        assert any((place / name).exists() for place in (ROOT, ROOT / "marless" / storey)) or _below(storey, name), name


def _below(storey: str, name: str) -> bool:
    return any((ROOT / "marless" / storey).glob(f"*/{name}")) or any((ROOT / "marless" / storey).glob(f"*/*/{name}"))


@pytest.mark.parametrize("depth", [2, 3])
def test_rooms_do_not_import_each_other_in_circles(sources, depth):
    assert circles(sources, depth) == []


def at_import(tree: dict[str, str]) -> dict[str, set[str]]:
    """The modules that each module imports while it is imported itself: not those of functions and type checkers."""
    found = {}
    for module, source in tree.items():
        outermost = [node for node in ast.parse(source).body if isinstance(node, (ast.Import, ast.ImportFrom))]
        names = imports("\n".join(map(ast.unparse, outermost)))
        found[module] = {each for name in names for each in (name, name.rpartition(".")[0]) if each in tree} - {module}
    return found


def test_modules_do_not_import_each_other_in_circles(sources):
    """Else it depends on which one is imported first whether there is an error."""
    for tree in (sources, {"a.b": "from a.c import x", "a.c": "from a.b import y"}):
        try:
            tuple(TopologicalSorter(at_import(tree)).static_order())
        except CycleError as error:
            assert tree is not sources, error.args[1]
        else:
            assert tree is sources


def test_a_circle_would_be_seen():
    away = {"marless.a.x": "def f():\n    from marless.b import y", "marless.b.y": "import marless.c", "marless.c": ""}
    back = {"marless.c": "from marless.a.x import f"}
    assert circles(away) == []
    assert circles(away | back) == ["marless.a → marless.b", "marless.b → marless.c", "marless.c → marless.a"]
    assert circles(away | {"marless.c": "if TYPE_CHECKING:\n    from marless.a.x import f"}) == []
    assert floors(arrows(away)) == 3


PROCESSES = (
    "marless.services.actor_pool.worker",  # first, as one that has nothing from the others
    "marless.services.coordinator.__main__",
    "marless.services.actor_pool.__main__",
    "marless.services.learner_pool.__main__",
    "marless.services.param_store.__main__",
    "marless.services.relay.__main__",
    "marless.fleet.launchers.hosts.program",
    "marless.app.cli.main",
)


WITHOUT_TORCH = """
import importlib, sys
known = set(sys.modules)
for module in sys.argv[1:]:
    importlib.import_module(module)
    print(module, *{name.partition(".")[0] for name in set(sys.modules) - known})
    known |= set(sys.modules)
"""


LISTED = """
import sys
from importlib.metadata import distribution
from marless.core.registry import loaded, plugged
groups = {entry.group for entry in distribution("marless").entry_points if entry.group.startswith("marless.")}
entries = [entry for group in groups for entry in plugged(group).values()]
assert not any(name.startswith("marless_") for name in sys.modules)
sys.modules |= dict.fromkeys(("torch", "ray", "docker", "boto3", "websocket", "s2clientprotocol"))
for entry in entries:
    loaded("entry", entry)
print(*groups)
print(*{entry.module.partition(".")[0] for entry in entries})
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
    assert "rich" not in loaded[module]  # see marless/core/log.py
    assert not loaded[module] & {"torch", "matplotlib", "pettingzoo", "mpe2", "tensorboard", "wandb", "mlflow", "ray"}


def test_actor_workers_start_light(loaded):
    heavy = {"pydantic", "redis", "yaml", "typer", "safetensors.torch", "prometheus_client"}
    assert PROCESSES[0] == "marless.services.actor_pool.worker" and not loaded[PROCESSES[0]] & heavy


def test_actor_workers_stay_light_in_an_environment_of_a_plugin():
    program = """
import sys
import marless.services.actor_pool.worker
from marless.learning.envs.registry import make
make("smac/3m", {}, 1)
print(*sys.modules)
"""
    done = run(program)
    assert "marless_smac" in done.stdout.split(), done.stderr
    assert not set(done.stdout.split()) & {"pydantic", "redis", "yaml", "torch", "websocket", "s2clientprotocol"}


def test_algorithms_can_be_looked_up_without_torch():
    program = """
import sys
sys.modules["torch"] = None
from marless.learning.algos.registry import ALGORITHMS
print(*(ALGORITHMS.find(name).config_type.__name__ for name in sorted(ALGORITHMS.modules)))
"""
    done = run(program)
    names = "DDPG IDDPG Impact IPPO IQL MADDPG MAPPO MASAC MATD3 IndependentPQN PQNVDN QMIX SAC TD3 VDN"
    assert done.stdout.split() == [f"{name}Config" for name in names.split()]


def test_the_learner_worker_is_where_torch_is():
    done = run("import sys; sys.modules['torch'] = None; import marless.services.learner_pool.worker")
    assert done.returncode and "import of torch halted" in done.stderr
