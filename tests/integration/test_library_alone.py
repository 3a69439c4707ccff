"""The library trains where nothing can be imported that only services need, and comes to the same weights there."""

import subprocess
import sys
from pathlib import Path

REFUSAL = """
import sys
from importlib.abc import MetaPathFinder

class Refusing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ImportError(f"{name} is not for the library")

sys.meta_path.insert(0, Refusing())
"""
SERVICES = ["pydantic", "pydantic_core", "grpc", "redis", "typer"]
EVERYTHING = [
    *SERVICES,
    "google",
    "grpc_health",
    "grpc_reflection",
    "msgspec",
    "packaging",
    "prometheus_client",
    "rich",
    "structlog",
    "yaml",
]
TRAINING = """
import hashlib
from marless.core.group import Group
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import LearnerContext, RoundInput
from marless.learning.algos.registry import algorithm
from marless.learning.data.rollout import rollout
from marless.learning.envs.registry import make
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec

def digest(learner, names):
    states = [learner.state(name) for name in names]
    arrays = [each for state in states for part in (state.acting, state.learning) for each in sorted(part.items())]
    return hashlib.sha256(b"".join(name.encode() + array.tobytes() for name, array in arrays)).hexdigest()

for algorithm_name, settings in JOBS.items():
    kind, env = algorithm(algorithm_name), make("mpe/simple_spread", {}, 4)
    config = kind.config_type(name=algorithm_name, **settings)
    (team,), (scope,) = env.spaces.classes, scopes(kind, config, env.spaces)
    learner = kind.learner(config, LearnerContext(ModelSpec(hidden=(16,)), env.spaces, scope, "cpu"))
    groups = tuple(Group(agent, (agent,)) for agent in team.agents)
    names = learner.names(groups)
    for name in names:
        learner.load(name, learner.initial(name, seed=3))
    before = digest(learner, names)
    for number in range(4):
        policies = ActingPolicies.from_states(team, [learner.state(agent) for agent in team.agents])
        sampled, _ = rollout(env, [policies], steps=25, seed=number, with_state=kind.needs_state(config))
        given = {"round": number, "env_steps": 100 * number, "seed": number}
        learner.update(RoundInput(**given, groups=groups, trajectories=[sampled]))
    print(algorithm_name, before, digest(learner, names))
"""
IMPORTS = """
import pkgutil
import marless.core, marless.learning
for package in (marless.core, marless.learning):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        try:
            __import__(module.name)
        except ImportError as error:
            print(module.name, error.name or error, sep=": ")
"""
ROOT = Path(__file__).parents[2]
REPLAYS = {"updates": 4, "batch": 16, "warmup": 50, "replay": {"capacity": 500}}
JOBS = {
    "ippo": {"epochs": 2, "lr": {"start": 1e-3, "end": 0, "env_steps": 400}},
    "qmix": REPLAYS,
    "maddpg": REPLAYS,
}


def printed(program: str) -> list[str]:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_it_trains_without_the_packages_of_services():
    training = f"JOBS = {JOBS!r}\n{TRAINING}"
    trained = printed(f"REFUSED = {EVERYTHING}\n{REFUSAL}{training}")
    assert [line.split()[0] for line in trained] == list(JOBS)
    assert all(before != after for _, before, after in map(str.split, trained))
    assert printed(f"import pydantic, grpc, redis, typer\n{training}") == trained


def test_every_module_of_it_is_imported_without_them():
    assert printed(f"REFUSED = {SERVICES}\n{REFUSAL}{IMPORTS}") == [
        "marless.core.validation: pydantic is not for the library"
    ]
