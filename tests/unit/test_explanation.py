"""Changes of a job's groups and actors, and how a hundred rounds of them become a page."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from marless.explanation import MOST_STRETCHES, changes, chapters
from tests.unit.comparison.synthetic import record

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
    assert [(each.first, each.last, each.before, each.actors) for each in chapter.stretches] == [
        (0, 1, None, (50, 50)),
        (2, 5, 50, (40, 40, 30, 30)),
        (6, 7, 30, (35, 50)),
    ]
    assert [each.decision.reason for each in chapter.stretches] == ["scale 0", "scale 4", "scale 7"]


def test_restless_actors_become_one_line():
    # 2 and 3 in turn: every stretch is a round.
    rounds = MOST_STRETCHES + 1
    [chapter] = chapters(job(*((2 + number % 2, APART) for number in range(rounds))))
    [stretch] = chapter.stretches
    assert (stretch.first, stretch.last, stretch.turns) == (0, rounds - 1, MOST_STRETCHES + 1)
    [calmer] = chapters(job(*((2 + number % 2, APART) for number in range(rounds - 1))))
    assert [each.turns for each in calmer.stretches] == [1] * MOST_STRETCHES


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
        numbers = [n for each in chapter.stretches for n in range(each.first, each.last + 1)]
        assert numbers == list(range(chapter.first, chapter.last + 1))
        assert [actors for each in chapter.stretches for actors in each.actors] == [rounds[n][0] for n in numbers]
