"""Estimates: what is said before a job runs follows the rules by which it is billed."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from marless.core.errors import CorruptError, SpecError
from marless.core.group import FunctionNode
from marless.cost.billing.bill import bill
from marless.cost.estimates import calibration, forecast
from marless.cost.estimates.calibration import Calibration, FunctionSeconds
from marless.cost.estimates.estimate import course, courses_of_run, estimate, same_shape
from marless.cost.estimates.forecast import Pace, rounds, work_of
from marless.cost.simulation.cluster import modelled, total
from marless.jobs.job import Function, prepare
from marless.jobs.sharing.base import initial_groups
from marless.jobs.spec import JobSpec
from marless.learning.algos.learner import Scope
from marless.learning.algos.ppo.algorithms import IPPOConfig
from marless.learning.envs import registry as environments
from marless.learning.envs.base import EnvSpaces
from tests.unit.cost.billing.rounds import job, paper_round
from tests.unit.cost.billing.test_ledger import GB_S, PLAIN, prices

WORK = (
    FunctionSeconds(function="post_process", name="all", index=0, seconds=0.5),
    FunctionSeconds(function="critic", name="p", index=0, seconds=1.0),
    FunctionSeconds(function="critic", name="q", index=0, seconds=1.0),
    FunctionSeconds(function="policy", name="p", index=0, seconds=2.0),
    FunctionSeconds(function="policy", name="q", index=0, seconds=2.0),
)
GROUPS = {"p": ["agent_0", "agent_1"], "q": ["agent_2"]}
EIGHT = job(
    actors={"count": 8, "envs": 10, "steps": 25},
    evaluation={"every": 3, "episodes": 100},
    sharing={"name": "fixed", "groups": GROUPS},
)
LIKELY = Pace(actors=8, factor=1.0, shared=False, slots=2)


def invent(pace: Pace = LIKELY, count: int = 4, spec=EIGHT):
    return rounds(prepare(spec), WORK, 0.1, pace, count, episode_steps=50)


def test_a_made_up_round_takes_what_its_functions_take_on_the_slots_there_are():
    """8 actors of 0.1 s on 2 slots: 0.4 s. Post-processing 0.5 s, then 2 + 2 and 1 + 1 side by side: 3 s."""
    first, *_ = invent()
    assert first.phases.rollout == pytest.approx(0.4 + forecast.COORDINATOR_S)
    assert first.phases.update == pytest.approx(0.5 + 3.0 + forecast.AROUND_S + forecast.COORDINATOR_S)
    assert (first.phases.evaluation, first.env_steps) == (0.0, 8 * 10 * 25)
    assert first.ended_s == pytest.approx(first.phases.rollout + first.phases.update)


def test_every_so_many_rounds_are_evaluated():
    """100 episodes of 50 steps on 8 actors of 10 copies: 13 each, so two batches of 0.2 s; 4 of them in a row, after
    the update, which occupies both slots. The policies of the third round are evaluated in the fourth.
    """
    found = invent(count=7)
    assert [record.phases.evaluation > 0 for record in found] == [False, False, False, True, False, False, True]
    assert found[3].phases.evaluation == pytest.approx(4 * 0.4 + forecast.COORDINATOR_S)
    assert found[3].ended_s - found[3].started_s == pytest.approx(total(found[3].phases))
    assert total(modelled(found[3], EIGHT.functions, 2)) == pytest.approx(total(found[3].phases), rel=0.02)


@pytest.mark.parametrize(("slots", "seconds"), [(4, 2 * 0.4), (5, 2.92 - 2.52), (6, 0.0), (12, 0.0)])
def test_a_made_up_evaluation_takes_the_slots_that_learners_leave(slots, seconds):
    """The update: 0.5 s, then four functions, of which the longest take 2 s, and 0.02 s around: 2.52 s on four slots or
    more. Eight evaluations of 0.4 s then, if one slot is left: six until 2.4 s, one until 2.8 s, one until 2.92 s.
    """
    pace = Pace(actors=8, factor=1.0, shared=False, slots=slots)
    found = invent(pace)[3].phases.evaluation
    assert found == pytest.approx(seconds + forecast.COORDINATOR_S if seconds else 0.0)


def test_on_other_slots_a_made_up_round_is_modelled_without_its_queueing():
    """On 8 slots the actors take 0.1 s; post-processing 0.5 s, a policy 2 s, and their parts of 0.015 s around."""
    phases = modelled(invent()[1], EIGHT.functions, 8)
    assert phases.rollout == pytest.approx(0.1 + forecast.COORDINATOR_S)
    assert phases.update == pytest.approx((0.5 + 2.0) * (1 + forecast.AROUND_S / 6.5) + forecast.COORDINATOR_S)


def test_only_the_first_round_starts_anything():
    starts = [[each.function for each in record.invocations if each.cold] for record in invent()]
    assert starts == [["actor", "actor", "learner"], [], [], []]


def test_rounds_follow_each_other():
    for before, after in pairwise(invent()):
        assert (after.round, after.started_s) == (before.round + 1, before.ended_s)


@pytest.mark.parametrize(("samples", "seconds"), [("pooled", (0.5, 2.0, 4.0)), ("drawn", (0.5, 1.0, 2.0))])
def test_a_shared_learner_does_the_work_of_all_or_of_one(samples, seconds):
    spec = job(actors={"count": 8}, sharing={"name": "fixed", "samples": samples, "groups": GROUPS})
    [record] = invent(Pace(actors=8, factor=1.0, shared=True, slots=2), count=1, spec=spec)
    inner = [each for each in record.invocations if each.function not in ("actor", "learner")]
    assert tuple(each.vcpu_s for each in inner) == seconds


def test_half_the_actors_are_half_of_an_update():
    [record] = invent(Pace(actors=4, factor=1.0, shared=False, slots=2), count=1)
    assert sum(each.function == "actor" for each in record.invocations) == record.actors == 4
    assert [each.vcpu_s for each in record.invocations if each.function == "policy"] == [1.0, 1.0]


def test_the_quickest_of_several_measurements_counts():
    def update(factor: float) -> tuple[FunctionSeconds, ...]:
        return tuple(FunctionSeconds(**vars(each) | {"seconds": factor * each.seconds}) for each in WORK)

    found = Calibration(actor_s=(0.1,), updates=(update(2.0), update(1.0)), samples_share=1.0)
    assert work_of(found, prepare(EIGHT)) == list(WORK)


def test_without_torch_updates_are_guessed_from_their_samples():
    """8 · 10 · 25 samples an agent."""
    found = Calibration(actor_s=(0.1,), updates=(), samples_share=1.0)
    work = {(each.function, each.name): each.seconds for each in work_of(found, prepare(EIGHT))}
    pace = forecast.SECONDS_PER_SAMPLE
    assert work == {
        ("post_process", "agent"): pytest.approx(6000 * pace["post_process"]),
        ("critic", "p"): pytest.approx(4000 * pace["critic"]),
        ("critic", "q"): pytest.approx(2000 * pace["critic"]),
        ("policy", "p"): pytest.approx(4000 * pace["policy"]),
        ("policy", "q"): pytest.approx(2000 * pace["policy"]),
    }


def test_an_estimate_from_a_run_is_its_bill():
    records = [paper_round(i) for i in range(4)]
    spec = job(stop={"rounds": 4})
    found = estimate(spec, [course(records, spec, PLAIN)])
    made = bill(records, spec, PLAIN)
    assert (found.rounds.likely, found.ends_by) == (4, "stop.rounds")
    for accounting, each in found.usd.items():
        assert each.likely == pytest.approx(made.total_usd(accounting))
    assert found.seconds.likely == pytest.approx(sum(each.spent_s for each in records))


def test_the_range_is_that_of_a_runs_thirds():
    """Updates of 2, 3 and 4 s in the thirds: a first round of the first kind, and nine of each."""
    records = [paper_round(i, learner_s=2.0 + i // 2) for i in range(6)]
    records = [replace(record, env_steps=500 * (number + 1)) for number, record in enumerate(records)]
    spec = job(stop={"rounds": 10})
    found = estimate(spec, courses_of_run(records, spec, PLAIN))
    assert found.usd["paper"].low < found.usd["paper"].likely < found.usd["paper"].high
    work = [(50 * 1.15 + 12 * 2 * seconds) * float(GB_S) for seconds in (2, 3, 4)]
    assert found.usd["paper"].low == pytest.approx(10 * work[0])
    assert found.usd["paper"].high == pytest.approx(work[0] + 9 * work[2])
    assert vars(found.env_steps) == {"low": 5000, "likely": 5000, "high": 5000}
    assert len(courses_of_run(records[:5], spec, PLAIN)) == 1


@pytest.mark.parametrize(
    ("stop", "rounds_", "rule"),
    [
        ({"rounds": 7, "env_steps": 10**9}, 7, "stop.rounds"),
        ({"env_steps": 16_001}, 9, "stop.env_steps"),
        ({"wall_s": 30.0, "rounds": 1000}, 7, "stop.wall_s"),
        ({"return": 1.0}, 100, ""),
        ({"return": 1.0, "rounds": 3}, 3, "stop.rounds"),
    ],
)
def test_the_stop_rule_that_is_reached_first_ends_it(stop, rounds_, rule):
    """Rounds of 2,000 env steps and 3.925 s, of which every third is evaluated, 1.605 s more: after the first of four,
    4.46 s in the mean, so that 30 s are over in the seventh.
    """
    spec = job(actors={"count": 8, "envs": 10, "steps": 25}, stop=stop, evaluation={"every": 3, "episodes": 100})
    found = estimate(spec, [course(invent(count=4), spec, PLAIN)])
    assert (found.rounds.likely, found.ends_by) == (rounds_, rule)


def test_a_budget_ends_it_by_the_accounting_that_counts():
    for accounting in ("paper", "billed", "serverful"):
        free = job(stop={"rounds": 10**6}, bill={"accounting": accounting}, actors={"count": 8})
        one = estimate(free, [course(invent(), free, PLAIN)]).usd[accounting].likely / 10**6
        poor = job(stop={"cost_usd": 1000 * one}, bill={"accounting": accounting}, actors={"count": 8})
        found = estimate(poor, [course(invent(), poor, PLAIN)])
        assert found.ends_by == "stop.cost_usd"
        assert found.rounds.likely == pytest.approx(1000, rel=0.02)


def test_minimum_charges_are_paid_once_not_per_round():
    """Containers of a minute: rounds in the first minute cost nothing more, all later ones their time."""
    table, spec = prices(backend="fargate"), job(stop={"rounds": 10_000}, actors={"count": 8})
    records = invent(count=40)
    found = course(records, spec, table)
    assert found.head == sum(record.ended_s <= 60 for record in records) > 10
    whole = bill(invent(count=200), spec, table).total_usd("billed")
    assert found.usd("billed", 200) == pytest.approx(whole, rel=0.03)


def test_shape_is_what_makes_a_round():
    one = job(actors={"count": 8}, stop={"rounds": 100})
    assert same_shape(
        one, job(actors={"count": 8}, stop={"rounds": 999}, seed=3, name="other", bill={"accounting": "paper"})
    )
    assert not same_shape(one, job(actors={"count": 8}, stop={"rounds": 10}))  # it is evaluated more often
    assert not same_shape(one, job(actors={"count": 9}))
    assert not same_shape(one, job(actors={"count": 8}, sharing={"name": "fixed", "groups": "shared"}))


@pytest.mark.parametrize("text", ["", "{}", '{"actor_s": 3}', '{"actor_s": [], "updates": [[{}]], "samples_share": 1}'])
def test_what_is_no_calibration_is_refused(text):
    with pytest.raises(CorruptError, match="this is no calibration"):
        calibration.from_text(text)


def test_a_calibration_measures_every_function_of_the_job():
    """In a process of its own, as a dry run does it, with 900 agent samples at most: three actors of 10 · 10 · 3."""
    spec = job(actors={"count": 50, "envs": 10, "steps": 10}, model={"hidden": [8]})
    program = "from marless.cost.estimates import calibration as c; c.MOST_SAMPLES = 900; c.main()"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, input=spec.to_json(), capture_output=True, text=True, check=True)
    found = calibration.from_text(done.stdout)
    assert found.to_json() == json.dumps(json.loads(done.stdout))
    assert len(found.actor_s) == calibration.ROLLOUTS
    assert all(each > 0 for each in found.actor_s)
    assert found.samples_share == pytest.approx(3 / 50)
    agents = [f"agent_{i}" for i in range(3)]
    assert len(found.updates) == calibration.UPDATES
    for update in found.updates:
        named = [(each.function, each.name) for each in update]
        assert named[0][0] == "post_process"
        assert sorted(named[1:]) == sorted((function, name) for function in ("critic", "policy") for name in agents)
        assert all(each.seconds > 0 for each in update)


def test_a_calibration_of_a_replay_is_of_updates_past_their_warmup(monkeypatch):
    """Of two classes and one learner; each agent has a critic of its own. Nothing is extrapolated."""
    learns = {"name": "maddpg", "updates": 2, "batch": 8, "warmup": 10_000}
    actors = {"count": 50, "envs": 10, "steps": 10}
    spec = job(env={"name": "mpe/simple_adversary"}, algorithm=learns, actors=actors, model={"hidden": [8]})
    monkeypatch.setattr(calibration, "MOST_SAMPLES", 300)
    found, prepared = calibration.calibrate(spec), prepare(spec)
    declared = prepared.functions(initial_groups("independent", prepared.spaces))
    for update in found.updates:
        assert {(each.index, each.function, each.name, each.after) for each in update} == {
            (each.index, each.node.function, each.node.name, each.node.after) for each in declared
        }
    assert found.samples_share == 1.0
    [record] = rounds(prepared, work_of(found, prepared), 0.1, Pace(actors=1, factor=1.0, shared=False, slots=2), 1, 10)
    assert {each.function for each in record.invocations} == {"actor", "learner", "post_process", "critic", "policy"}


def test_a_calibration_of_what_cannot_be_is_one_sentence():
    spec = job(env={"name": "mpe/simple_spread", "options": {"agents": 0}})
    command = [sys.executable, "-m", "marless.cost.estimates.calibration"]
    done = subprocess.run(command, input=spec.to_json(), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("env: ")
    assert done.stderr.count("\n") == 1
    with pytest.raises(SpecError):
        calibration.calibrate(spec)


@dataclass(frozen=True)
class Team:
    """A job of six agents of two classes whose algorithm trains them jointly, with batches from a replay."""

    spec: JobSpec
    spaces: EnvSpaces

    def functions(self, groups) -> tuple[Function, ...]:
        """Post-processing, a mixer, and policies after it."""
        scope = Scope(0, (0, 1), "team")
        nodes = (
            FunctionNode("post_process", "team"),
            FunctionNode("mixer", "mixer", after=("post_process/team",)),
            *(FunctionNode("policy", group.policy, after=("mixer/mixer",)) for group in groups),
        )
        return tuple(Function(scope, node) for node in nodes)


class Drawing(IPPOConfig):
    """Goes over as many samples in every round."""

    def drawn(self, steps: int) -> int:
        return 1000


@pytest.fixture
def team() -> Team:
    given = job(actors={"count": 8, "envs": 10, "steps": 25}, env={"name": "mpe/simple_adversary"})
    given = given.model_copy(update={"algorithm": Drawing(name="ippo")})
    return Team(given, environments.spaces("mpe/simple_adversary", {}))


UNMEASURED = Calibration(actor_s=(0.1,), updates=(), samples_share=1.0)


def test_guesses_follow_the_functions_that_an_algorithm_declares_and_the_batches_it_draws(team):
    """1,000 samples of each of the 3 agents for what serves the team, of one for each policy."""
    pace = forecast.SECONDS_PER_SAMPLE
    work = {(each.function, each.name): (each.seconds, each.after) for each in work_of(UNMEASURED, team)}
    policies = dict.fromkeys((("policy", agent) for agent in team.spaces.agents), (1000 * pace["policy"],))
    assert {key: seconds for key, (seconds, _) in work.items()} == {
        ("post_process", "team"): pytest.approx(3000 * pace["post_process"]),
        ("mixer", "mixer"): pytest.approx(3000 * pace["mixer"]),
        **{key: pytest.approx(seconds) for key, (seconds,) in policies.items()},
    }
    assert work["policy", team.spaces.agents[0]][1] == ("mixer/mixer",)


def test_batches_from_a_replay_take_as_long_with_fewer_actors_and_functions_follow_their_graph(team):
    """Post-processing 1 s, the mixer 2 s, then policies of 3 s, two at a time: 1 + 2 + 3 + 3."""
    agents = team.spaces.agents
    work = [
        FunctionSeconds("post_process", "team", 0, 1.0),
        FunctionSeconds("mixer", "mixer", 0, 2.0, ("post_process/team",)),
    ]
    work += [FunctionSeconds("policy", agent, 0, 3.0, ("mixer/mixer",)) for agent in agents]
    for actors in (8, 2):
        [record] = rounds(team, work, 0.1, Pace(actors=actors, factor=1.0, shared=False, slots=2), 1, 25)
        assert record.phases.update == pytest.approx(9.0 + forecast.AROUND_S + forecast.COORDINATOR_S)
        assert len([each for each in record.invocations if each.function == "learner"]) == 1
    shared = Pace(actors=8, factor=1.0, shared=True, slots=2)
    [record] = rounds(team, work, 0.1, shared, 1, 25)
    found = {each.name: each.vcpu_s for each in record.invocations if each.function == "policy"}
    first, second = (each.agents for each in team.spaces.classes)
    assert found == {first[0]: 3.0 * len(first), second[0]: 3.0 * len(second)}, "agents of two classes never share"
    assert [each.vcpu_s for each in record.invocations if each.function == "mixer"] == [2.0]


def test_what_shared_policies_wait_for_is_shared_too(team):
    """A critic of each agent before its policy, in any order: of a class, one critic and then one policy."""
    agents = team.spaces.agents[::-1]
    work = [FunctionSeconds("critic", agent, 0, 2.0) for agent in agents]
    work += [FunctionSeconds("policy", agent, 0, 1.0, (f"critic/{agent}",)) for agent in agents]
    [record] = rounds(team, work, 0.1, Pace(actors=8, factor=1.0, shared=True, slots=9), 1, 25)
    policies = [each for each in record.invocations if each.function == "policy"]
    assert [each.after for each in policies] == [(f"critic/{each.name}",) for each in policies]
    assert record.phases.update == pytest.approx(4.0 + 2.0 + forecast.AROUND_S + forecast.COORDINATOR_S)
