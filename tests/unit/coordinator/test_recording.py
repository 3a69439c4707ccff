"""What is told of a round that is otherwise than the one before."""

from unittest.mock import Mock

from marless.jobs.record import Decision, GroupRecord
from marless.services.coordinator.execution.recording import LearnerDevices, changes
from tests.unit.jobs.test_record import record

WHY = (
    Decision(kind="scaling", rule="r", outcome="", reason="why so many"),
    Decision(kind="sharing", rule="r", outcome="", reason="why these"),
)


def of(*groups: str, actors: int = 2):
    """A record of groups that are written as their agents, "ab" for a and b."""
    made = tuple(GroupRecord(policy=each[0], agents=tuple(each), version=2) for each in groups)
    return record(5, groups=made, actors=actors, decisions=WHY)


def told(before, after):
    return [(event, fields.get("policies", fields.get("actors"))) for event, fields in changes(before, after)]


def test_nothing_is_told_of_the_first_round_and_of_one_like_the_last():
    assert told(None, of("a", "b")) == told(of("ab", "c"), of("c", "ba")) == []


def test_shares_splits_and_numbers_of_actors_are_told_with_their_reason():
    assert told(of("a", "b", "c"), of("ab", "c")) == [("learners.shared", {"a": ("a", "b")})]
    assert told(of("ab", "c"), of("a", "b", "c")) == [("learners.split", {"a": ("a",), "b": ("b",)})]
    assert told(of("ab", "cd"), of("a", "bcd")) == [
        ("learners.shared", {"b": ("b", "c", "d")}),
        ("learners.split", {"a": ("a",), "b": ("b", "c", "d")}),
    ]
    [(event, fields)] = changes(of("a"), of("a", actors=7))
    assert (event, fields) == (
        "actors.scaled",
        {"round": 6, "before": 2, "actors": 7, "reason": "why so many"},
    )
    [(_, fields)] = changes(of("a", "b"), of("ab"))
    assert (fields["round"], fields["reason"]) == (6, "why these")


def test_what_learners_compute_by_is_recorded_where_it_changes_and_warned_of():
    log = Mock()
    devices = LearnerDevices(log)

    def recorded(*computed_by):
        return devices.news(record(5, computed_by=computed_by)).computed_by

    assert recorded("a cpu") == ("a cpu",)
    assert recorded("a cpu") == recorded() == ()  # an update from the store does not say
    assert not log.warning.called
    assert recorded("a gpu") == ("a gpu",)
    log.warning.assert_called_once_with("learners.differ", round=5, now=["a gpu"], before=["a cpu"])
    assert LearnerDevices(log).news(record(0, computed_by=("a cpu", "a gpu"))).computed_by == ("a cpu", "a gpu")
    assert log.warning.call_count == 2
