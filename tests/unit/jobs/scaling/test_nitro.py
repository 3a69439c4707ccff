"""Nitro against numbers worked out by hand, as printed and as coded."""

import pytest

from marless.jobs.scaling.nitro import SCALING, NitroConfig
from tests.unit.jobs.scaling.rounds import actors, context, groups, measured


def make(*policies: str, most: int = 64, **settings):
    return SCALING.make(NitroConfig(**settings), context(*policies, most=most))


def test_as_printed_round_by_round():
    # S·d^k·64 with d = 0.96: none → 0.96·64 = 61.4; 1·0.9216·64 = 59.0; 0.5·0.884736·64 = 28.3; 0 → I_min = 64/8.
    assert actors(make("a"), measured("curvature", {"a": [4, 2, 3, 5]}), groups("a")) == [64, 62, 59, 29, 8]


def test_without_decay_only_the_window_counts():
    # n = 3: [2 3 5] → 0; [3 5 4] → 1/2
    assert actors(make("a", window=3, decay=1), measured("curvature", {"a": [4, 2, 3, 5, 4]}), groups("a"))[-2:] == [
        8,
        32,
    ]


def test_as_coded_round_by_round():
    # R = 1/C. Decayed and raw values, newest decayed last, the six newest:
    # k=1: .24                               one value alone → 1       → 64
    # k=2: .24 .25 .4608                     S = 1                     → 64
    # k=3: .24 .25 .4608 .5 .2212            S = 0, floor 64·.96^9     → 44
    # k=4: .25 .4608 .5 .2212 .25 .3397      S = .4252 → 27, floor 33  → 33
    # k=5: .5 .2212 .25 .3397 .4 .6523       S = 1                     → 64
    history = measured("curvature", {"a": [4, 2, 4, 2.5, 1.25]})
    assert actors(make("a", variant="coded"), history, groups("a")) == [64, 64, 64, 44, 33, 64]
    score = make("a", variant="coded").decide(history[:4], groups("a")).inputs["score"]
    assert score == {"a": pytest.approx(0.42521, abs=1e-5)}


def test_the_code_s_window_holds_values_not_rounds():
    # n = 3 holds R = 1/4, its copy and 1/2; the 1 of the first round is out of it though it is three rounds ago
    history = measured("curvature", {"a": [1, 4, 2]}, first=40)
    found = make("a", window=3, decay=1, variant="coded").decide(history, groups("a"))
    assert found.inputs["score"] == {"a": 1.0}


def test_the_code_forces_boosts_in_the_first_rounds():
    history = measured("curvature", {"a": [2.0**power for power in range(8)]})  # 1/C is always the lowest
    found = [make("a", variant="coded").decide(history[:k], groups("a")).inputs["min"] for k in range(1, 9)]
    assert found == [61, 54, 44, 33, 23, 14, 8, 8]


def test_the_code_cuts_fractions_off():
    history = measured("curvature", {"a": [4, 2, 3]}, first=200)  # so late that its floor, 0.999^(203²), is nothing
    found = make("a", most=50, decay=0.999, min_actors=1, variant="coded").decide(history, groups("a")).inputs
    # 1/4·0.999^201, 1/4, 1/2·0.999^202, 1/2, 1/3·0.999^203: (0.27207 - 0.20446) / (0.5 - 0.20446) · 50 = 11.4
    assert (found["min"], found["actors"]) == (1, {"a": 11})
    printed = make("a", most=50, decay=1, min_actors=1).decide(history, groups("a"))
    assert printed.inputs["actors"] == {"a": 25}


def test_policies_average_what_they_ask_for():
    history = measured("curvature", {"a": [4, 2, 2], "b": [2, 4, 4]})  # 64 and 8 actors
    decision = make("a", "b", decay=1).decide(history, groups("a", "b"))
    assert (decision.actors, decision.inputs["actors"]) == (36, {"a": 64, "b": 8})
    assert decision.reason == (
        "round 3 has a mean score of 0.50 over 2 policies, decay 1 to the power of 3 included: 36 of 64 actors"
    )


@pytest.mark.parametrize("variant", ["printed", "coded"])
@pytest.mark.parametrize("values", [[3.0, 3.0], [1.0, None], [None, None], [float("inf"), 0.0]])
def test_what_cannot_be_compared_scores_one(variant, values):
    decision = make("a", decay=1, variant=variant).decide(measured("curvature", {"a": values}), groups("a"))
    assert (decision.actors, decision.inputs["score"]) == (64, {"a": 1.0})
