"""What is concluded from measured gradients, against numbers worked out by hand."""

import json
import math

import pytest

from marless.jobs.evidence import GradientEvidence


def evidence(*rounds, **constant):
    found = GradientEvidence()
    for each in rounds:
        found = found.after({f"gradient_{name}": value for name, value in (constant | each).items()})
    return found


def test_the_noise_scale_is_a_ratio_of_means_and_needs_three_measurements():
    rounds = [{"trace": 100.0, "signal": 2.0}, {"trace": 200.0, "signal": 2.0}]
    assert evidence(*rounds).noise_scale is None
    decay = 0.5 ** (1 / 8)
    found = evidence(*rounds, {"trace": 300.0, "signal": 2.0})
    mean = (100 * decay**2 + 200 * decay + 300) / (decay**2 + decay + 1)
    assert found.noise_scale == pytest.approx(mean / 2)


def test_the_standard_error_of_the_signal_is_added_to_it():
    """Signals 3, −3, 3, −3 with nearly equal weights: a mean below 0 counts as 0, and its error is about 3/√3."""
    noise_scale = evidence(*({"signal": sign * 3.0} for sign in (1, -1, 1, -1)), trace=30.0).noise_scale
    assert noise_scale == pytest.approx(30 / math.sqrt(3), rel=0.02)
    d = 0.5 ** (1 / 8)
    w, v = d**2 + d + 1, d**4 + d**2 + 1
    mean = (2 * d**2 + 4 * d + 6) / w
    error = math.sqrt(((4 * d**2 + 16 * d + 36) / w - mean**2) / (w * w / v - 1))
    found = evidence(*({"signal": value} for value in (2.0, 4.0, 6.0)), trace=30.0).noise_scale
    assert found == pytest.approx(30 / (mean + error))


def test_rounds_without_measurement_and_invalid_ones_change_nothing():
    found = evidence({"trace": 1.0, "signal": 1.0})
    assert found.after({}) == found.after({"entropy": 1.0}) == found
    assert found.after({"gradient_trace": math.nan, "gradient_signal": 1.0}) == found
    assert found.after({"gradient_trace": 1e200, "gradient_signal": 1.0}) == found


def test_gradients_of_nothing_have_no_noise_scale():
    assert evidence(*[{"trace": 0.0, "signal": 0.0}] * 5).noise_scale is None


@pytest.mark.parametrize(
    ("common", "own", "opposed"),
    [
        ([-1.0, -1.2, -0.8, -1.0], [2.0, 2.1, 1.9, 2.0], True),
        ([-1.0, 1.5, -1.0, -1.2], [2.0, 2.0, 2.0, 2.0], False),  # its error is as large as it
        ([-1.0, 0.5, -1.0, 0.4], [2.0, 2.0, 2.0, 2.0], False),  # more than one error below 0, but not two
        ([-1.0, -1.2, -0.8, -1.0], [1.0, -1.0, 0.1, 0.0], False),  # no agent has a gradient of its own
        ([0.1, 0.2, 0.1, 0.1], [2.0, 2.0, 2.0, 2.0], False),
    ],
)
def test_agents_are_opposed_only_beyond_two_standard_errors(common, own, opposed):
    rounds = [{"common": c, "own": o} for c, o in zip(common, own, strict=True)] * 2
    assert evidence(*rounds, trace=1.0, signal=1.0).opposed is opposed
    assert not evidence(*rounds[:7], trace=1.0, signal=1.0).opposed  # not all early measurements


def test_a_resumed_job_reads_the_same():
    found = evidence(*[{"trace": 0.1, "signal": 0.3, "own": 1 / 3, "common": -0.7}] * 4)
    assert GradientEvidence.read(json.loads(json.dumps(found.to_json()))) == found
    assert GradientEvidence.read({}) == GradientEvidence()
