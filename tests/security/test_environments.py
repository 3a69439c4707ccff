"""What names an environment runs nothing but environments: from a job, a file, a run folder or a request."""

from __future__ import annotations

import importlib
import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from marless import load_policy
from marless.core import process_environment
from marless.core.errors import SpecError
from marless.learning.envs import registry
from marless.learning.envs.base import Discrete
from marless.learning.nets.acting import ActingState
from marless.learning.policies.evaluation import evaluate
from marless.learning.policies.policy import Origin, Policy
from marless.learning.policies.policy_file import write_policy
from marless.rpc.client import Peer
from marless.rpc.security import Security
from marless.rpc.server import serving
from marless.rpc.v1 import actor_pool_pb2
from marless.rpc.v1 import coordinator_pb2 as pb
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from marless.services.actor_pool import __main__ as actor_pool
from marless.services.actor_pool.__main__ import parse as actor_config
from marless.services.coordinator import __main__ as coordinator
from marless.services.coordinator.config import parse as coordinator_config
from tests.integration.running import spec
from tests.unit.app.cli.conftest import marless
from tests.unit.cost.estimates.runs import run_of, spec_of
from tests.unit.learning.policies.saved import save, state

__all__ = ["marless"]  # a fixture
REFUSED = "is not allowed"
SETTING = "MARLESS_ENV_MODULES"
NAMES = (
    "pettingzoo/os:system",
    "pettingzoo/posix:system",
    "pettingzoo/subprocess:getoutput",
    "pettingzoo/builtins:exec",
    "pettingzoo/marless.learning.envs.registry:importlib.os.system",
    "pettingzoo/pettingzoo:os",
    "pettingzoo/pettingzoo.utils.conversions:parallel_wrapper_fn",
    "pettingzoo/pettingzoo.classic.tictactoe_v3:raw_env",
    "pettingzoo/pettingzoo.classic.tictactoe_v3:env.__globals__",
    "pettingzoo/pettingzoo.classic.all_modules",
    "pettingzoo/pettingzoo.test.api_test:env",
    "pettingzoo/mpe2._mpe_utils.core:env",
    "pettingzoo/mpe2.simple_spread_v3\n:env",
    "pettingzoo/../../evil",
    "pettingzoo/.evil",
    "pettingzoo/mpe2_evil.simple_v3",
    "pettingzoo/",
    "pettingzoo/:system",
    "gymnasium/os:system",
    "gymnasium/:system",
    "gymnasium/gymnasium.wrappers:RecordVideo",
    "gymnasium/gymnasium.envs.classic_control.cartpole:CartPole-v1",
    "gymnasium/shimmy.openai_gym_compatibility:GymV21Environment-v0",
)


@pytest.fixture
def marker(tmp_path, monkeypatch) -> Path:
    """A file that exists once an attack ran something: `evil`, a module on the path, makes it when it is imported."""
    path = tmp_path / "ran"
    place = tmp_path / "path"
    place.mkdir()
    (place / "evil.py").write_text(f"open({str(path)!r}, 'w').close()\n", "utf-8")
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("PYTHONPATH", str(place))
    monkeypatch.delenv(SETTING, raising=False)
    return path


def attacks(marker: Path) -> list[dict[str, object]]:
    """Sections `env` that run something where any module may be imported and any callable called."""
    return [
        {"name": "pettingzoo/os:system", "options": {"command": f"touch {marker}"}},
        {"name": "pettingzoo/evil", "options": {}},
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_no_environment_is_refused_before_anything_is_imported(name, monkeypatch):
    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setattr("importlib.import_module", lambda *given: pytest.fail(f"imported {given}"))
    with pytest.raises(SpecError):
        registry.make(name, {}, 1)


def test_the_refusal_names_the_setting_and_who_may_set_it_and_no_name_of_the_users(marker):
    with pytest.raises(SpecError, match=REFUSED) as caught:
        registry.make("pettingzoo/evil", {}, 1)
    sentence = str(caught.value)
    assert f"{SETTING}=cogrid" in sentence
    assert "whoever runs" in sentence
    assert f"{SETTING}=evil" not in sentence
    assert "install" not in sentence


async def test_a_job_does_not_run_anything_in_the_coordinator(marker, tmp_path):
    peers = (f"--{name}=unix:{tmp_path}/no.sock" for name in ("actor-pool", "learner-pool", "param-store"))
    given = ["--listen", f"unix:{tmp_path}/c.sock", "--runs", str(tmp_path / "runs"), *peers]
    config = coordinator_config(given)
    async with serving(config.server, lambda at: coordinator.build(config, at)) as address:
        peer = Peer(address, Security())
        stub = CoordinatorServiceStub(peer.channel)
        for env in attacks(marker):
            request = pb.SubmitJobRequest(job="job", spec_json=spec(env=env).to_json())
            with pytest.raises(SpecError, match=f"env: environment .* {REFUSED}.*{SETTING}"):
                await peer.call(stub.SubmitJob, request)
        await peer.close()
    assert not marker.exists()


@asynccontextmanager
async def an_actor_pool(tmp_path, *options):
    """A real one, with a real worker; yields what asks it for a rollout in an environment."""
    given = ["--listen", f"unix:{tmp_path}/a.sock", "--param-store", f"unix:{tmp_path}/no.sock"]
    config = actor_config([*given, "--actor-workers", "1", *options])
    async with serving(config.server, lambda at: actor_pool.build(config, at)) as address:
        peer = Peer(address, Security())

        async def rollout(env: str, options: object) -> actor_pool_pb2.RolloutResponse:
            settings = actor_pool_pb2.RolloutSettings(
                env=env, env_options_json=json.dumps(options), envs=1, steps=1, timeout_s=30
            )
            request = actor_pool_pb2.RolloutRequest(
                job="job", actors=1, mode=actor_pool_pb2.ROLLOUT_MODE_RANDOM, episodes=1, settings=settings
            )
            return await peer.call(ActorPoolServiceStub(peer.channel).Rollout, request, timeout_s=60)

        yield rollout
        await peer.close()


async def test_a_rollout_request_does_not_run_anything_in_a_worker(marker, tmp_path):
    async with an_actor_pool(tmp_path) as rollout:
        for env in attacks(marker):
            with pytest.raises(SpecError, match=REFUSED):
                await rollout(env["name"], env["options"])
    assert not marker.exists()


async def test_what_the_operator_allows_the_pool_is_allowed_its_workers(marker, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    plain = "pettingzoo/tests.security.two_steps:TwoSteps"
    async with an_actor_pool(tmp_path, "--env-modules", "tests.security") as rollout:
        answer = await rollout(plain, {})
        assert answer.receipts[0].env_steps == 2
        with pytest.raises(SpecError, match=REFUSED):
            await rollout("pettingzoo/os:system", {"command": f"touch {marker}"})


def policy_file(path: Path, env: str, options: object) -> Path:
    """A single policy whose header says that it was trained in this environment."""
    held = state(12, Discrete(5), seed=0)
    policy = Policy(name="p", agents=("agent_0",), version=1, state=ActingState(held.acting, held.metadata))
    write_policy(path, policy, Origin(job="job", round=1, algorithm="ippo", env=env, env_options=options))
    return path


def test_a_policy_file_runs_nothing(marker, tmp_path, marless):
    for env in attacks(marker):
        path = policy_file(tmp_path / "p.safetensors", env["name"], env["options"])
        team = load_policy(path)
        assert team.act({"agent_0": [0.0] * 12}) != {}
        with pytest.raises(SpecError, match=REFUSED):
            evaluate(team, episodes=1, seed=0)
        for more in ((), ("--render", tmp_path / "film.gif")):
            code, _, said = marless("evaluate", path, "--episodes", 1, *more)
            assert code == 2
            assert REFUSED in said
    assert not marker.exists()


def test_a_checkpoint_runs_nothing(marker, tmp_path, marless):
    for number, env in enumerate(attacks(marker)):
        run = tmp_path / "runs" / f"job-{number}"
        save(run, {"agent": state(12, Discrete(5), seed=0)}, {"agent": ("agent_0",)})
        document = yaml.safe_load((run / "spec.yaml").read_text("utf-8"))
        (run / "spec.yaml").write_text(yaml.safe_dump(document | {"env": env}), "utf-8")
        team = load_policy(run)
        assert team.act({"agent_0": [0.0] * 12}) != {}
        code, _, said = marless("evaluate", run)
        assert code == 2
        assert REFUSED in said
    assert not marker.exists()


def test_no_verb_that_reads_a_job_or_a_run_runs_anything(marker, tmp_path, marless, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = spec_of(scaling={"name": "marless", "window": 3})
    records = run_of(given, 3)
    for number, env in enumerate(attacks(marker)):
        document = yaml.safe_load(given.to_yaml()) | {"env": env}
        job, run = tmp_path / "job.yaml", tmp_path / "runs" / f"run-{number}"
        run.mkdir(parents=True)
        for path in (job, run / "spec.yaml"):
            path.write_text(yaml.safe_dump(document), "utf-8")
        (run / "job.json").write_text(json.dumps({"job": run.name, "state": "SUCCEEDED", "random": None}), "utf-8")
        (run / "rounds.jsonl").write_text("".join(record.to_json() + "\n" for record in records), "utf-8")
        for verb in (
            ("submit", job, "--dry-run"),
            ("train", job, "--dry-run"),
            ("train", job),
            ("compare", job, "--presets", "marless", "--seeds", "1", "--dry-run"),
            ("scheduler", "train", job, "--out", tmp_path / "scheduler"),
            ("simulate", run, "--slots", "4"),
            ("simulate", run, "--scaling", "max"),
            ("explain", run),
            ("cost", run),
            ("train", "--resume", run.name),
        ):
            code, _, said = marless(*verb)
            assert REFUSED in said or code in (0, 1, 2), (verb, code, said)
            assert not marker.exists(), verb


@pytest.mark.parametrize("names", ["os.system", "cogrid,, x", "../x", "*", "cogrid;os", "a-b", "."])
def test_the_setting_is_a_list_of_modules_and_nothing_else(names, monkeypatch):
    monkeypatch.setenv(SETTING, names)
    if names == "os.system":  # a module's name by its form; it still allows neither `os` nor what is beside it
        with pytest.raises(SpecError, match=REFUSED):
            registry.make("pettingzoo/os:system", {"command": "true"}, 1)
        return
    with pytest.raises(SpecError, match=f"{SETTING}.* is not"):
        registry.make("pettingzoo/cogrid:make", {}, 1)


def test_of_an_allowed_module_only_what_it_defines_is_called(marker, tmp_path, monkeypatch):
    module = tmp_path / "path" / "shed.py"
    module.write_text(
        "import os\nfrom os import system, environ as env\nfrom subprocess import run as parallel_env_\n"
        "def _private(): os.abort()\nmake = 3\n",
        "utf-8",
    )
    importlib.invalidate_caches()  # the directory may have been listed within the same tick of the clock
    monkeypatch.setenv(SETTING, "shed, shelf.games")
    for attribute in ("os", "system", "parallel_env_", "_private", "make", "__loader__", "os.system", "env"):
        with pytest.raises(SpecError):
            registry.make(f"pettingzoo/shed:{attribute}", {"command": f"touch {marker}"}, 1)
    for other in ("shedding", "shelf", "shelf.games2"):
        with pytest.raises(SpecError, match=REFUSED):
            registry.make(f"pettingzoo/{other}", {}, 1)
    assert not marker.exists()


def test_no_option_of_pettingzoos_own_names_a_file(monkeypatch):
    with pytest.raises(SpecError, match="auto_rom_install_path"):
        registry.make("pettingzoo/pettingzoo.atari.pong_v3", {"auto_rom_install_path": "/"}, 1)


def test_the_setting_is_of_the_process_and_of_nothing_that_it_is_sent(monkeypatch):
    monkeypatch.setenv(SETTING, "")
    store = ["--param-store", "unix:/nowhere"]
    peers = [*store, "--actor-pool", "unix:/nowhere", "--learner-pool", "unix:/nowhere"]
    assert coordinator_config([*peers, "--env-modules", "cogrid, my_games"]).env_modules == ("cogrid", "my_games")
    assert actor_config([*store, "--env-modules", "cogrid"]).env_modules == ("cogrid",)
    assert process_environment.env_modules() == ()
    with pytest.raises(SystemExit):
        actor_config([*store, "--env-modules", "co grid"])
    process_environment.allow_env_modules(("cogrid",))
    assert process_environment.env_modules() == ("cogrid",)


def test_a_name_from_a_job_is_never_a_package_to_install():
    for name in ("butterfly", "no_such_zoo.game_v0", "pettingzoo.butterfly.no_such_game_v9", "mpe2.no_such_game_v1"):
        with pytest.raises(SpecError) as caught:
            registry.make(f"pettingzoo/{name}", {}, 1)
        installing = str(caught.value).partition("install")[2]
        assert name.partition(".")[0] not in installing or name.startswith(("pettingzoo.", "mpe2."))


def test_nor_is_one_that_an_allowed_module_needs(marker, tmp_path, monkeypatch):
    (tmp_path / "path" / "hut.py").write_text("import left_pad\n", "utf-8")
    importlib.invalidate_caches()
    monkeypatch.setenv(SETTING, "hut, no_such_zoo")
    for name, said in (
        ("hut", "hut needs 'left_pad', which is not installed$"),
        (
            "no_such_zoo.butterfly",
            "there is no module 'no_such_zoo' on this machine; install it, or add its folder to PYTHONPATH$",
        ),
    ):
        with pytest.raises(SpecError, match=said) as caught:
            registry.make(f"pettingzoo/{name}", {}, 1)
        assert "pip" not in str(caught.value)
