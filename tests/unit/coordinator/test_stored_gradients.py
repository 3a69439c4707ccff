"""Gradients in the store, as the coordinator knows them."""

import pytest

from marless.rpc.param_store import PolicyListing, VersionHead
from marless.services.coordinator.execution.asynchronous_state import StoredGradients


def listed(version: int = 1) -> PolicyListing:
    return PolicyListing(VersionHead("", version, 0, 0.0), "", (version,), ())


PRESENT = {
    "agent_0": listed(7),
    "lane/0": listed(),
    "gradient/3/0": listed(),
    "gradient/3/1": listed(2),
    "gradient/4/0": listed(),
    "gradient/5/0": listed(),
}


def test_a_coordinator_finds_what_waits_and_what_is_not_needed():
    gradients = StoredGradients(2)
    assert gradients.find(PRESENT, waiting=[3], learning=[4])
    assert gradients.of(3) == {"gradient/3/0": 1, "gradient/3/1": 2}
    assert gradients.unneeded == {"gradient/5/0": 1}  # that of learner 4 may be asked for again
    assert gradients.waited_s(3) == 0.0


def test_it_sees_that_one_is_lost():
    assert not StoredGradients(2).find(PRESENT, waiting=[3, 9], learning=[])


def test_what_is_refused_is_removed_with_the_next_version():
    gradients = StoredGradients(1)
    for learner in (1, 2):
        gradients.put(learner, {f"gradient/{learner}/0": 1})
    gradients.keep([2])
    assert gradients.unneeded == {"gradient/1/0": 1}
    assert gradients.waited_s(2) > 0.0
    gradients.applied([2])
    assert gradients.unneeded == {}


def test_what_a_learner_of_the_same_number_follows_is_not_removed_before_it():
    """A coordinator that is interrupted forgets events, and gives the same numbers once more."""
    gradients = StoredGradients(1)
    assert gradients.find(PRESENT, waiting=[], learning=[])
    assert "gradient/5/0" in gradients.unneeded
    gradients.begins(5)
    assert "gradient/5/0" not in gradients.unneeded
    assert "gradient/4/0" in gradients.unneeded


@pytest.mark.parametrize("scopes", [1, 2])
def test_what_an_earlier_coordinator_had_applied_has_its_usual_names(scopes):
    names = {f"gradient/6/{scope}": 1 for scope in range(scopes)}
    assert StoredGradients(scopes).of(6) == names
