"""`marless init`, `settings`, `envs` and `algorithms`: what they say is what job files take."""

import json
import re
from pathlib import Path

import pytest
import yaml

from marless.app.cli import discover
from marless.core import documents
from marless.core.errors import SpecError
from marless.core.settings import HABITS
from marless.jobs import spec as specs
from marless.jobs.reference import REQUIRED, settings_of

NAMED = ("algorithm=qmix", "schedule=stellaris", "scaling=marless", "sharing=marless", "actors.episodes=fresh")


@pytest.mark.parametrize("name", [*sorted(each.stem for each in specs.EXAMPLES.glob("*.yaml")), "mpe/simple_tag"])
def test_a_first_job_is_its_example_also_with_every_comment_taken_away(name, marless, tmp_path):
    to = tmp_path / "job.yaml"
    assert marless("init", name, "--to", to)[0] == 0
    example = specs.load(Path(name))
    assert specs.load(to) == example
    opened = [re.sub(r"^( *)# (\w+:.*)", r"\1\2", line) for line in to.read_text().splitlines()]
    every = documents.yaml_of("\n".join(line for line in opened if not line.startswith("#")), "job")
    assert len(every["evaluation"]) == 5
    assert specs.parse(every, "job") == example


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("gymnasium/Acrobot-v1", "acrobot-v1"),
        ("gymnasium/my.games:Maze-v0", "my-games-maze-v0"),
        ("pettingzoo/sisl.pursuit_v5", "sisl-pursuit-v5"),
    ],
)
def test_an_environment_is_a_job_also_if_its_name_has_dots(name, job):
    read = specs.load(Path(name))
    assert (read.env.name, read.name, read.algorithm.name) == (name, job, "ippo")
    with pytest.raises(SpecError, match=r"mpe/absent\.yaml: cannot be read"):
        specs.load(Path("mpe/absent.yaml"))


def test_every_section_of_a_job_is_written(tmp_path):
    document = discover.PLAIN | {
        "sinks": [{"name": "tensorboard"}],
        "schedule": "pipelined",
        "bill": {"accounting": "paper"},
    }
    job = specs.of_document(document, [], "job")
    text = discover.commented(document, job, tmp_path / "job.yaml")
    assert specs.parse(documents.yaml_of(text, "job"), "job") == job


def test_a_file_is_not_written_over(marless, tmp_path):
    (tmp_path / "job.yaml").write_text("mine")
    code, _, said = marless("init", "--to", tmp_path / "job.yaml")
    assert code == 2
    assert "job.yaml: cannot be written (File exists); choose another file with --to" in said
    assert (tmp_path / "job.yaml").read_text() == "mine"


@pytest.mark.parametrize("overrides", [(), NAMED])
def test_defaults_are_those_of_jobs_that_say_nothing(overrides):
    job = specs.of_document(discover.PLAIN, overrides, "job")
    told = {each.path: each.default for each in settings_of(job)}
    assert {path for path, default in told.items() if default == REQUIRED} == {"env.name"}
    document = yaml.safe_load(job.to_yaml())
    given = {"env.name", "stop.env_steps", "algorithm.name", "schedule.name", "scaling.name", "sharing.name"}
    for path, default in told.items():
        value = document
        for part in path.split("."):
            value = value[part]
        assert path in given or path == "actors.episodes" or value == default, path
    every = [f"{path}={documents.to_yaml_line(default)}" for path, default in told.items() if path not in given]
    again = specs.of_document(discover.PLAIN, [*overrides, *every, "actors.episodes=fresh"], "job")
    assert again == job.model_copy(update={"actors": again.actors})


def test_every_field_is_told_and_most_say_what_they_mean():
    job = specs.of_document(discover.PLAIN, NAMED, "job")
    told = settings_of(job)
    assert [each.path for each in told] == list(leaves(yaml.safe_load(job.to_yaml()), ""))
    assert sum(not each.about and not each.path.endswith((".name", ".rule")) for each in told) < 10


def leaves(document, prefix):
    for name, value in document.items():
        yield from leaves(value, f"{prefix}{name}.") if isinstance(value, dict) and value else [f"{prefix}{name}"]


def test_a_setting_is_explained(marless):
    [found] = json.loads(marless("settings", "algorithm.gamma", "-o", "json")[1])
    assert found == {
        "setting": "algorithm.gamma",
        "value": "number ≥ 0 and ≤ 1",
        "default": 0.99,
        "meaning": "discount per env step",
    }
    names = json.loads(marless("settings", "algorithm.name", "-o", "json")[1])[0]["value"].split(", ")
    assert {"ippo", "qmix"} < set(names)
    code, _, said = marless("settings", "algorithm.learning_rate")
    assert code == 2
    assert "unknown setting 'algorithm.learning_rate'" in said


def test_environments_and_algorithms_are_listed(marless):
    [tag] = json.loads(marless("envs", "simple_tag", "-o", "json")[1])
    assert tag["options"]["num_adversaries"] == 3
    assert "mpe/simple_spread" in marless("envs", "mpe")[1]
    assert "smac/8m" in marless("envs", "-o", "name")[1]
    code, _, said = marless("envs", "simple_spred")
    assert code == 2 and "unknown environment 'simple_spred'; did you mean 'mpe/simple_spread'" in said
    assert json.loads(marless("algorithms", "-o", "json")[1])[0]["algorithm"] == "ddpg"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("algorithm.lr=1e-3",), "A setting of the job is given as: --set algorithm.lr=1e-3"),
        (("algorithm.lr=1e-3", "seed=2"), "--set algorithm.lr=1e-3"),
        (("--seed", "1"), "No such option: --seed"),
        (("--seed", "1"), "--set seed=VALUE"),
        (("--learning-rate", "1"), "--set algorithm.lr=VALUE"),
        (("--set", "algorithm.learning_rate=1"), "unknown field 'learning_rate'; here it is algorithm.lr"),
        (("--set", "num_workers=4"), "unknown field 'num_workers'; here it is actors.count"),
        (("--set", "algorithm=qmix", "--set", "algorithm.n_steps=4"), "did you mean 'n_step'?"),
        (("--set", "algorithm.n_steps=4"), "here it is actors.steps"),
        (("--set", "sharing=shared"), "write sharing: {groups: shared}"),
        (("--set", "algorithm=PPO"), "did you mean 'ippo'?"),
    ],
)
def test_habits_of_other_libraries_are_answered(marless, words, why):
    code, _, said = marless("check", "spread", *words)
    assert code == 2
    assert why in " ".join(said.replace("│", " ").split())


def test_every_habit_leads_to_a_setting():
    """Of some algorithm, schedule or policy."""
    algorithms = (specs.of_document(discover.PLAIN, [f"algorithm={name}"], "job") for name in ("ippo", "qmix"))
    known = {each.path for job in algorithms for each in settings_of(job)}
    named = {word for here in HABITS.values() for word in re.findall(r"[a-z]+(?:\.[a-z_]+)+", here)}
    assert named <= known
    assert len(named) > 20


def test_an_environment_may_be_named_without_a_section():
    assert specs.of_document(discover.PLAIN | {"env": "game/matrix"}, [], "job").env.name == "game/matrix"


@pytest.mark.parametrize(
    "words", [("train", "spread"), ("train", "spread", "--in-process"), ("train", "--resume", "x")]
)
def test_training_without_torch_is_refused_before_anything_starts(marless, monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("marless.app.cli.local.find_spec", lambda name: None)
    code, out, said = marless(*words)
    assert (code, out) == (1, "")
    assert said == "marless: training needs torch, which is not installed here: pip install 'marless[train]'\n"
    assert list(tmp_path.iterdir()) == []
