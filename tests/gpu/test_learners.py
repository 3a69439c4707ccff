"""Every learner on a GPU: it keeps the contract, is close to the CPU, and computes the same bits again."""

from __future__ import annotations

import pytest

from marless.learning.algos.contract import check_algorithm, fingerprint, trained_states
from marless.learning.algos.ppo import learner as ppo_learner
from marless.learning.algos.training.devices import compute_again_alike
from marless.learning.algos.training.precision import LIMIT, gradient_error
from tests.gpu.device import DEVICE, needs_device
from tests.unit.learning.algos.simulated_device_cases import apart
from tests.unit.learning.algos.test_contract import TRIALS, configured, only
from tests.unit.learning.algos.training.test_precision import DISCRETE, PIXELS, load

pytestmark = [pytest.mark.gpu, needs_device]
CLOSE = 1e-3
"""A GPU sums in another order than a CPU, and Adam's first steps divide by what was summed."""
CAPTURED = ("ippo", "mappo", "impact")
JOBS = [(trial, case) for trial, (*_, cases) in TRIALS.items() for case in cases]


@pytest.fixture(autouse=True)
def deterministic():
    """As learner workers compute where `learner.deterministic` is set; `make test-gpu` sets what cuBLAS reads."""
    compute_again_alike(DEVICE, wanted=True)
    yield
    compute_again_alike(DEVICE, wanted=False)


@pytest.mark.parametrize(("trial", "case"), JOBS)
def test_contract_is_kept(trial, case):
    with only(case):
        assert check_algorithm(*configured(trial), one_step=TRIALS[trial][1], device=DEVICE) == (case,)


@pytest.mark.parametrize(("trial", "case"), JOBS)
def test_round_is_close_to_one_on_the_cpu(trial, case):
    with only(case):
        here = trained_states(*configured(trial), DEVICE, rounds=1)
        assert apart(here, trained_states(*configured(trial), rounds=1)) < CLOSE


@pytest.mark.parametrize(("trial", "case"), JOBS)
def test_same_bits_again(trial, case):
    with only(case):
        assert fingerprint(*configured(trial), DEVICE) == fingerprint(*configured(trial), DEVICE)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(("trial", "case"), [job for job in JOBS if job[0].partition(",")[0] in CAPTURED])
def test_captured_gradient_steps_are_as_others(trial, case, monkeypatch):
    with only(case):
        captured = trained_states(*configured(trial), DEVICE, rounds=2)
        monkeypatch.setattr(ppo_learner, "graphs_of", lambda device: None)
        assert apart(captured, trained_states(*configured(trial), DEVICE, rounds=2)) < CLOSE


@pytest.mark.parametrize(("spaces", "changes"), [(DISCRETE, {}), (PIXELS, {"net": "nature", "hidden": (16,)})])
def test_gradients_in_bfloat16_are_close(spaces, changes):
    assert 1e-5 < gradient_error(load(spaces, **changes), DEVICE) < LIMIT
