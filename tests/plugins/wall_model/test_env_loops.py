"""Long runs: their figures against NumPy's own, and the wall models that set the stress in each step."""

import numpy as np
import pytest

from marless.core.errors import SpecError
from marless_wall_model.closed_loop import STRESS_LAWS, Loop, Moments
from marless_wall_model.controllers import CONTROLLERS
from marless_wall_model.options import WallModelOptions
from tests.plugins.wall_model.conftest import SMALL

OPTIONS = WallModelOptions(**{**SMALL, "spin_up": 1.0})


def loop(**changes: object) -> Loop:
    return Loop(options=OPTIONS, re_tau=3000.0, **{"duration": 0.42, "left_out": 0.1, **changes})


def test_moments_are_those_of_all_samples_together():
    rng, moments = np.random.default_rng(0), Moments(3)
    stress, noise = rng.normal(1, 0.3, (50, 7)), rng.normal(size=(50, 3, 7))
    speed = 20 + noise + np.array([0.0, 2.0, -5.0])[:, None] * stress[:, None]
    for each in range(50):
        moments.add(stress[each], speed[each])
    expected = [np.corrcoef(stress.ravel(), speed[:, layer].ravel())[0, 1] for layer in range(3)]
    assert moments.mean_stress() == pytest.approx(stress.mean())
    assert moments.largest_correlation() == pytest.approx(max(expected)) and max(expected) == expected[1]


def test_a_stress_that_stays_has_no_correlation():
    idle = loop(start_stress=0.81).controlled("llwm", CONTROLLERS["no-op"])
    assert (idle.friction_ratio, idle.correlation) == (pytest.approx(0.9), 0.0)
    assert len(idle.times) == 20 and idle.times[-1] == pytest.approx(0.42)
    assert idle.stresses == pytest.approx([0.81] * 20)


def test_the_first_part_does_not_count():
    def fall(channel):
        """A stress of 4 until time 0.21 of the run, and of 1 later."""
        return np.full(channel.grid.wall_shape, 4.0 if channel.time < started + 0.2099 else 1.0)

    env = loop()._env("llwm")
    env.reset(0)
    started = env.flows[0].channel.time
    run = loop(left_out=0.22).by_law(fall)
    assert run.friction_ratio == pytest.approx(1.0) and run.stresses[0] == 4.0
    assert loop(left_out=0.0).by_law(fall).friction_ratio > 1.4


def test_the_equilibrium_models_stress_follows_the_flow_and_the_controllers_does_less():
    by_law = {name: loop(duration=1.05).by_law(law) for name, law in STRESS_LAWS.items()}
    by_hand = loop(duration=1.05).controlled("llwm", CONTROLLERS["log-law"])
    assert min(each.correlation for each in by_law.values()) > 0.95 > by_hand.correlation
    # Without a model, the coarse grid has nearly no stress.
    assert by_law["none"].friction_ratio < 0.6 < by_law["equilibrium"].friction_ratio
    assert by_hand.stresses[-1] > 0.75


def test_a_run_that_blows_up_is_refused():
    def explode(channel):
        channel.u[0, 0, 0] = np.nan
        return np.ones(channel.grid.wall_shape)

    with pytest.raises(SpecError, match="the flow at Re_τ 3000 blew up after 0"):
        loop().by_law(explode)
