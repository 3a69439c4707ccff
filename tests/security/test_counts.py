"""Every count of `marless.core.limits` in a job and in a request: the most is taken, one more is refused by name."""

from types import SimpleNamespace

import pytest

from marless.core.errors import NotFoundError, SpecError
from marless.core.limits import (
    MAX_ACTIONS,
    MAX_ACTORS,
    MAX_AGENTS,
    MAX_COUNT,
    MAX_ENVS,
    MAX_EPISODES,
    MAX_KEPT,
    MAX_NAME,
    MAX_OBSERVATION,
    MAX_PARTS,
    MAX_POLICIES,
    MAX_STATE,
    MAX_STEPS,
    MAX_TIMEOUT_S,
)
from marless.fleet.machines import MachineAccounts
from marless.jobs.spec import parse
from marless.learning.envs.base import AgentClass, Box, Discrete, EnvSpaces, check_spaces
from marless.learning.envs.games import TargetOptions
from marless.rpc import chunks
from marless.rpc.v1 import actor_pool_pb2, common_pb2, learner_pool_pb2, param_store_pb2
from marless.services.actor_pool.rollouts import Rollouts
from marless.services.learner_pool.gradients import MAX_PEERS, Gradients
from marless.services.learner_pool.tasks import MAX_ROLLOUTS, LearnTasks
from marless.services.learner_pool.updates import Updates
from marless.services.param_store.servicer import ParamStoreServicer

JOB = {"env": {"name": "mpe/simple_spread"}, "algorithm": {"name": "ippo"}, "stop": {"rounds": 1}}


@pytest.mark.parametrize(
    ("section", "field", "most"),
    [
        ("actors", "count", MAX_ACTORS),
        ("actors", "envs", MAX_ENVS),
        ("actors", "steps", MAX_STEPS),
        ("actors", "timeout_s", MAX_TIMEOUT_S),
        ("learner", "timeout_s", MAX_TIMEOUT_S),
        ("evaluation", "episodes", MAX_EPISODES),
        ("evaluation", "random_episodes", MAX_EPISODES),
    ],
)
def test_a_job_counts_no_further(section, field, most):
    parse(JOB | {section: {field: most}}, "job")
    with pytest.raises(SpecError, match=rf"job: {section}\.{field}: got .*; allowed: at most {most}$"):
        parse(JOB | {section: {field: most + 1}}, "job")


def test_a_name_of_an_environment_is_no_longer():
    parse(JOB | {"env": {"name": "x" * MAX_NAME}}, "job")
    with pytest.raises(SpecError, match=rf"job: env\.name: .*at most {MAX_NAME} characters"):
        parse(JOB | {"env": {"name": "x" * (MAX_NAME + 1)}}, "job")


def test_a_game_has_no_more_agents():
    TargetOptions(targets=[0.0] * MAX_AGENTS)
    with pytest.raises(SpecError, match=f"targets: {MAX_AGENTS + 1} agents; at most {MAX_AGENTS}"):
        TargetOptions(targets=[0.0] * (MAX_AGENTS + 1))


def agent_class(**changes: object) -> AgentClass:
    return AgentClass(**{"name": "a", "agents": ("a",), "obs_size": 4, "action": Discrete(3)} | changes)


@pytest.mark.parametrize(
    ("kind", "most", "field"),
    [
        ("numbers that each of class a observes", MAX_OBSERVATION, lambda n: {"obs_size": n}),
        ("actions of class a", MAX_ACTIONS, lambda n: {"action": Discrete(n)}),
        ("actions of class a", MAX_ACTIONS, lambda n: {"action": Box((0.0,) * n, (1.0,) * n)}),
        ("agents", MAX_AGENTS, lambda n: {"agents": tuple(f"a{k}" for k in range(n))}),
    ],
)
def test_the_spaces_of_an_environment_are_no_larger(kind, most, field):
    check_spaces(EnvSpaces((agent_class(**field(most)),), 0, None))
    with pytest.raises(SpecError, match=f"has {most + 1:,} {kind}; 1 to {most:,} are possible"):
        check_spaces(EnvSpaces((agent_class(**field(most + 1)),), 0, None))


def test_the_state_of_an_environment_is_no_larger():
    check_spaces(EnvSpaces((agent_class(),), MAX_STATE, None))
    with pytest.raises(SpecError, match=f"numbers of the global state; 0 to {MAX_STATE:,} are possible"):
        check_spaces(EnvSpaces((agent_class(),), MAX_STATE + 1, None))


def test_a_name_of_an_agent_is_no_longer():
    check_spaces(EnvSpaces((agent_class(agents=("a" * MAX_NAME,)),), 0, None))
    with pytest.raises(SpecError, match=f"names of agents: they have 1 to {MAX_NAME} characters"):
        check_spaces(EnvSpaces((agent_class(agents=("a" * (MAX_NAME + 1),)),), 0, None))


class StartedError(Exception):
    """A request has been taken."""


class Fleet:
    async def ensure(self, _: int) -> None:
        raise StartedError


def rollout(**changes: object) -> actor_pool_pb2.RolloutRequest:
    settings = {"env": "x", "envs": 1, "steps": 1, "timeout_s": 1.0}
    request = {"job": "job", "mode": actor_pool_pb2.ROLLOUT_MODE_TRAIN, "actors": 1}
    for name, value in changes.items():
        (settings if name in actor_pool_pb2.RolloutSettings.DESCRIPTOR.fields_by_name else request)[name] = value
    return actor_pool_pb2.RolloutRequest(settings=actor_pool_pb2.RolloutSettings(**settings), **request)


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("actors", MAX_ACTORS),
        ("round", MAX_COUNT),
        ("seed", MAX_COUNT),
        ("epoch", MAX_COUNT),
        ("envs", MAX_ENVS),
        ("steps", MAX_STEPS),
        ("timeout_s", MAX_TIMEOUT_S),
        ("episodes", MAX_EPISODES),
    ],
)
async def test_a_rollout_counts_no_further(field, most):
    rollouts = Rollouts(
        SimpleNamespace(machines=MachineAccounts(), tenancy=SimpleNamespace(busy_for_others=lambda _: 0)), Fleet()
    )
    with pytest.raises(StartedError):
        await rollouts.run(rollout(**{field: most}))
    for wrong in (most + 1, -1):
        with pytest.raises(SpecError, match=f"a rollout.*{field}"):
            await rollouts.run(rollout(**{field: wrong}))


def groups(policies: int, agents: int = 1) -> list[common_pb2.Group]:
    return [common_pb2.Group(policy=f"p{k}", agents=[f"a{k}-{n}" for n in range(agents)]) for k in range(policies)]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"groups": groups(MAX_AGENTS + 1)}, "the number of policies of groups is 1,025"),
        ({"groups": groups(1, MAX_AGENTS + 1)}, "the number of agents of groups is 1,025"),
        ({"env": "x" * (MAX_NAME + 1)}, "a rollout's env .* has 201 characters"),
        ({"env_options_json": "x" * (2**20 + 1)}, "env_options_json is longer than 1,048,576 characters"),
    ],
)
async def test_a_rollout_holds_no_more(fields, why):
    with pytest.raises(SpecError, match=why):
        await Rollouts(SimpleNamespace(machines=MachineAccounts()), Fleet()).run(rollout(**fields))


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("actors", MAX_ACTORS),
        ("keep", MAX_KEPT),
        *((name, MAX_COUNT) for name in ("round", "epoch", "env_steps", "oldest")),
    ],
)
async def test_an_update_counts_no_further(field, most):
    updates = Updates(None, None, LearnTasks(None, None, None, None, None), None)
    with pytest.raises(NotFoundError, match="'job' is not open"):
        await updates.update(learner_pool_pb2.UpdateRequest(**{"job": "job", "actors": 1, field: most}))
    for wrong in (most + 1, -1):
        with pytest.raises(SpecError, match=f"{field} is {wrong:,}; . to {most:,} are possible"):
            await updates.update(learner_pool_pb2.UpdateRequest(**{"job": "job", "actors": 1, field: wrong}))


def gradient(**fields) -> learner_pool_pb2.GradientRequest:
    return learner_pool_pb2.GradientRequest(**{"job": "job", "rollouts": [0], **fields})


@pytest.mark.parametrize(("field", "most"), [(name, MAX_COUNT) for name in ("learner", "epoch", "env_steps", "oldest")])
async def test_a_gradient_counts_no_further(field, most):
    gradients = Gradients(None, LearnTasks(None, None, None, None, None), None)
    with pytest.raises(NotFoundError, match="'job' is not open"):
        await gradients.gradient(gradient(**{field: most}))
    for wrong in (most + 1, -1):
        with pytest.raises(SpecError, match=f"{field} is {wrong:,}; 0 to {most:,} are possible"):
            await gradients.gradient(gradient(**{field: wrong}))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"job": "x/y"}, "job"),
        ({"rollouts": []}, "the number of rollouts is 0"),
        ({"rollouts": range(MAX_ROLLOUTS + 1)}, "the number of rollouts is 4,097; 1 to 4,096"),
        ({"rollouts": [-1]}, "the number of a rollout is -1"),
        ({"rollouts": [2, 1, 2]}, "rollouts: one of them is given twice"),
        ({"groups": groups(MAX_AGENTS + 1)}, "the number of policies of groups is 1,025"),
        ({"groups": groups(1)}, "the version of policy p0 is 0; 1 to"),
        ({"versions": [common_pb2.PolicyVersion(policy="p")]}, "the version of policy 'p' is 0"),
        ({"peers": [learner_pool_pb2.VersionSet()] * (MAX_PEERS + 1)}, "the number of peers is 65"),
        (
            {"peers": [learner_pool_pb2.VersionSet(versions=[common_pb2.PolicyVersion(policy="p")] * 4097)]},
            "the number of versions is 4,097",
        ),
    ],
)
async def test_a_gradient_names_no_more(fields, why):
    with pytest.raises(SpecError, match=why):
        await Gradients(None, LearnTasks(None, None, None, None, None), None).gradient(gradient(**fields))


async def test_an_update_names_no_more_rollouts():
    updates = Updates(None, None, LearnTasks(None, None, None, None, None), None)
    for rollouts, why in ((range(MAX_ROLLOUTS + 1), "rollouts is 4,097; 1 to 4,096"), ([2, 1, 2], "given twice")):
        with pytest.raises(SpecError, match=why):
            await updates.update(learner_pool_pb2.UpdateRequest(job="job", rollouts=rollouts))


async def test_an_update_names_no_more_versions():
    versions = [common_pb2.PolicyVersion(policy=f"p{k}", version=1) for k in range(MAX_POLICIES + 1)]
    with pytest.raises(SpecError, match="the number of versions is 4,097"):
        await Updates(None, None, LearnTasks(None, None, None, None, None), None).update(
            learner_pool_pb2.UpdateRequest(job="job", actors=1, versions=versions)
        )


def publish(policies: int, parts: int) -> param_store_pb2.PublishHeader:
    blobs = [param_store_pb2.BlobInfo(part=f"part-{k}") for k in range(parts)]
    every = [param_store_pb2.PolicyPublish(policy=f"p{k}", blobs=blobs) for k in range(policies)]
    return param_store_pb2.PublishHeader(job="job", policies=every)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (publish(MAX_POLICIES + 1, 0), "the number of policies is 4,097"),
        (publish(1, MAX_PARTS + 1), "the number of parts is 17"),
    ],
)
async def test_a_publish_holds_no_more(header, why):
    async def frames():
        for frame in chunks.frames(header, []):
            yield frame

    with pytest.raises(SpecError, match=why):
        await ParamStoreServicer(None, None).Publish(frames(), None)


@pytest.mark.parametrize(("policies", "parts"), [(MAX_POLICIES + 1, 1), (1, MAX_PARTS + 1)])
async def test_a_read_asks_for_no_more(policies, parts):
    asked = [common_pb2.PolicyVersion(policy=f"p{k}") for k in range(policies)]
    request = param_store_pb2.GetRequest(job="job", policies=asked, parts=[f"part-{k}" for k in range(parts)])
    with pytest.raises(SpecError, match=r"the number of .* is (4,097|17)"):
        await ParamStoreServicer(None, None).Get(request, None)
