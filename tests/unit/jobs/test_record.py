"""Round records: what is written is what is read."""

import json
import math
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from marless.jobs.record import (
    Decision,
    Distances,
    Evaluation,
    GroupRecord,
    InvocationRecord,
    PhaseSeconds,
    RoundRecord,
    Summary,
    from_json,
)
from marless.learning.data.returns import EpisodeReturns, returns_of

WON = EpisodeReturns(episodes=4, mean=7.0, per_agent={"a": 7.0}, standard_error=0.0, wins=3)
RETURNS = EpisodeReturns(episodes=4, mean=-20.5, per_agent={"a": -20.0, "b": -21.0}, standard_error=0.25)
EARLIER = Evaluation(rounds=3, env_steps=300, returns=WON)
"""Of the policies that round 3 of `record` has published."""


def record(round_: int = 0, **changes) -> RoundRecord:
    fields = {
        "job": "j",
        "round": round_,
        "env_steps": 100 * (round_ + 1),
        "actors": 2,
        "groups": (GroupRecord(policy="p", agents=("a", "b"), version=round_ + 2),),
        "versions": {"p": round_ + 2, "critic": round_ + 2},
        "started_s": 1000.0 + round_,
        "ended_s": 1000.5 + round_,
        "phases": PhaseSeconds(rollout=0.2, update=0.25, evaluation=0.05),
        "returns": RETURNS,
        "evaluation": None,
        "metrics": {"p": {"entropy": 1.5}},
        "invocations": (
            InvocationRecord(
                id=f"j/{round_}/train/0", function="actor", name="", index=0, attempt=2, worker="actor-1",
                queued_s=1000.0, start_s=1000.1, end_s=1000.2, vcpu_s=0.09, memory_bytes=2**26, cold=True,
            ),
        ),
        "decisions": (
            Decision(
                kind="scaling", rule="marless", outcome="2 actors", reason="p needs 2", inputs={"ratio": {"p": [1.0]}}
            ),
            Decision(kind="sharing", rule="fixed", outcome="p: a+b", reason="fixed: 1 policy in every round"),
        ),
        "distances": (Distances(agents=("a", "b"), values=((0.0, 0.5), (0.5, 0.0))),),
    }  # fmt: skip
    return RoundRecord(**fields | changes)


@pytest.mark.parametrize(
    "changes",
    [
        *({}, {"returns": None}, {"invocations": (), "groups": ()}),
        *({"evaluation": RETURNS}, {"earlier_evaluation": EARLIER}, {"earlier_evaluation": EARLIER, "evaluation": WON}),
    ],
)
def test_a_record_is_read_as_it_was_written(changes):
    assert from_json(record(**changes).to_json()) == record(**changes)


def test_the_time_spent_on_a_round_is_its_own_and_what_lay_before_it_but_no_interruption():
    assert record(1).spent_s == 0.5
    assert record(1, idle_s=0.25).spent_s == 0.75
    assert record(1, idle_s=0.25, ended_s=0.0).spent_s == 0.25  # the clock was set back


def test_a_line_shows_the_figure_that_readers_look_for():
    assert json.loads(record(evaluation=RETURNS).to_json())["evaluation"]["return"] == -20.5


def test_an_evaluation_belongs_to_the_policies_that_it_was_of():
    own = Evaluation(rounds=4, env_steps=400, returns=RETURNS)
    for changes, found in (
        ({}, ()),
        ({"evaluation": RETURNS}, (own,)),
        ({"earlier_evaluation": EARLIER}, (EARLIER,)),
        ({"evaluation": RETURNS, "earlier_evaluation": EARLIER}, (EARLIER, own)),
    ):
        known = record(3, **changes)
        assert known.evaluations == found
        assert known.newest_evaluation == (found[-1].returns if found else None)
    earlier = json.loads(record(3, earlier_evaluation=EARLIER).to_json())["earlier_evaluation"]
    assert (earlier["env_steps"], earlier["returns"]["return"], earlier["returns"]["win_rate"]) == (300, 7.0, 0.75)


@pytest.mark.parametrize("wrong", [{"returns": None}, {"rounds": "3"}, {"env_steps": None}, {"of": 1}])
def test_an_evaluation_without_its_parts_is_no_record(wrong):
    data = json.loads(record(3, earlier_evaluation=EARLIER).to_json())
    data["earlier_evaluation"] |= wrong
    with pytest.raises(ValueError, match="no"):
        from_json(json.dumps(data))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"of": 1}, {"round": "3"}, {"round": True}, {"round": 2**53 + 1}, {"round": 10**400}, {"job": None}),
        *({"ended_s": math.nan}, {"ended_s": math.inf}, {"ended_s": 1e300}, {"idle_s": "0"}, {"idle_s": -math.inf}),
        *({"groups": [{}]}, {"groups": [{"policy": "p", "agents": "ab", "version": 1}]}, {"phases": None}),
        *({"versions": {"p": 0.5}}, {"metrics": {"p": {"kl": "1"}}}, {"distances": [{"agents": [], "values": [1]}]}),
        *({"invocations": {"rows": 1, "of": {"all": 1}}}, {"lanes": [{"lane": 0}]}, {"machines": [{"id": "i"}]}),
        *({"evaluation": {}}, {"evaluation": {"return": 0.0, "win_rate": None}}, {"aggregation": {}}),
    ],
)
def test_what_is_not_as_the_fields_say_is_no_record(wrong):
    with pytest.raises(ValueError, match="no round record"):
        from_json(json.dumps(json.loads(record(3).to_json()) | wrong))


@pytest.mark.parametrize("field", ["returns", "evaluation"])
@pytest.mark.parametrize("wrong", [{"wins": -1}, {"wins": 5}, {"wins": "1"}, {"episodes": 0, "wins": 0}])
def test_no_more_episodes_are_won_than_ended(field, wrong):
    data = json.loads(record(returns=WON, evaluation=WON).to_json())
    data[field] |= wrong
    with pytest.raises(ValueError, match="no round record"):
        from_json(json.dumps(data))


def test_metrics_of_a_job_that_diverged_are_read_as_they_were_written():
    found = from_json(record(metrics={"p": {"kl": math.inf, "loss": math.nan}}).to_json()).metrics["p"]
    assert found["kl"] == math.inf and math.isnan(found["loss"])
    large = replace(RETURNS, mean=1e300)
    assert from_json(record(returns=large).to_json()).returns == large


def summary(**changes) -> dict:
    fields = {
        "job": "j", "state": "SUCCEEDED", "reason": "2 rounds done", "rounds": 2, "env_steps": 200, "greedy": RETURNS,
        "random": None, "wall_s": 1.5, "elapsed_s": 9.5, "env_steps_per_s": 133.3, "run_dir": "/runs/j",
        "cost_usd": 0.25, "accounting": "paper", "marless_version": "0.1.0",
    }  # fmt: skip
    return json.loads(Summary(**fields | changes).to_json())


def test_a_summary_says_what_was_reached_and_what_chance_scores():
    random = EpisodeReturns(episodes=9, mean=-30.0, per_agent={"a": -29.0, "b": -31.0}, standard_error=1.0)
    assert summary(random=random) == {
        "job": "j", "state": "SUCCEEDED", "reason": "2 rounds done", "rounds": 2, "env_steps": 200, "wall_s": 1.5,
        "elapsed_s": 9.5, "env_steps_per_s": 133.3, "run_dir": "/runs/j", "cost_usd": 0.25, "accounting": "paper",
        "marless_version": "0.1.0", "return": -20.5, "random_return": -30.0, "win_rate": None, "random_win_rate": None,
        "return_per_agent": {"a": -20.0, "b": -21.0}, "random_return_per_agent": {"a": -29.0, "b": -31.0},
        "return_standard_error": 0.25, "random_return_standard_error": 1.0,
        "return_episodes": 4, "random_return_episodes": 9,
    }  # fmt: skip


def test_wins_are_shares_of_the_episodes():
    assert (WON.win_rate, RETURNS.win_rate) == (0.75, None)
    assert (summary(greedy=WON)["win_rate"], summary(greedy=WON, random=WON)["random_win_rate"]) == (0.75, 0.75)
    line = record(evaluation=WON).to_json()
    assert from_json(line) == record(evaluation=WON)
    assert json.loads(line)["evaluation"]["win_rate"] == 0.75


def sums(episodes: int, **counted: int) -> SimpleNamespace:
    fields = {"judged": 0, "wins": 0, "broken": 0, "return_scatter": {"a": 0.0}, "mean_scatter": 0.0} | counted
    return SimpleNamespace(episodes=episodes, return_sum={"a": 2.0}, **fields)


def test_wins_of_actors_add_up_and_are_unknown_unless_all_episodes_were_judged():
    assert returns_of([sums(2, judged=2, wins=1), sums(3, judged=3, wins=3)]).wins == 4
    assert returns_of([sums(2, judged=2), sums(0)]).wins == 0
    assert returns_of([sums(2, judged=2, wins=1), sums(3)]).wins is None
    assert returns_of([sums(2)]).wins is None


def test_a_summary_of_a_job_that_never_played_has_no_returns():
    assert (summary(greedy=None)["return"], summary()["random_return"]) == (None, None)


def test_cpu_seconds_of_a_function_inside_a_learner_are_those_of_its_passes():
    [actor] = record().invocations
    policy = replace(actor, function="policy", vcpu_s=7.0, pass_cpu_s=0.5)
    learner = replace(actor, function="learner", vcpu_s=2.0, init_cpu_s=1.5)
    assert [each.cpu_s for each in (actor, policy, learner)] == [0.09, 0.5, 2.0]
    written = record(invocations=(actor, policy, learner))
    assert from_json(written.to_json()) == written
    shown = json.loads(written.to_json())["invocations"]
    assert [each.get("pass_cpu_s") for each in shown] == [None, 0.5, None]
    assert [each.get("init_cpu_s") for each in shown] == [None, None, 1.5]


def test_a_record_of_many_invocations_is_read_as_it_was_written_and_so_is_one_of_before():
    [one] = record().invocations
    many = tuple(replace(one, id=f"j/0/train/{index}", index=index, start_s=1000.1 + index) for index in range(100))
    written = record(invocations=many)
    assert from_json(written.to_json()) == written
    older = json.loads(written.to_json()) | {"invocations": [asdict(each) for each in many]}
    assert from_json(json.dumps(older)) == written
    assert len(written.to_json()) < len(json.dumps(older)) / 4
