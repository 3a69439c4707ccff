"""Agents share until their gradients are opposed."""

from dataclasses import replace

from marless.jobs.record import Decision, from_json
from marless.jobs.sharing.auto import SHARING
from marless.jobs.sharing.base import initial_groups
from tests.unit.jobs.sharing.runs import MIXED, SIX, record


def played(spaces, common, rounds):
    """The decisions of a job in which `common(policy, round)` is measured, in every round; own gradients are 1."""
    config = SHARING.config_type.model_validate({})
    policy = SHARING.make(config, initial_groups(config.groups, spaces), spaces)
    history, decisions = [], []
    for number in range(rounds):
        decision = policy.decide(history)
        assert policy.decide([from_json(each.to_json()) for each in history]) == decision
        decisions.append(decision)
        made = record(number, decision, None)
        metrics = {
            group.policy: {
                "gradient_trace": 1.0,
                "gradient_signal": 1.0,
                "gradient_own": 1.0,
                "gradient_common": common(group.policy, number),
            }
            for group in decision.groups
            if len(group.agents) > 1
        }
        kept = Decision(kind="sharing", rule="auto", outcome="", reason=decision.reason, inputs=decision.inputs)
        history.append(replace(made, metrics=metrics, decisions=(made.decisions[0], kept)))
    return decisions


def test_a_policy_per_class_while_agents_agree():
    decisions = played(MIXED, lambda policy, number: 0.4, 30)
    assert {tuple(group.policy for group in each.groups) for each in decisions} == {("hunter", "prey")}
    assert decisions[-1].reason == (
        "shares: agreement of agents' gradients (1: the same, below 0: opposed): hunter 0.4, prey 0.4"
    )


def test_agents_that_are_opposed_go_on_apart_with_copies():
    decisions = played(MIXED, lambda policy, number: -0.3 if policy == "prey" and number >= 10 else 0.5, 60)
    sizes = [len(each.groups) for each in decisions]
    split = sizes.index(5)
    assert split > 12
    assert sizes[:split] == [2] * split
    assert sizes[split:] == [5] * (60 - split)
    groups = {group.policy: group for group in decisions[split].groups}
    assert groups["hunter"].agents == ("h", "i")
    assert [(groups[agent].agents, groups[agent].source) for agent in "pqrs"] == [((a,), "prey") for a in "pqrs"]
    assert {group.source for group in decisions[split + 1].groups} == {""}
    assert decisions[split].reason == "splits: the gradients of the agents of prey point in opposite directions"


def test_all_apart_there_is_nothing_to_decide():
    decisions = played(SIX, lambda policy, number: -1.0, 12)
    assert [len(each.groups) for each in decisions] == [1] * 8 + [6] * 4
    assert decisions[-1].reason == "independent: no policy is shared"


def test_what_is_not_known_is_said():
    drowned = SHARING.make(SHARING.config_type.model_validate({}), initial_groups("shared", SIX), SIX)
    first = drowned.decide([])
    made = record(0, first, None)
    kept = Decision(kind="sharing", rule="auto", outcome="", reason=first.reason, inputs=first.inputs)
    made = replace(made, decisions=(made.decisions[0], kept))
    assert drowned.decide([made]).reason.endswith(": agent not measured")
    statistics = {"gradient_trace": 9.0, "gradient_signal": -1.0, "gradient_own": -1.0, "gradient_common": 0.5}
    assert drowned.decide([replace(made, metrics={"agent": statistics})]).reason.endswith(": agent drowned in noise")
