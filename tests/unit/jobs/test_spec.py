"""Job files: what is right survives every round trip; what is wrong is one sentence with file, field, value, remedy."""

import copy
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from marless.core import documents
from marless.core.errors import SpecError
from marless.core.limits import check_id
from marless.jobs import spec
from marless.jobs.job import advice, prepare
from marless.jobs.sharing.base import initial_groups
from marless.learning.algos.settings import value_at
from marless.learning.envs import registry
from marless.learning.envs.base import AgentClass, Box, Discrete, EnvSpaces
from tests.scripted_env import ScriptedEnv

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
BASE = {
    "env": {"name": "mpe/simple_spread", "options": {"agents": 3}},
    "algorithm": {"name": "ippo"},
    "stop": {"rounds": 2},
}
SECTIONS = (
    "actors, algorithm, bill, checkpoint, curvature, env, evaluation, functions, learner, model, name, scaling, "
    "schedule, seed, sharing, sinks, start, stop"
)


def document(text: str = "") -> dict:
    return copy.deepcopy(BASE) | (yaml.safe_load(text) or {})


def refusal(text: str) -> str:
    """Every sentence that parsing or preparing this job ends with."""
    with pytest.raises(SpecError) as caught:
        prepare(spec.parse(document(text), "job.yaml"))
    return str(caught.value)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_valid_and_survive_every_round_trip(path):
    job = spec.load(path)
    assert spec.from_json(job.to_json()) == job
    assert spec.parse(yaml.safe_load(job.to_yaml()), "again") == job


@pytest.mark.parametrize(
    ("name", "env", "job"),
    [
        ("spread-vdn", "mpe/simple_spread", "spread-vdn"),
        ("mpe/simple_spread", "mpe/simple_spread", "spread"),  # of several examples with it, the plainest
        ("mpe/simple_tag", "mpe/simple_tag", "simple-tag"),  # without an example
        (
            "pettingzoo/knights_archers_zombies_v10",
            "pettingzoo/knights_archers_zombies_v10",
            "knights-archers-zombies-v10",
        ),
    ],
)
def test_a_job_is_named_by_an_example_or_an_environment(name, env, job, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir(parents=True)  # a folder of that name is no job file
    found = spec.load(Path(name), ["seed=3"])
    assert (found.env.name, found.name, found.seed) == (env, job, 3)
    (tmp_path / name).rmdir()
    (tmp_path / name).write_text(yaml.safe_dump(BASE | {"name": "mine"}))
    assert spec.load(Path(name)).name == "mine"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("spred", "unknown job file or example 'spred'; did you mean 'spread'"),
        ("jobs/mine", "unknown job file or example 'jobs/mine'"),
        ("spread.yml", "spread.yml: cannot be read"),
        ("algorithm.lr=1e-3", "is no job; if it is a setting of one, name the job first: JOB --set algorithm.lr=1e-3"),
    ],
)
def test_a_name_that_is_none_is_said(name, why):
    with pytest.raises(SpecError, match=why):
        spec.load(Path(name))


def test_schedules_groups_and_aliases_survive_every_round_trip():
    job = spec.parse(
        document(
            "algorithm: {name: mappo, lr: {start: 0.001, end: 0, env_steps: 1000}, value_clip: 0.2}\n"
            "sharing: {groups: {left: [agent_0], right: [agent_1, agent_2]}}\n"
            "stop: {return: -21.5}"
        ),
        "job.yaml",
    )
    assert job.stop.greedy_return == -21.5
    assert value_at(job.algorithm.lr, 250) == pytest.approx(0.00075)
    assert spec.from_json(job.to_json()) == job
    assert spec.parse(yaml.safe_load(job.to_yaml()), "again") == job
    assert yaml.safe_load(job.to_yaml())["stop"]["return"] == -21.5


def test_an_algorithm_may_be_named_without_a_section():
    assert spec.parse(document("algorithm: mappo"), "job.yaml").algorithm.name == "mappo"


MISTAKES = {
    "actorz: {count: 2}": f"actorz: unknown field 'actorz'; did you mean 'actors'? known: {SECTIONS}",
    "actors: {cout: 2}": "actors.cout: unknown field 'cout'; did you mean 'count'? "
    "known: count, envs, episodes, steps, timeout_s",
    "actors: {count: many}": "actors.count: got 'many'; allowed: a whole number",
    "actors: {count: 2.5}": "actors.count: got 2.5; allowed: a whole number",
    "actors: {count: 0}": "actors.count: got 0; allowed: at least 1",
    "actors: {count: 5000}": "actors.count: got 5000; allowed: at most 4096",
    "actors: {timeout_s: 0}": "actors.timeout_s: got 0; allowed: more than 0.0",
    "actors: {timeout_s: .inf}": "actors.timeout_s: got inf; allowed: a finite number",
    "actors: 5": "actors: got 5; allowed: a section with fields",
    "actors:": "actors: is empty; give it a value or leave it out",
    "actors: {3: 4}": "actors.3: unknown field '3'; known: count, envs, episodes, steps, timeout_s",
    "env: {options: {}}": "env.name: is missing; it has no default",
    "env: {name: mpe/simple_spread, options: {agents: 2020-01-01}}": "env.options.agents: got datetime.date(2020, 1, 1)"
    "; allowed: text, a number, true, false, null, a list or a section of those",
    "algorithm: 3": "algorithm: needs a name, e.g. `algorithm: {name: ippo}`",
    "algorithm: {gamma: 0.9}": "algorithm: needs a name, e.g. `algorithm: {name: ippo}`",
    "algorithm: {name: [ippo]}": "algorithm: needs a name, e.g. `algorithm: {name: ippo}`",
    "algorithm: ipo": "algorithm: unknown algorithm 'ipo'; did you mean 'ippo'? known: ddpg, iddpg, impact, "
    "ippo, iql, maddpg, mappo, masac, matd3, pqn, pqn_vdn, qmix, sac, td3, vdn",
    "algorithm: {name: ippo, gamma: 3}": "algorithm.gamma: got 3; allowed: at most 1.0",
    "algorithm: {name: ippo, lr: fast}": "algorithm.lr: got 'fast'; allowed: a number or a section with fields",
    "algorithm: {name: ippo, lr: -1}": "algorithm.lr: got -1; allowed: at least 0.0 or a section with fields",
    "algorithm: {name: ippo, lr: {start: 1, end: 2}}": "algorithm.lr.env_steps: is missing; it has no default",
    "algorithm: {name: mappo, critic: both}": "algorithm.critic: got 'both'; allowed: 'central' or 'per_agent'",
    "model: {activation: relo}": "model.activation: got 'relo'; allowed: 'tanh' or 'relu'",
    "model: {hidden: 64}": "model.hidden: got 64; allowed: a list",
    "model: {hidden: []}": "model.hidden: got []; allowed: at least 1 of them",
    "model: {hidden: [64, 0]}": "model.hidden.1: got 0; allowed: more than 0",
    "name: Bad Name": "name: got 'Bad Name'; allowed: text that matches ^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
    "learner: {device: gpu}": r"learner.device: got 'gpu'; allowed: text that matches ^(auto|cpu|cuda(:\d{1,3})?)$",
    "scaling: {name: adapt}": "scaling.goal: is missing; it has no default",
    "scaling: {name: marless, window: 1}": "scaling.window: got 1; allowed: at least 2",
    "scaling: {name: marless, beta: 1.5}": "scaling.beta: got 1.5; allowed: at most 1.0",
    "scaling: {name: nitro, decay: 0}": "scaling.decay: got 0; allowed: more than 0.0",
    "scaling: {name: gns, rule: often}": "scaling.rule: got 'often'; allowed: 'threshold', 'proportional' or 'samples'",
    "scaling: {name: nitro, beta: 0.5}": "scaling.beta: unknown field 'beta'; known: "
    "deadline_s, decay, min_actors, name, placebo, variant, window, within_budget",
    "sharing: {groups: together}": "sharing.groups: got 'together'; "
    "allowed: 'independent' or 'shared' or a section with fields",
    "sharing: {groups: {a: agent_0}}": "sharing.groups.a: got 'agent_0'; allowed: a list",
    "sharing: {groups: {a: [1]}}": "sharing.groups.a.0: got 1; allowed: text",
    "stop: {}": "stop: set at least one of rounds, env_steps, return, wall_s, cost_usd: a job must be able to end",
    "stop: {rounds: soon}": "stop.rounds: got 'soon'; allowed: a whole number",
    "stop: {return: .nan}": "stop.return: got nan; allowed: a finite number",
    "checkpoint: {best: true}\nevaluation: {every: 0}": "checkpoint.best and evaluation.every: 0 exclude each other: "
    "only the last policies are evaluated, and would be the best; evaluate every so many rounds",
    "stop: {return: -20}\nevaluation: {every: 0}": "stop.return and evaluation.every: 0 exclude each other: a return "
    "is reached only where it is measured; evaluate every so many rounds",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_one_sentence_with_file_field_value_and_what_is_allowed(text):
    assert refusal(text) == f"job.yaml: {MISTAKES[text]}"


def test_a_misspelt_field_of_an_algorithm_gets_the_nearest_match():
    assert refusal("algorithm: {name: ippo, gama: 0.9}").startswith(
        "job.yaml: algorithm.gama: unknown field 'gama'; did you mean 'gamma'? known: adam_eps, "
    )


def test_each_of_several_mistakes_has_its_line():
    assert refusal("seed: -1\nactors: {envs: 0}\nstop: {rounds: 0}").splitlines() == [
        "job.yaml: seed: got -1; allowed: at least 0",
        "job.yaml: actors.envs: got 0; allowed: at least 1",
        "job.yaml: stop.rounds: got 0; allowed: at least 1",
    ]


def test_a_long_value_is_shown_in_part():
    assert len(refusal(f"seed: {'x' * 5000}")) < 200


ENVIRONMENT = {
    "scaling: {name: adept}": "job.yaml: scaling: unknown scaling policy 'adept'; did you mean 'adapt'? known: adapt, ",
    "scaling: {name: marless, min_actors: 3}": "scaling.min_actors is 3, more than actors.count, 2, which is the most",
    "scaling: {name: adapt, goal: -20, baseline: -20}": "scaling.goal is -20.0, not above scaling.baseline, -20.0; ",
    "scaling: {name: max, within_budget: true}": "scaling.within_budget: it needs a budget; set stop.c",
    "scaling: {name: max, deadline_s: 60}\nstop: {return: 1, rounds: null}": "scaling.deadline_s: how much must be ",
    "actors: {count: 9, envs: 1, steps: 2}\nscaling: {name: nitro, min_actors: 1}": "algorithm.minibatches is 4, but a "
    "policy gets only 2 samples a round",
    "actors: {count: 1, envs: 1, steps: 3}": "algorithm.minibatches is 4, but a policy gets only 3 samples a round",
    "env: {name: mpe/simple_spred}": "env: unknown environment 'mpe/simple_spred'; did you mean 'mpe/simple_spread'?",
    "env: {name: mpe/simple_spread, options: {agentz: 3}}": "env: environment mpe/simple_spread: "
    "unknown option 'agentz'; did you mean 'agents'? known: agents, ",
    "env: {name: mpe/simple_spread, options: {agents: 0}}": "env: environment mpe/simple_spread: "
    "agents must be a whole number of at least 1, got 0",
    "sharing: {groups: {a: [agent_0, agent_1, agent_7]}}": "sharing.groups: unknown agent 'agent_7'; did you mean ",
    "sharing: {groups: {a: [agent_0, agent_1], b: [agent_1, agent_2]}}": "sharing.groups: agent_1 is in 2 groups; ",
    "sharing: {groups: {a: [agent_0, agent_0, agent_1, agent_2]}}": "sharing.groups: agent_0 is in 2 groups; ",
    "sharing: {groups: {a: [agent_0, agent_1]}}": "sharing.groups: no group holds agent_2; every agent needs a policy",
    "sharing: {groups: {a: [agent_0, agent_1, agent_2], b: []}}": "sharing.groups: b holds no agent; leave it out",
    "sharing: {groups: {../a: [agent_0, agent_1, agent_2]}}": "sharing.groups: '../a' cannot be the name of a policy",
    "env: {name: mpe/simple_adversary}\nsharing: {groups: {a: [adversary_0, agent_0, agent_1]}}": "sharing.groups: "
    "a mixes agents with different spaces (classes adversary, agent); only agents of one class can share a policy",
}


@pytest.mark.parametrize("text", ENVIRONMENT)
def test_a_spec_that_does_not_fit_its_environment_says_which_section(text):
    assert refusal(text).startswith(ENVIRONMENT[text])


def test_an_agent_that_cannot_name_a_policy_needs_a_group():
    spaces = EnvSpaces((AgentClass("reds", ("red one",), 1, Discrete(2)),), 0, None)
    with pytest.raises(SpecError, match="'red one' cannot be the name of a policy"):
        initial_groups("independent", spaces)
    assert initial_groups({"red": ["red one"]}, spaces)[0].agents == ("red one",)


def test_shared_groups_hold_one_class_each():
    groups = prepare(spec.parse(document("env: {name: mpe/simple_adversary}\nsharing: {groups: shared}"), "j")).sharing
    assert [(group.policy, len(group.agents)) for group in groups.decide(()).groups] == [("adversary", 1), ("agent", 2)]


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "job.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


FILES = {
    b"": "a job is a mapping of sections (env, algorithm, stop, …), got nothing",
    b"- 1": "a job is a mapping of sections (env, algorithm, stop, …), got [1]",
    b"a: [": "not valid YAML: while parsing a flow node",
    b"seed: 1\nname: x\nseed: 7": "not valid YAML: 'seed' is given twice in one section",
    b"\xff\xfe": "not valid YAML: ",
    b"a: !!python/object/apply:os.getcwd []": "not valid YAML: could not determine a constructor for the tag",
}


@pytest.mark.parametrize("text", FILES)
def test_a_file_that_is_no_job_is_named(tmp_path, text):
    path = written(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        spec.load(path)
    assert str(caught.value).startswith(f"{path}: {FILES[text]}")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for path, why in ((tmp_path / "nowhere.yaml", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(SpecError) as caught:
            spec.load(path)
        assert str(caught.value) == f"{path}: cannot be read ({why}); give the path of a job file"


def test_overrides_reach_every_depth_and_are_yaml(tmp_path):
    path = written(tmp_path, yaml.safe_dump(BASE | {"algorithm": "ippo"}))
    overrides = ["stop.rounds=7", "env.options.agents=4", "algorithm.gamma=0.5", "actors.envs=3", "model.hidden=[8, 8]"]
    job = spec.load(path, overrides)
    assert (job.stop.rounds, job.env.options["agents"], job.algorithm.gamma) == (7, 4, 0.5)
    assert (job.actors.envs, job.model.hidden, job.algorithm.name) == (3, (8, 8), "ippo")
    assert spec.load(path, ["algorithm=mappo"]).algorithm.name == "mappo"


OVERRIDES = {
    "stop": "--set 'stop': write it as section.field=value",
    "=3": "--set '=3': write it as section.field=value",
    "stop.=3": "--set 'stop.=3': write it as section.field=value",
    ".rounds=3": "--set '.rounds=3': write it as section.field=value",
    "stop.rounds.x=3": "--set 'stop.rounds.x=3': rounds is 2, not a section with fields",
    "seed=[1": "--set 'seed=[1': '[1' is not a YAML value",
}


@pytest.mark.parametrize("override", OVERRIDES)
def test_an_override_that_cannot_be_applied_is_shown(tmp_path, override):
    with pytest.raises(SpecError) as caught:
        spec.load(written(tmp_path, yaml.safe_dump(BASE)), [override])
    assert str(caught.value) == OVERRIDES[override]


def test_an_override_is_checked_as_the_file_is(tmp_path):
    path = written(tmp_path, yaml.safe_dump(BASE))
    with pytest.raises(SpecError, match=r"job\.yaml: actors\.count: got 'x'; allowed: a whole number"):
        spec.load(path, ["actors.count=x"])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"env": 3}', "null"])
def test_json_that_is_no_spec_is_a_spec_error(text):
    with pytest.raises(SpecError, match=r"^spec: "):
        spec.from_json(text)
    with pytest.raises(SpecError, match=r"^spaces: "):
        spec.spaces_from_json(text)


def test_spaces_survive_their_round_trip():
    classes = (AgentClass("a", ("a", "b"), 3, Discrete(5)), AgentClass("c", ("c",), 2, Box((0.0, -1.0), (1.0, 1.0))))
    spaces = EnvSpaces(classes, 7, None, masks=True)
    assert spec.spaces_from_json(spec.spaces_to_json(spaces)) == spaces


@pytest.mark.parametrize("name", ["a", "spread-20261120-115225", "0" * 100])
def test_job_ids(name):
    check_id(name)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "..", "a" * 101, "a\n"])
def test_job_ids_that_cannot_name_a_folder_are_refused(name):
    with pytest.raises(SpecError, match="use lower-case letters, digits and dashes"):
        check_id(name)


RESOLVED = spec.parse(document("sharing: {groups: {a: [agent_0], b: [agent_1, agent_2]}}"), "job.yaml").model_dump(
    mode="json", by_alias=True
)
ODD = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=3)
    | st.dates()
    | st.lists(st.integers(-2, 2), max_size=2)
    | st.dictionaries(st.text(max_size=3) | st.integers(0, 3), st.integers(-1, 1), max_size=2)
)


def paths(section: dict, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    inner = [(name, value) for name, value in section.items() if isinstance(value, dict)]
    return [(*above, name) for name in section] + [
        path for name, value in inner for path in paths(value, (*above, name))
    ]


@settings(max_examples=400)
@example(path=("env",), value={"\x1e": 0})
@given(path=st.sampled_from(paths(RESOLVED)), value=ODD)
def test_whatever_stands_in_a_field_is_a_job_or_a_spec_error(path, value):
    broken = copy.deepcopy(RESOLVED)
    section = broken
    for name in path[:-1]:
        section = section[name]
    section[path[-1]] = value
    try:
        job = spec.parse(broken, "job.yaml")
    except SpecError as error:
        assert all(line.startswith("job.yaml: ") for line in str(error).splitlines())
        assert path[0] in str(error) or "stop" in str(error)
    else:
        assert spec.from_json(job.to_json()) == job
        assert spec.parse(yaml.safe_load(job.to_yaml()), "again") == job


@settings(max_examples=100)
@given(option=st.sampled_from(["agents", "max_cycles", "local_ratio", "landmarks", "x"]), value=ODD)
def test_whatever_an_environment_is_told_is_an_environment_or_a_spec_error(option, value):
    assume(not isinstance(value, int) or value < 9)  # an environment of any size is an environment
    broken = document() | {"env": {"name": "mpe/simple_spread", "options": {option: value}}}
    try:
        prepared = prepare(spec.parse(broken, "job.yaml"))
    except SpecError as error:
        assert str(error)
    else:
        assert prepared.spaces.agents


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ("{name: marless}", "scaling: the threshold, 16.7 actors, is not above the fewest, 16.7, so every round gets"),
        (
            "{name: marless, min_actors: 9}",
            "scaling: with 3 policies one that asks for 50 actors gets them though all ",
        ),
        ("{name: marless, min_actors: 1, beta: 0.6}", ""),
        ("{name: marless}\nsharing: {groups: shared}", ""),
        ("{name: nitro}", ""),
    ],
)
def test_a_threshold_that_one_policy_can_force_is_pointed_out(scaling, said):
    note = advice(prepare(spec.parse(document(f"actors: {{count: 50}}\nscaling: {scaling}"), "job.yaml")))
    assert note.startswith(said) and bool(note) == bool(said)


@pytest.mark.parametrize(
    ("scaling", "count", "said"),
    [
        (
            "{name: marless}",
            16,
            "scaling: with one agent, the fewest actors of a round, actors.count / agents, are all 16, so nothing is "
            "left to decide; set scaling.min_actors: 1",
        ),
        ("{name: marless}", 1, ""),
        ("{name: marless, min_actors: 1}", 16, ""),
        ("{name: nitro}", 16, ""),
    ],
)
def test_one_agent_whose_fewest_actors_are_all_is_pointed_out(scaling, count, said):
    text = f"env: {{name: game/cartpole}}\nactors: {{count: {count}}}\nscaling: {scaling}"
    assert advice(prepare(spec.parse(document(text), "job.yaml"))) == said


@pytest.mark.parametrize(("steps", "said"), [(10, "actors.steps is 10, an episode lasts up to 25"), (25, ""), (60, "")])
def test_actors_that_never_see_an_episodes_end_are_pointed_out(steps, said):
    note = advice(prepare(spec.parse(document(f"actors: {{steps: {steps}, episodes: fresh}}"), "job.yaml")))
    assert note.startswith(said) and bool(note) == bool(said)


def test_fresh_episodes_of_unknown_length_are_pointed_out():
    game = "env: {name: pettingzoo/pettingzoo.classic.tictactoe_v3, options: {}}\nactors: {steps: 10, episodes: "
    note = advice(prepare(spec.parse(document(game + "fresh}"), "job.yaml")))
    assert note == (
        "actors.steps is 10, and how long an episode of pettingzoo/pettingzoo.classic.tictactoe_v3 lasts is unknown: "
        "every round starts fresh episodes, so training sees at most their first 10 steps; set actors.episodes: carried"
    )
    assert not advice(prepare(spec.parse(document(game + "carried}"), "job.yaml")))


def test_carried_episodes_are_all_seen():
    assert not advice(prepare(spec.parse(document("actors: {steps: 10, episodes: carried}"), "job.yaml")))


def test_carrying_an_environment_that_cannot_be_saved_is_said_to_take_longer(monkeypatch):
    monkeypatch.setattr(registry, "make", lambda name, options, batch: ScriptedEnv(batch))
    assert not advice(prepare(spec.parse(document("actors: {episodes: fresh}"), "job.yaml")))
    note = advice(prepare(spec.parse(document("actors: {episodes: carried}"), "job.yaml")))
    assert re.match(r"environment \S+ has no save\(\) and load\(\): .* takes longer; .* actors.episodes: fresh", note)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e6", 1_000_000), ("2.5E3", 2500), ("-1e1", -10), ("1e-3", 0.001), ("1e400", float("inf")), ("e6", "e6"),
     ("1e", "1e"), ("'1e6'", "1e6")],
)  # fmt: skip
def test_numbers_with_an_exponent_are_numbers(text, value):
    found = documents.yaml_of(text, "x")
    assert (found, type(found)) == (value, type(value))


def test_whole_numbers_may_have_an_exponent_in_a_job_and_in_overrides(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text("{env: {name: mpe/simple_spread, options: {agents: 3e0}}, algorithm: ippo, stop: {env_steps: 1e6}}")
    found = spec.load(file, ["evaluation.every=1e1", "algorithm.lr=2e-3", "stop.rounds=1.5e2"])
    assert (found.stop.env_steps, found.stop.rounds, found.evaluation.every) == (1_000_000, 150, 10)
    assert (found.env.options, found.algorithm.lr) == ({"agents": 3}, 0.002)
    with pytest.raises(SpecError, match=r"stop.rounds: got 1500.5; allowed: a whole number"):
        spec.load(file, ["stop.rounds=1.5005e3"])


def test_a_text_that_looks_like_such_a_number_survives_the_round_trip(tmp_path):
    job = spec.parse(
        {"name": "1e6", "env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 1}}, "spec"
    )
    (tmp_path / "spec.yaml").write_text(job.to_yaml())
    assert spec.load_resolved(tmp_path / "spec.yaml") == job


def test_a_spec_survives_its_run_folder():
    for agent_id in (None, True, False):
        job = spec.parse(BASE | {"model": {"agent_id": agent_id}, "actors": {"episodes": "carried"}}, "x")
        assert spec.parse(yaml.safe_load(job.to_yaml()), "spec.yaml") == job


@pytest.mark.parametrize(
    ("mask", "arguments"),
    [
        ("auto", {"n": 2}),
        ("none", {"n": 2, "env.mask": "none"}),
        ("legal", {"n": 2, "env.mask": "legal"}),
        ({"key": "unavailable", "inverted": True}, {"n": 2, "env.mask": {"key": "unavailable", "inverted": True}}),
    ],
)
def test_the_choice_of_a_mask_goes_where_options_go(mask, arguments):
    document = {
        "env": {"name": "pettingzoo/x", "options": {"n": 2}, "mask": mask},
        "algorithm": "ippo",
        "stop": {"rounds": 1},
    }
    read = spec.parse(document, "job")
    assert read.env.arguments == arguments
    assert spec.from_json(read.to_json()) == read


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("env.mask", r"env\.mask is a field beside options"),
        ("env.film", r"env\.film is set by films only; leave it out"),
    ],
)
def test_what_is_no_option_is_refused_among_the_options(option, message):
    document = {"env": {"name": "x", "options": {option: "none"}}, "algorithm": "ippo", "stop": {"rounds": 1}}
    with pytest.raises(SpecError, match=message):
        spec.parse(document, "job")


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("stop: {env_steps: 40_000}", 1),  # 2 · 80 · 25 = 4,000 env steps a round: 10 rounds
        ("stop: {env_steps: 120_001}", 3),  # 31 rounds
        ("stop: {env_steps: 1_000_000}", 10),  # 250 rounds
        ("stop: {rounds: 59}", 5),
        ("stop: {rounds: 59, env_steps: 100_000}", 2),  # 25 rounds: the first bound ends it
        ("stop: {rounds: 3}", 1),
        ("stop: {wall_s: 60}", 10),
        ("stop: {rounds: 20}\nevaluation: {every: 10}", 10),
        ("stop: {rounds: 20}\nevaluation: {every: 0}", 0),
        ("stop: {rounds: 20}\nevaluation: {episodes: 7}", 2),
    ],
)
def test_a_short_job_is_evaluated_ten_times_unless_it_says_how_often(text, every):
    job = spec.parse(document(text), "job.yaml")
    assert job.evaluation.every == every
    assert spec.from_json(job.to_json()) == job
    assert spec.with_stop(job, {"rounds": 1000}, "stop").evaluation.every == every  # a resumed job goes on as it began
