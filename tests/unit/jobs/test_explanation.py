"""Changes of a job's groups and actors, and how a hundred rounds of them become a page."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from marless.jobs.explanation import MOST_STRETCHES, changes, chapters
from tests.unit.cost.comparison.synthetic import record

APART = (("agent_0",), ("agent_1",), ("agent_2",), ("agent_3",))
PAIRS = (("agent_0", "agent_1"), ("agent_2", "agent_3"))
OTHERS = (("agent_0", "agent_2"), ("agent_1", "agent_3"))


def job(*rounds: tuple[int, tuple]) -> list:
    """A record for each (actors, groups)."""
    return [
        record(number, actors=actors, groups=groups, reasons=(f"scale {number}", f"group {number}"))
        for number, (actors, groups) in enumerate(rounds)
    ]


def test_every_change_is_found_with_its_decision():
    records = job((4, APART), (4, APART), (2, PAIRS), (2, OTHERS), (3, OTHERS), (3, APART))
    assert [(each.round, each.what, each.before, each.decision.reason) for each in changes(records)] == [
        (0, "start", "", "group 0"),
        (0, "start", "", "scale 0"),
        (2, "share", "agent_0 agent_1 agent_2 agent_3", "group 2"),
        (2, "fewer actors", "4 actors", "scale 2"),
        (3, "regroup", "agent_0+agent_1 agent_2+agent_3", "group 3"),
        (4, "more actors", "2 actors", "scale 4"),
        (5, "split", "agent_0+agent_2 agent_1+agent_3", "group 5"),
    ]


def test_a_group_under_another_name_is_the_same_group():
    renamed = tuple(tuple(reversed(group)) for group in PAIRS)
    assert len(changes(job((2, PAIRS), (2, renamed)))) == 2


def test_rounds_with_equal_groups_are_a_chapter():
    found = chapters(job((4, APART), (4, APART), (2, PAIRS), (2, PAIRS), (2, APART)))
    assert [(each.first, each.last, each.opening.what) for each in found] == [
        (0, 1, "start"),
        (2, 3, "share"),
        (4, 4, "split"),
    ]


def test_actors_are_told_in_rises_and_falls():
    [chapter] = chapters(job(*((actors, APART) for actors in (50, 50, 40, 40, 30, 30, 35, 50))))
    assert [(each.first, each.last, each.before, each.actors) for each in chapter.actors] == [
        (0, 1, None, (50, 50)),
        (2, 5, 50, (40, 40, 30, 30)),
        (6, 7, 30, (35, 50)),
    ]
    assert [(each.decided, each.decision.reason) for each in chapter.actors] == [
        (0, "scale 0"),
        (4, "scale 4"),
        (7, "scale 7"),
    ]


def because(*reasons: tuple[str, str], actors: int = 4) -> list:
    """A record for each pair of why so many actors and why these groups; neither ever changes."""
    return [record(number, actors=actors, groups=PAIRS, reasons=each) for number, each in enumerate(reasons)]


def test_every_round_is_put_under_the_reason_that_was_decided_for_it():
    """Though nothing changes: rounds 6 to 9 have the same actors and groups, and round 8 was decided otherwise."""
    scaling = ["asks for 7.5", "asks for 8", "no curvature is known: 12", "asks for 9"]
    sharing = ["slope 1.5e-05 is not below -1", "slope nan is not below 0.1", "no episode ended", "no episode ended"]
    [chapter] = chapters(because(*zip(scaling, sharing, strict=True)))
    told = [(each.rounds, each.decided, each.decision.reason, each.varies) for each in chapter.actors]
    assert told == [
        ((0, 1), 0, "asks for 7.5", True),
        ((2,), 2, "no curvature is known: 12", False),
        ((3,), 3, "asks for 9", False),
    ]
    told = [(each.rounds, each.decided, each.decision.reason, each.varies) for each in chapter.groups]
    assert told == [((0, 1), 0, sharing[0], True), ((2, 3), 2, "no episode ended", False)]


def test_another_rule_is_another_reason():
    both = because(("why", "why"), ("why", "why"))
    other = dataclasses.replace(both[1].decisions[0], rule="nitro")
    both[1] = dataclasses.replace(both[1], decisions=(other, *both[1].decisions[1:]))
    [chapter] = chapters(both)
    assert [each.decision.rule for each in chapter.actors] == ["marless", "nitro"]


def test_many_stretches_become_one_for_each_kind_of_reason():
    """2 and 3 actors in turn, every third time for another kind of reason."""
    rounds = MOST_STRETCHES + 1
    records = [
        record(number, actors=2 + number % 2, groups=APART, reasons=("none" if number % 3 == 2 else f"{number}", "why"))
        for number in range(rounds)
    ]
    [chapter] = chapters(records)
    assert [(each.rounds, each.successive, each.decision.reason) for each in chapter.actors] == [
        ((0, 1, 3, 4, 6), False, "4"),
        ((2, 5), False, "none"),
    ]
    [calmer] = chapters(records[:-1])
    assert [each.rounds for each in calmer.actors] == [(number,) for number in range(MOST_STRETCHES)]


def test_records_without_decisions_say_what_came_of_them():
    bare = [dataclasses.replace(record(number), decisions=()) for number in range(2)]
    assert [(each.decision.outcome, each.decision.reason) for each in changes(bare)] == [
        ("agent_0 agent_1", ""),
        ("4 actors", ""),
    ]


def test_nothing_recorded_explains_nothing():
    assert changes([]) == chapters([]) == ()


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from([APART, PAIRS, OTHERS])), min_size=1, max_size=40))
def test_chapters_and_stretches_hold_every_round_once(rounds):
    found = chapters(job(*rounds))
    assert [number for each in found for number in range(each.first, each.last + 1)] == list(range(len(rounds)))
    for chapter in found:
        every = [*range(chapter.first, chapter.last + 1)]
        assert sorted(n for each in chapter.groups for n in each.rounds) == every
        assert sorted(n for each in chapter.actors for n in each.rounds) == every
        assert all(
            each.actors == tuple(rounds[n][0] for n in each.rounds) and each.decided in each.rounds
            for each in chapter.actors
        )
