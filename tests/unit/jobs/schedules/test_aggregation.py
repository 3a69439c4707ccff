"""The section `aggregation`: each rule takes its own settings, and what contradicts itself is refused with a reason."""

import pytest
from pydantic import TypeAdapter, ValidationError

from marless.core.validation import Strict, validation_sentences
from marless.jobs.schedules.stellaris import Aggregation


class Section(Strict):
    """A schedule that embeds the section."""

    aggregation: Aggregation


def refusals(**settings: object) -> list[str]:
    with pytest.raises(ValidationError) as refused:
        Section.model_validate({"aggregation": settings})
    return validation_sentences(refused.value, Section, {})


@pytest.mark.parametrize(
    ("rule", "weights"),
    [("stellaris", "root"), ("softsync", "reciprocal"), ("ssp", "equal"), ("async", "equal"), ("sync", "equal")],
)
def test_each_rule_has_the_weights_of_its_paper(rule, weights):
    made = TypeAdapter(Aggregation).validate_python({"rule": rule})
    assert (made.rule, made.weights, made.step) == (rule, weights, "average")
    assert TypeAdapter(Aggregation).validate_python(rule) == made
    section = Section(aggregation=made)
    assert Section.model_validate_json(section.model_dump_json()) == section


def test_weights_and_rule_are_chosen_apart():
    made = TypeAdapter(Aggregation).validate_python({"rule": "async", "weights": "root", "root": 2})
    assert (made.weights, made.root) == ("root", 2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rule": "async", "root": 2}, "root belongs to weights: root, and weights is equal"),
        ({"rule": "stellaris", "bound": "authors", "first_round": 4}, "first_round belongs to bound: printed"),
        ({"rule": "stellaris", "decay": 0, "escape": False}, "decay: 0 without the escape waits for ever"),
        ({"rule": "stellaris", "max_staleness": 0}, "max_staleness: 0 drops every stale gradient"),
        ({"rule": "softsync", "gradients": 65}, "gradients is 65, but only 64 may wait"),
        ({"rule": "ssp", "staleness": 9, "max_staleness": 8}, "staleness allows 9, and max_staleness drops"),
        ({"rule": "sync", "decay": 0.5}, "decay"),
        ({"rule": "stellaris", "decay": 1.5}, "got 1.5; allowed: at most 1"),
        ({"rule": "best"}, "best"),
    ],
)
def test_what_contradicts_itself_is_refused_in_one_sentence(settings, said):
    [sentence] = refusals(**settings)
    assert said in sentence
    assert sentence.startswith("aggregation")
    assert "tagged-union" not in sentence
