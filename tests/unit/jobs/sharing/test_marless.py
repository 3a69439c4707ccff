"""The sharing policy: a trace worked out by hand, what it does when something is missing, and what always holds."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marless.core.errors import SpecError
from marless.core.group import Group
from marless.jobs.job import prepare
from marless.jobs.record import Distances
from marless.jobs.sharing.marless import SHARING
from marless.jobs.spec import from_json, parse
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces
from marless.learning.similarity import measures
from tests.unit.jobs.sharing import runs

JOB = {"env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 3}}
PLACES = {"a": 0.0, "b": 10.0, "c": 0.1, "d": 10.2, "e": 0.4, "f": 11.0}
"""Where agents stand on a line: a, c, e are alike, and b, d, f; e is a little apart of the first, f of the second."""


def apart(agents=runs.AGENTS, places=PLACES):
    values = tuple(tuple(abs(places[i] - places[j]) for j in agents) for i in agents)
    return Distances(agents=tuple(agents), values=values)


def flat(value=9.0, agents=runs.AGENTS):
    return dict.fromkeys(agents, value)


def own(source=lambda agent: ""):
    return tuple(Group(agent, (agent,), source(agent)) for agent in runs.AGENTS)


# Rounds 0 … 9 climb to 9, then nothing changes. With 6 agents the slope of the window that ends m rounds after the
# climb is 6 / (9 · 82.5) · Σ (i − 4.5) · min(m + i − 9, 0): for m = 7, 6 · 12.5 / 742.5 = 0.101; for m = 8,
# 6 · 4.5 / 742.5 = 0.036, which is the first below 0.1. From then on the slope is 0 whenever the window is full.
CLIMB = [flat(float(min(round_, 9))) for round_ in range(70)]
CONVEX = {"c": 3.0, "d": 2.0, "e": 2.5}


@pytest.fixture(scope="module")
def trace():
    return runs.lived(runs.policy(), CLIMB, curvature=CONVEX, measured=lambda _: [apart()])


def test_it_changes_in_the_rounds_worked_out_by_hand(trace):
    decisions, asked = trace
    changes = [
        t
        for t in range(1, 71)
        if decisions[t].groups != tuple(Group(g.policy, g.agents) for g in decisions[t - 1].groups)
    ]
    # Shares for rounds 18 … 27 and 38 … 47; the third time, 8 groups are clamped to 6, which changes nothing.
    assert changes == [18, 28, 38, 48]
    assert asked == [17, 37], "the third enabling needs no similarity"
    assert [decisions[t].inputs["enablings"] for t in (17, 18, 37, 38, 57, 58, 70)] == [0, 1, 1, 2, 2, 3, 3]
    assert [decisions[t].inputs["sharing"] for t in (17, 18, 27, 28, 58, 67, 68)] == [0, 1, 1, 0, 1, 1, 0]


def test_agents_share_until_returns_fall_if_they_are_told_to():
    fall = [flat(9.0 - 0.9 * m) for m in range(1, 8)]
    policy = runs.policy(split_threshold=-0.1)
    decisions, asked = runs.lived(policy, CLIMB[:40] + fall, curvature=CONVEX, measured=lambda _: [apart()])
    sharing = [decision.inputs["sharing"] for decision in decisions]
    # Scaled by 9 and summed over six, each round of the fall is 0.6 lower. With the last two 0.6 and 1.2 below the top,
    # the slope is −(3.5 · 0.6 + 4.5 · 1.2) / 82.5 = −0.091; with three −(2.5 · 0.6 + 3.5 · 1.2 + 4.5 · 1.8) / 82.5.
    assert [t for t in range(1, len(sharing)) if sharing[t] != sharing[t - 1]] == [18, 43]
    assert decisions[43].reason.startswith("splits: slope -0.167 over 10 rounds is below -0.1")
    assert asked == [17]


def test_its_groups_start_from_the_member_with_the_highest_ratio_and_are_named_by_it(trace):
    decisions, _ = trace
    assert decisions[17].groups == own()
    assert decisions[18].groups == (Group("c", ("a", "c", "e")), Group("d", ("b", "d", "f")))
    assert decisions[38].groups == (
        Group("c", ("a", "c")),
        Group("d", ("b", "d")),
        Group("e", ("e",)),
        Group("f", ("f",)),
    )


def test_a_split_gives_every_agent_a_copy_of_what_it_shared(trace):
    decisions, _ = trace
    shared = {"a": "c", "c": "", "e": "c", "b": "d", "d": "", "f": "d"}
    assert decisions[28].groups == own(shared.__getitem__)
    assert decisions[29].groups == own(), "once they have started from it, it is behind them"
    assert decisions[48].groups == own(lambda agent: {"a": "c", "b": "d"}.get(agent, ""))


def test_a_decision_says_what_it_was_made_from(trace):
    decisions, _ = trace
    assert decisions[0].reason == "independent: the first round"
    assert decisions[9].reason == "independent: 9 of 10 rounds of the trend are known"
    assert decisions[17].reason == "independent: slope 0.101 is not below 0.1"
    assert decisions[18].reason == "begins to share: slope 0.0364 over 10 rounds is below 0.1; 6 policies become 2"
    assert (
        decisions[28].reason
        == "splits: slope 0 over 10 rounds is below 0.1; every agent goes on with a copy of what it shared"
    )
    inputs = decisions[18].inputs
    assert inputs["slope"] == pytest.approx(6 * 4.5 / 742.5)
    assert inputs["trend"] == pytest.approx([6 * min(8 + i, 9) / 9 for i in range(10)])
    assert inputs["clusters"] == {"agent": 2}
    assert inputs["labels"] == {"agent": [0, 1, 0, 1, 0, 1]}
    assert inputs["curvature"] == {agent: CONVEX.get(agent, 1.0) for agent in runs.AGENTS}
    assert inputs["distances"]["agent"] == [list(row) for row in apart().values]
    assert decisions[28].inputs["sources"] == {"a": "c", "c": "c", "e": "c", "b": "d", "d": "d", "f": "d"}
    kept = [each.inputs for each in decisions]
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept, "a decision is the same from memory and from its file"


def test_what_was_asked_for_and_not_measured_is_asked_for_again():
    outcomes = [flat(float(9 - abs(round_ - 9))) for round_ in range(18)]  # up to round 9, then down

    def measured(number):
        return [apart()] if number >= 16 else []

    decisions, asked = runs.lived(runs.policy(), outcomes, measured=measured)
    # After round 13 the window holds 4 … 9 … 5, whose slope is 6 · 12.5 / 742.5; after round 14 it is the negative.
    assert decisions[14].reason == "independent: slope 0.101 is not below 0.1"
    assert asked == [14, 15, 16]
    assert all(decision.groups == own() for decision in decisions[:17])
    assert decisions[15].reason == (
        "independent: slope -0.101 over 10 rounds is below 0.1, but it was not measured how alike the agents "
        "of class agent are; it is asked for again"
    )
    assert [decision.inputs["enablings"] for decision in decisions[16:18]] == [0, 1]
    assert [group.policy for group in decisions[17].groups] == ["a", "b"]


def test_it_does_not_insist_once_returns_rise_again():
    outcomes = [flat(0.0)] * 10 + [flat(float(round_)) for round_ in range(1, 8)]
    decisions, asked = runs.lived(runs.policy(), outcomes)
    assert asked == [9], "a single rise in round 10 makes a slope of 6 · 4.5 / 82.5"
    assert all(decision.groups == own() for decision in decisions)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_distances_that_are_no_numbers_are_none(bad):
    values = [list(row) for row in apart().values]
    values[0][1] = values[1][0] = bad
    broken = Distances(agents=runs.AGENTS, values=tuple(map(tuple, values)))
    decisions, asked = runs.lived(runs.policy(), CLIMB[:18], measured=lambda _: [broken])
    assert asked == [17]
    assert "it was not measured" in decisions[18].reason


def test_distances_are_read_by_their_agents_names():
    shuffled = apart(tuple("fedcba"))
    decisions, _ = runs.lived(runs.policy(), CLIMB[:18], measured=lambda _: [shuffled])
    assert [group.agents for group in decisions[18].groups] == [("a", "c", "e"), ("b", "d", "f")]


def test_rounds_in_which_no_episode_ended_are_passed_over():
    outcomes = [each for number, value in enumerate(CLIMB[:18]) for each in ([None] * (number % 3 == 0) + [value])]
    decisions, asked = runs.lived(runs.policy(), outcomes, measured=lambda _: [apart()])
    assert asked == [len(outcomes) - 1]
    assert decisions[1].reason == "independent: no episode ended in round 1"
    assert decisions[-1].inputs["enablings"] == 1


def test_unknown_ratios_leave_a_group_to_its_first_member():
    unknown = dict.fromkeys(runs.AGENTS, float("nan"))
    decisions, _ = runs.lived(runs.policy(), CLIMB[:18], curvature=unknown, measured=lambda _: [apart()])
    assert [group.policy for group in decisions[18].groups] == ["a", "b"]
    assert set(decisions[18].inputs["curvature"].values()) == {None}


def test_only_agents_of_one_class_share():
    places = {"h": 0.0, "i": 1.0, "p": 0.0, "q": 0.1, "r": 5.0, "s": 5.2}

    def measured(_):
        return [apart(("h", "i"), places), apart(tuple("pqrs"), places)]

    outcomes = [flat(float(min(t, 9)), (*"hi", *"pqrs")) for t in range(50)]
    decisions, asked = runs.lived(runs.policy(runs.MIXED), outcomes, measured=measured)
    assert [group.agents for group in decisions[18].groups] == [("h", "i"), tuple("pqrs")], "2 groups: one per class"
    assert asked == [37], "one group per class needs no similarity"
    assert [group.agents for group in decisions[38].groups] == [("h",), ("i",), ("p", "q"), ("r", "s")]


@settings(max_examples=25)
@given(st.data())
@pytest.mark.parametrize("spaces", [runs.SIX, runs.MIXED])
def test_groups_always_part_the_agents_within_their_classes(spaces, data):
    sharing = runs.policy(
        spaces,
        window=data.draw(st.integers(2, 4)),
        grouping=data.draw(st.sampled_from(["kmeans", "kmedoids"])),
        schedule=data.draw(st.sampled_from(["printed", "figure"])),
        range=data.draw(st.sampled_from(["history", "window", "then"])),
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    outcomes = [
        None if rng.random() < 0.1 else {agent: float(rng.normal()) for agent in spaces.agents} for _ in range(20)
    ]

    def measured(_):
        if rng.random() < 0.3:
            return []
        return [
            apart(each.agents, dict(zip(each.agents, rng.random(len(each.agents)), strict=True)))
            for each in spaces.classes
        ]

    ratios = {agent: float(rng.normal()) for agent in spaces.agents}
    decisions, _ = runs.lived(sharing, outcomes, curvature=ratios, measured=measured)
    published = set(spaces.agents)
    for decision in decisions:
        assert sorted(agent for group in decision.groups for agent in group.agents) == sorted(spaces.agents)
        for group in decision.groups:
            assert len({spaces.class_of(agent).name for agent in group.agents}) == 1
            assert group.policy in group.agents
            assert group.start in published
        assert decision.inputs["sharing"] or all(len(group.agents) == 1 for group in decision.groups)


@pytest.mark.parametrize(
    ("sharing", "sentence"),
    [
        ({"window": 1}, "job.yaml: sharing.window: got 1; allowed: at least 2"),
        ({"windw": 1}, "job.yaml: sharing.windw: unknown field 'windw'; did you mean 'window'?"),
        ({"similarity": "kd"}, "job.yaml: sharing.similarity: unknown similarity 'kd'; did you mean 'kde'?"),
        ({"similarity": {"sampels": 9}}, "job.yaml: sharing.similarity.sampels: unknown field 'sampels'; did you mean"),
        ({"similarity": {"samples": 501}}, "job.yaml: sharing.similarity.samples: got 501; allowed: at most 500"),
        ({"grouping": "means"}, "job.yaml: sharing.grouping: got 'means'; allowed: 'kmeans' or 'kmedoids'"),
        ({"threshold": float("nan")}, "job.yaml: sharing.threshold: got nan; allowed: a finite number"),
    ],
)
def test_a_mistake_is_one_sentence(sharing, sentence):
    with pytest.raises(SpecError) as caught:
        parse({**JOB, "sharing": {"name": "marless", **sharing}}, "job.yaml")
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_spec_is_read_as_it_was_written():
    spec = parse({**JOB, "sharing": {"name": "marless", "similarity": {"name": "kde", "dimensions": 3}}}, "job.yaml")
    assert from_json(spec.to_json()) == spec
    assert spec.sharing.similarity.dimensions == 3
    assert parse({**JOB, "sharing": "marless"}, "job.yaml").sharing.similarity.name == "kde"


def test_naming_it_loads_no_numpy():
    document = {**JOB, "sharing": "marless"}
    program = f"import sys; from marless.jobs.spec import parse; parse({document}, 'x'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"numpy", "scipy", "sklearn", "torch"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("sharing", "sentence"),
    [
        ({"threshold": -1}, r"^sharing\.threshold: got -1, but with 3 agents"),
        ({"groups": "shared"}, r"^sharing\.groups: marless begins with a policy per agent"),
    ],
)
def test_what_cannot_work_is_refused_before_the_job_starts(sharing, sentence):
    with pytest.raises(SpecError, match=sentence):
        prepare(parse({**JOB, "sharing": {"name": "marless", **sharing}}, "job.yaml"))


def test_a_team_in_which_no_two_could_share_is_refused():
    pair = EnvSpaces((AgentClass("agent", ("a", "b"), 4, Discrete(3)),), 0, 25)
    with pytest.raises(SpecError, match=r"^sharing\.name: marless would never share: the first time it makes 2 groups"):
        runs.policy(pair, threshold=0.01)


@pytest.mark.parametrize("config", [{}, {"grouping": "kmedoids"}, {"similarity": "policy_distance"}])
def test_a_missing_package_is_refused_with_the_extra_to_install(config, monkeypatch):
    monkeypatch.setattr(measures, "find_spec", lambda _: None)
    with pytest.raises(
        SpecError, match=r"^sharing\.(similarity|grouping): \w+ needs .*: pip install 'marless\[sharing\]'$"
    ):
        runs.policy(**config)


def test_it_asks_learners_for_curvature_and_its_similarity():
    config = SHARING.config_type.model_validate({"similarity": "policy_distance"})
    assert SHARING.curvature(config)
    assert SHARING.similarity(config).name == "policy_distance"
    job = prepare(parse({**JOB, "sharing": "marless"}, "job.yaml"))
    assert job.curvature
