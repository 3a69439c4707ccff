"""No data becomes code: no pickle, no marshal, no eval, no shell. Our source is checked, and all processes of a run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
AUDIT = Path(__file__).parent / "audit"
BANS = "S102,S301,S302,S307,S506,S602,S604,S605,TID251"
PROCESSES = (
    "train",
    "marless.services.coordinator",
    "marless.services.actor_pool",
    "marless.services.learner_pool",
    "marless.services.param_store",
    "marless.services.actor_pool.worker",
    "marless.services.learner_pool.worker",
)
ALGORITHMS = ("ippo", "mappo", "impact", "iql", "vdn", "qmix", "iddpg", "maddpg", "pqn", "pqn_vdn")


def complaints(source: str) -> set[str]:
    """What `make check` says of these lines if they stand in the library, as rule names."""
    command = (
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--stdin-filename",
        "marless/planted.py",
        "--output-format",
        "concise",
    )
    done = subprocess.run([*command, "-"], input=source, capture_output=True, text=True, cwd=ROOT, check=False)
    return set(re.findall(r"planted\.py:\d+:\d+: (\w+)", done.stdout)) & set(BANS.split(","))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import _pickle as p",
        "from cloudpickle import loads",
        "import dill",
        "import shelve",
        "import marshal",
        "from joblib import load",
        "import multiprocessing",
        "from concurrent.futures import ProcessPoolExecutor",
        "import torch\ntorch.load('f')",
        "from torch import load",
        "import torch\ntorch.save({}, 'f')",
        "import numpy as np\nnp.load('f', allow_pickle=True)",
        "import numpy as np\nnp.lib.format.read_array(f)",
        "from numpy import save",
        "import yaml\nyaml.load('x', yaml.SafeLoader)",
        "import yaml\nyaml.unsafe_load('x')",
        "from yaml import FullLoader",
        "eval('1')",
        "exec('x = 1')",
        "import builtins\nbuiltins.eval('1')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import os\nos.system('ls')",
        "import asyncio\nasyncio.create_subprocess_shell('ls')",
    ],
)
def test_the_ban_sees(source):
    assert complaints(f"{source}\n")


def test_plain_code_is_not_banned():
    assert not complaints("import json\n\nimport yaml\n\njson.loads(yaml.safe_load('{}'))\n")


def test_nothing_of_ours_is_exempt():
    for path in (path for top in ("marless", "services", "plugins") for path in (ROOT / top).rglob("*.py")):
        for line in path.read_text().splitlines():
            assert not re.search(rf"noqa(?!:)|noqa:.*({BANS.replace(',', '|')})|ruff: noqa", line), f"{path}: {line}"


def audited(place: Path, *commands: str, environment: dict[str, str] | None = None) -> tuple[list[str], list[dict]]:
    """Run commands with the hook in every process below them; returns the processes and what the hook has seen."""
    noted = place / "audit.jsonl"
    own = {"PYTHONPATH": f"{AUDIT}:{ROOT}", "AUDIT_FILE": str(noted), "TMPDIR": str(place), "MARLESS_SPOOL": str(place)}
    subprocess.run(commands, cwd=place, env=os.environ | own, check=True, capture_output=True, timeout=110)
    lines = [json.loads(line) for line in noted.read_text().splitlines()]
    return [" ".join(line["process"]) for line in lines if "process" in line], [
        line for line in lines if "event" in line
    ]


def train(place: Path, algorithm: str) -> tuple[str, ...]:
    """A command that trains a small team, with a checkpoint and an evaluation on the way."""
    document = {
        "name": "small",
        "env": {"name": "mpe/simple_spread", "options": {"agents": 2, "max_cycles": 5}},
        "algorithm": {"name": algorithm},
        "model": {"hidden": [8]},
        "actors": {"count": 2, "envs": 8, "steps": 5},
        "evaluation": {"every": 2, "episodes": 4, "random_episodes": 20},
        "checkpoint": {"every": 2, "keep": 2},
        "stop": {"rounds": 4},
    }
    (place / "job.yaml").write_text(yaml.safe_dump(document))
    return sys.executable, "-c", "from marless.app.cli import command; command()", "train", "job.yaml", "--job", "small"


@pytest.mark.parametrize(
    "algorithm", [ALGORITHMS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS[1:])]
)
def test_a_full_run_makes_no_code_of_data(tmp_path, algorithm):
    processes, events = audited(tmp_path, *train(tmp_path, algorithm))
    for name in PROCESSES:
        assert any(re.search(rf"{name}(\s|$)", process) for process in processes), f"the hook was not in {name}"
    assert events == []


@pytest.mark.parametrize(
    ("attack", "event"),
    [
        ("import pickle\npickle.loads(pickle.dumps(print))", "pickle.find_class"),
        ("import pickle\npickle._loads(pickle.dumps(print))", "pickle.find_class"),
        (
            "import numpy as np\nnp.save('f.npy', np.array([print]))\nnp.load('f.npy', allow_pickle=True)",
            "pickle.find_class",
        ),
        ("import marshal\nmarshal.loads(marshal.dumps(compile('1', '', 'eval')))", "marshal.loads"),
        ("import os\nos.system('true')", "os.system"),
        ("import json", None),
    ],
)
def test_the_hook_sees(tmp_path, attack, event):
    processes, events = audited(tmp_path, sys.executable, "-c", attack)
    assert len(processes) == 1
    assert {line["event"] for line in events} == ({event} if event else set())
