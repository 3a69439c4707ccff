"""What is not run as it is printed, and why. Whatever is not in here is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

INSTALLS = "pip install "
NOT_RUN = {
    "make ": "they take minutes, or are what runs this test",
    "marless compare ": "comparisons over seeds take hours; tests/e2e/test_compare.py runs a small one",
    "PYTHONPATH=bench/own_environments marless compare ": "so do those on an environment of a benchmark",
    "marless frontier ": "grids over seeds take hours; tests/e2e/test_frontier.py runs a small one",
    "python -m bench.": "benchmarks take minutes to hours; tests/unit/bench runs their parts",
    "python -m tests.faults ": "it takes minutes; tests/faults runs its parts",
    "pytest tests/faults": "they are tests already",
    "python -m marless.services.actor_pool.worker ": "tests/slurm starts workers that dial another host",
    "python -m marless.services.learner_pool.worker ": "tests/hosts starts workers that dial another host",
    "python -m marless.services.param_store --upstream ": "tests/integration starts caches",
    "python -m marless.services.relay ": "tests/integration starts relays",
    "marless evaluate s3://": "it reads a bucket; tests/cloud runs such commands",
    "marless download s3://": "it reads a bucket; tests/cloud runs such commands",
    INSTALLS: "it would change the environment that runs the tests",
}
"""Beginnings of commands that are only checked: the make target is there, the program can read the options."""

SMALL: Mapping[str, dict[str, object]] = {
    "actors": {"count": 2, "envs": 4, "steps": 25},
    "model": {"hidden": [8]},
    "evaluation": {"every": 1, "episodes": 8, "random_episodes": 8},
    "stop": {"rounds": 2},
}
"""Sections of the examples as tests run them; what a command sets holds all the same."""


@dataclass(frozen=True)
class Treatment:
    """How the commands of a page are run."""

    before: tuple[str, ...] = ()
    """Commands that make what the page takes for granted."""
    named: Mapping[str, str] = field(default_factory=dict)
    """What stands for something of the reader's → what it is here."""
    shortened: Mapping[str, str] = field(default_factory=dict)
    """Parts of commands that take long → what tests run in their place."""
    learned: tuple[str, ...] = ()
    """Beginnings of commands whose output depends on what was learned: its first line is compared, and that it ends."""
    given: str = ""
    """Python that defines what the page's programs take for granted."""
    alone: bool = False
    """Whether they are typed in an empty directory with an empty home, where no stack is up."""
    installs: bool = False
    """Whether they are typed in a virtual environment of their own, in which they install packages."""
    slow: bool = False
    """Whether `make test-slow` runs them, not `make test`."""
    needs: str = ""
    """What few machines have: "containers", "slurm" or "hosts". `make test-…` of that name runs them."""
    parts: Mapping[str, Treatment] = field(default_factory=dict)
    """Headings → how the commands below are run instead: each heading in a directory of its own."""


_SPREAD = "marless submit examples/spread.yaml --job spread --if-exists use --wait"
# What other pages have left, where a transcript would show it.
_EMPTY = ("marless list -o name | xargs -r marless delete", "rm -rf here")
_FEW = "--set evaluation.episodes=8 --set evaluation.random_episodes=8"
_BY_ROUNDS = "--set stop.env_steps=null"
_RECORD = "marless train examples/spread6.yaml --set actors.count=16 --set actors.envs=8 --set algorithm.lr=0.002"

_PORTS = {f"{7070 + n}": f"$PORT_{n}" for n in range(4)}
_COMPOSED = (
    "printf 'COMPOSE_PROJECT_NAME=%s\nMARLESS_PORT=%s\nMARLESS_UID=%s\n' $PROJECT $PORT_0 "
    "$(id -u | sed 's/^0$/1000/') > deploy/.env",
)
_COMPOSE = {"docker compose": "$(docker compose version &> /dev/null && echo docker compose || echo docker-compose)"}
_DEPLOYING: Mapping[str, Treatment] = {
    "One machine": Treatment(needs="containers", before=_COMPOSED, named=_PORTS | _COMPOSE),
    "Workers in containers that pools start": Treatment(
        needs="containers",
        before=(*_COMPOSED, "echo MARLESS_NETWORK=$PROJECT-inside >> deploy/.env"),
        named=_PORTS | _COMPOSE | {"/var/run/docker.sock": "$MARLESS_DOCKER_SOCKET"},
    ),
    "Slurm": Treatment(
        needs="slurm",
        before=('sed -i "s/70[7]0/$PORT_0/; s/70[7]1/$PORT_1/; s/70[7]2/$PORT_2/" deploy/slurm/settings.sh',),
        named=_PORTS | {"HEAD": "localhost"},
    ),
    "Three hosts": Treatment(needs="hosts"),
}

_SUBMITTED = {"marless train": "marless submit --wait"}
"""Jobs run on the stack that is up, which takes a third of the CPU time. README.md, docs/index.md and docs/tutorial.md
train with services of their own."""
_ENVIRONMENTS = tuple(f"docs/environments/{kind}.md" for kind in ("gymnasium", "mujoco", "smac"))
_SMALL = f"--set stop.env_steps=200 --set actors.count=1 --set actors.envs=4 --set actors.steps=25 {_FEW}"
_CHANNEL = "--set 'env.options={grid: {nx: 8, ny: 10, nz: 8}, decisions: 9, spin_up: 0.1, apart: 0.1}'"
_OWN = Treatment(
    alone=True,
    installs=True,
    shortened={f"train {job}": f"train {job} --in-process {_SMALL}" for job in ("job.yaml", "mpe/simple_spread")},
)
"""A page that begins with `marless new`; most train without services, which takes half as long."""
_CHECKED = replace(_OWN, shortened={"train job.yaml": "check job.yaml"})
"""One whose test shows all that a training would."""

TREATMENTS: Mapping[str, Treatment] = {
    "README.md": Treatment(shortened={"--job spread": "--job spread --if-exists replace"}),
    "docs/index.md": Treatment(alone=True, shortened={"mpe/simple_spread": f"mpe/simple_spread {_SMALL}"}),
    "docs/tutorial.md": Treatment(
        alone=True,
        shortened={"stop.env_steps=200_000": f"stop.env_steps=4_000 {_FEW}", "--episodes 500": "--episodes 8"},
    ),
    **{f"docs/extending/{kind}.md": _OWN for kind in ("algorithm", "command", "module", "net", "scaling")},
    **{f"docs/extending/{kind}.md": _CHECKED for kind in ("schedule", "similarity", "sink")},
    "docs/extending/launcher.md": replace(_OWN, shortened={"mpe/simple_spread": f"mpe/simple_spread {_SMALL}"}),
    "docs/extending/environment.md": replace(
        _OWN,
        before=("echo 'from mpe2.simple_spread_v3 import parallel_env' > my_game.py",),  # the reader's own environment
        shortened={"job.yaml": f"job.yaml {_SMALL}", "pettingzoo/my_game": f"pettingzoo/my_game --in-process {_SMALL}"},
    ),
    **{
        page: Treatment(shortened=_SUBMITTED)
        for page in ("docs/algorithms/ppo.md", "docs/schedules.md", *_ENVIRONMENTS)
    },
    "docs/environments/atari.md": Treatment(
        shortened=_SUBMITTED | {"pong.yaml": "pong.yaml --set env.options.max_frames=400"}  # games take minutes
    ),
    "docs/asynchronous.md": Treatment(
        shortened={
            f"train examples/spread-{algorithm}.yaml": f"submit --wait examples/spread-{algorithm}.yaml"
            for algorithm in ("stellaris", "vdn")
        }
        | {"--replay overlapping": "--replay overlapping --in-process"},
    ),
    "docs/environments/wall_model.md": Treatment(
        shortened=_SUBMITTED
        | {
            "wall_model.yaml": f"wall_model.yaml {_CHANNEL}",
            "wall_model_sac.yaml": f"wall_model_sac.yaml {_CHANNEL}",
            "baselines ": "baselines --episodes 2 ",
        },
    ),
    "docs/policies.md": Treatment(before=(_SPREAD,), shortened={"--episodes 1000": "--episodes 10"}),
    "docs/client.md": Treatment(before=_EMPTY, shortened={"stop.rounds=40": "stop.rounds=2"}, slow=True),
    "docs/tour.md": Treatment(
        before=(*_EMPTY, "marless down"),
        shortened={f"stop.env_steps={n}": "stop.rounds=null --set stop.env_steps=400" for n in ("1e5", "2e5", "4e5")},
        slow=True,
    ),
    "docs/cost.md": Treatment(
        before=(
            f"marless train examples/spread6.yaml --job spread6-demo {_BY_ROUNDS} --set stop.rounds=60 "
            "--set actors.count=8 --set actors.envs=20 --set evaluation.every=0",
            "cp runs/spread6-demo/spec.yaml spread6-demo.yaml",
            "mkdir empty",
        ),
        named={"JOB.yaml": "spread6-demo.yaml", "JOB": "spread6-demo", "[--from RUN]": "--from spread6-demo"},
        shortened={"stop.rounds=60": "stop.rounds=4"},
        given=(
            "from pathlib import Path; from marless.jobs import spec; from marless.storage import round_file; "
            "folder = Path('runs/spread6-demo'); "
            "records, spec = list(round_file.read(folder / 'rounds.jsonl')), spec.load(folder / 'spec.yaml')"
        ),
        slow=True,
    ),
    "docs/deploying.md": Treatment(parts=_DEPLOYING),
    "docs/explain.md": Treatment(
        before=(
            f"marless train examples/spread.yaml --job four {_BY_ROUNDS} --set stop.rounds=24 "
            "--set env.options.agents=4 --set actors.count=12 --set actors.envs=8 "
            "--set scaling=marless --set scaling.window=3 --set sharing=marless --set sharing.window=3",
        ),
        learned=("marless explain runs/four",),
        slow=True,
    ),
    "docs/plots.md": Treatment(
        before=("marless compare examples/spread.yaml --sweep algorithm.name=ippo,vdn --seeds 2",),
        slow=True,
    ),
    "docs/replay.md": Treatment(
        before=(
            f"marless train examples/spread6.yaml --job recorded {_BY_ROUNDS} --set stop.rounds=2 --set scaling=nitro",
        ),
        named={"RUN": "recorded"},
        shortened={"stop.rounds=40": "stop.rounds=20"},
        slow=True,
    ),
    "docs/scaling.md": Treatment(
        before=(
            f"{_RECORD} --job rec1 --set stop.rounds=60",
            f"{_RECORD} --job rec2 --set stop.rounds=60 --set seed=1",
            "cp runs/rec1/spec.yaml spread6.yaml",
        ),
        shortened={"stop.rounds=60": "stop.rounds=6"},
        slow=True,
    ),
}
