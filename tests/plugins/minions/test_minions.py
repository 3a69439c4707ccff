"""The learned scheduler in a job: what it sees, what it decides, what it refuses. Numbers are worked out by hand."""

import json

import numpy as np
import pytest

from marless.core.errors import SpecError
from marless.core.settings import FunctionsSpec
from marless.jobs.job import prepare
from marless.jobs.presets import own_settings, preset
from marless.jobs.record import from_json
from marless.jobs.scaling.contract import check_scaling
from marless_minions.features import FEATURES, observe
from marless_minions.kind import SCALING, MinionsConfig
from marless_minions.scheduler import load
from tests.plugins.minions.made import job, saved, scheduler, task
from tests.unit.cost.billing.rounds import invocation, round_of
from tests.unit.jobs.scaling.rounds import context, groups, record
from tests.unit.jobs.test_record import RETURNS

A = groups("a")
WORK = (
    invocation("actor", 100.0, 102.0),
    invocation("actor", 101.0, 105.0),
    invocation("learner", 105.0, 108.0),
    invocation("learner", 105.0, 107.0, index=1),
    invocation("evaluation", 108.0, 188.0),
)
METRICS = {
    "a": {"policy_loss": -0.5, "value_loss": 2.0, "approx_kl": 0.01},
    "b": {"policy_loss": 0.5, "value_loss": 1.0, "approx_kl": 0.03},
    "joint": {"value_loss": 3.0},
}


def make(directory, functions=None, budget_usd=None, rounds=None, **settings):
    policy = SCALING.make(
        MinionsConfig.model_validate(MinionsConfig.with_files({"scheduler": str(directory), **settings})),
        context("a", most=4, functions=functions, budget_usd=budget_usd),
    )
    assert rounds is None or policy.rounds == rounds
    return policy


def section(directory):
    """What a job holds of a scheduler."""
    return MinionsConfig.with_files({"name": "minions", "scheduler": str(directory)})


def test_what_is_seen_of_a_round():
    history = [round_of(round_=3, returns=RETURNS), round_of(*WORK, round_=4, returns=None, metrics=METRICS)]
    assert observe(history, 20, 0.75) == {
        "round": 0.25,
        "loss": pytest.approx((1.5 + 1.5 + 3.0) / 3),
        "return": -20.5,  # round 4 had none
        "kl": pytest.approx(0.02),
        "learner_s": 3.0,  # classes side by side
        "actor_s": 3.0,
        "round_s": 3.0 + 4.0,
        "budget_left": 0.75,
    }


def test_what_is_seen_before_anything_happened_and_of_what_makes_no_sense():
    nothing = dict.fromkeys(FEATURES) | {"round": 0.0, "budget_left": 1.0}
    assert observe([], 20, 1.0) == nothing
    strange = record(40, "a", metrics={"a": {"loss": float("inf"), "approx_kl": float("nan")}})
    seen = observe([strange], 20, -0.5)
    assert (seen["round"], seen["loss"], seen["kl"], seen["actor_s"]) == (1.0, None, None, None)
    assert (seen["learner_s"], seen["round_s"], seen["budget_left"]) == (0.5, 1.0, -0.5)  # by the coordinator's clock


def test_features_are_standardised_cut_off_and_0_where_unknown():
    given = scheduler()
    given = type(given)(
        task=given.task, center=np.full(8, 2.0), scale=np.array([2.0, *[0.1] * 7]), weights=given.weights
    )
    raw = np.array([[3.0, 2.05, 9.0, -9.0, np.nan, 2.0, 2.1, 1.9]])
    assert given.normalised(raw)[0] == pytest.approx([0.5, 0.5, 5.0, -5.0, 0.0, 0.0, 1.0, -1.0])


def test_the_probabilities_are_those_of_the_net():
    # logits (1, 0, 0, 0): e / (e + 3); with the return below 5: (1, 0, 0, 3 tanh 1)
    given = scheduler(return_=5.0)
    raw = np.full((2, 8), np.nan)
    raw[:, FEATURES.index("return")] = 9.0, 1.0
    above, below = given.probabilities(raw)
    low = np.tanh(100 * np.tanh(-100 * (5.0 - 5.0)))  # 9 is cut off at 5
    assert low == 0.0
    assert above == pytest.approx(np.array([np.e, 1, 1, 1]) / (np.e + 3))
    assert below == pytest.approx(np.array([np.e, 1, 1, np.e**3]) / (np.e + 2 + np.e**3))
    assert given.choose(observe([], 9, 1.0)) == (4, pytest.approx(np.e**3 / (np.e + 2 + np.e**3)))


def test_decides_from_the_records_and_says_from_what(tmp_path):
    policy = make(saved(tmp_path, scheduler(return_=-1.0)))
    last = round_of(*WORK, round_=4, metrics=METRICS, returns=RETURNS)
    decision = policy.decide([last], A)
    assert decision.actors == 4
    assert decision.reason == (
        "minions: 4 of 1 to 4 actors is the scheduler's first choice (probability 0.81) before round 6: "
        "return -20.5, learner s 3, actor s 3, budget left 1"
    )
    assert decision.inputs["features"] == observe([last], 10, 1.0)
    assert len(decision.inputs["scheduler_sha256"]) == 64
    assert policy.decide([from_json(last.to_json())], A) == decision


@pytest.mark.parametrize("budget_usd", [None, 0.5])
def test_keeps_the_contract(tmp_path, budget_usd):
    saved(tmp_path, scheduler(of=task(max_actors=50, budget_usd=budget_usd), return_=-1.0))
    check_scaling(SCALING, MinionsConfig.model_validate(section(tmp_path)), max_actors=50)


def test_what_was_spent_travels_with_the_decisions(tmp_path):
    # A round's actors: (2 + 4) s · 1 GB; learners: (3 + 2) s · 2 GB; no evaluation; at 0.5 USD a GB-second: 8 USD.
    saved(tmp_path, scheduler(of=task(budget_usd=100.0)))
    policy = make(tmp_path, FunctionsSpec(), budget_usd=32.0)
    history = []
    for number in range(3):
        decision = policy.decide(history, A)
        assert decision.inputs["spent_usd"] == 8.0 * number
        assert decision.inputs["features"]["budget_left"] == 1 - 0.25 * number
        decided = record(number, "a", decided=("minions", decision)).decisions
        history.append(round_of(*WORK, round_=number, decisions=decided))
    assert policy.decide(history[1:], A) == policy.decide(history, A)
    assert make(tmp_path, FunctionsSpec()).decide(history, A).inputs["features"]["budget_left"] == 0.76
    unlogged = [round_of(*WORK, round_=number, decisions=()) for number in range(2)]
    assert policy.decide(unlogged, A).inputs["spent_usd"] == 16.0


def test_both_checkpoints_are_read_as_they_were_written(tmp_path):
    best, cheapest = scheduler(return_=-1.0), scheduler()
    saved(tmp_path, best, cheapest)
    for name, written in (("best", best), ("cheapest", cheapest)):
        read = load(tmp_path, name)
        assert read.scheduler.task == written.task
        for part in ("center", "scale"):
            assert (getattr(read.scheduler, part) == getattr(written, part)).all()
        assert read.scheduler.weights.keys() == written.weights.keys()
        assert all((read.scheduler.weights[key] == written.weights[key]).all() for key in written.weights)
    policies = [make(tmp_path), make(tmp_path, checkpoint="cheapest")]
    last = record(0, "a", mean=-20.0)
    assert [policy.decide([last], A).actors for policy in policies] == [4, 1]


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def edited(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DAMAGE = {
    "there is no scheduler in": lambda folder: (folder / "scheduler.json").unlink(),
    "not a file of": lambda folder: (folder / "scheduler.json").write_text("{"),
    "one of another version": lambda folder: edited(folder / "scheduler.json", format="marless-scheduler/0"),
    "another version": lambda folder: edited(folder / "scheduler.json", task={"rounds": 3}),
    "other features": lambda folder: edited(folder / "scheduler.json", features={}),
    "sha256 differs": lambda folder: cut(folder / "best.safetensors"),
    "cannot be read": lambda folder: (folder / "best.safetensors").unlink(),
    "list": lambda folder: (folder / "scheduler.json").write_text("[]"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_missing_or_foreign_scheduler_is_refused_before_the_job_starts(tmp_path, what):
    saved(tmp_path)
    DAMAGE[what](tmp_path)
    with pytest.raises(SpecError, match=r"not a file of|no scheduler in|train the scheduler again") as refused:
        prepare(job(scaling=section(tmp_path)))
    assert what in str(refused.value) or what in ("other features", "list")
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_weights_of_another_shape_are_refused(tmp_path):
    wide = scheduler(of=task(max_actors=5))
    saved(tmp_path, type(wide)(task=task(), center=wide.center, scale=wide.scale, weights=wide.weights))
    with pytest.raises(SpecError, match="not a file of"):
        load(tmp_path, "best")


@pytest.mark.parametrize("count", [3, 6])
def test_a_scheduler_for_other_numbers_of_actors_is_refused(tmp_path, count):
    saved(tmp_path)
    with pytest.raises(
        SpecError, match=rf"chooses from 1 to 4 actors, but actors.count is {count}: set actors.count: 4,"
    ):
        prepare(job(scaling=section(tmp_path), actors={"count": count}))


def test_a_job_is_prepared_with_it(tmp_path):
    saved(tmp_path, scheduler(of=task(budget_usd=7.0)))
    ready = prepare(
        job(scaling=section(tmp_path), stop={"rounds": 12, "cost_usd": 3.0}, functions={"learner": {"memory_mb": 512}})
    )
    assert (ready.scaling.rounds, ready.scaling.budget_usd) == (12, 3.0)
    assert ready.scaling.functions.learner.memory_mb == 512
    assert not (ready.curvature or ready.noise)
    assert prepare(job(scaling=section(tmp_path), stop={"env_steps": 9})).scaling.rounds == 10  # the scheduler's own


def test_a_preset_names_a_scheduler_by_its_folder(tmp_path):
    """As a job file does; the job that is submitted has its weights, and no path."""
    saved(tmp_path / "scheduler")
    file = tmp_path / "mine.yaml"
    file.write_text(f"learned:\n  scaling: {{name: minions, scheduler: {tmp_path / 'scheduler'}}}\n", "utf-8")
    applied = preset(f"{file}:learned").applied(job(actors={"count": 4}))
    assert applied.scaling.scheduler.weights
    assert str(tmp_path) not in applied.to_json()
    assert max(map(len, own_settings(applied))) < 200, "weights are no text for people"
    file.write_text("learned:\n  scaling: {name: minions, scheduler: nowhere}\n", "utf-8")
    with pytest.raises(SpecError, match=r"^preset learned: .*nowhere"):
        preset(f"{file}:learned").applied(job(actors={"count": 4}))


def test_a_job_file_that_names_none_is_refused():
    with pytest.raises(SpecError, match=r"scaling.scheduler"):
        job(scaling="minions")
