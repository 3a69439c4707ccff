"""The environment against hand-computed numbers: agents, states, actions, rewards, ends, saves, refusals."""

import math

import numpy as np
import pytest
from safetensors.numpy import load_file
from structlog.testing import capture_logs

from marless.core.errors import CorruptError, SpecError
from marless.learning.envs import registry
from marless.learning.envs.base import Box
from marless.learning.envs.contract import check_env
from marless_wall_model.controllers import CONTROLLERS, episode_returns
from marless_wall_model.entries import llwm, vwm
from marless_wall_model.env import WallModel
from marless_wall_model.flow import AgentFlow, start_stress
from marless_wall_model.options import GRIDS, WallModelOptions
from marless_wall_model.placing import AgentGrid
from marless_wall_model.snapshots import MOST_BLOWN_UP, Recipe, cache_directory
from tests.plugins.wall_model.conftest import SMALL

FULL = {**SMALL, "grid": {"nx": 8, "ny": 20, "nz": 8, "walls": 2}, "stride": 4}


def small(**changes: object) -> WallModelOptions:
    return WallModelOptions(**{**SMALL, **changes})


def factors(env: WallModel, value: float) -> tuple[np.ndarray]:
    return (np.full((len(env.spaces.agents), env.batch, 1), value, np.float32),)


@pytest.mark.parametrize(
    ("name", "options"), [("wall_model/llwm", SMALL), ("wall_model/vwm", SMALL), ("wall_model/llwm", FULL)]
)
def test_environment_keeps_the_contract(name, options):
    check_env(lambda batch: registry.make(name, options, batch), steps=6)


def test_agents_stand_on_every_other_cell_of_each_wall():
    placing = AgentGrid(llwm(FULL, 1).options.geometry, 4)
    assert placing.names[:5] == ("bottom_0_0", "bottom_0_4", "bottom_4_0", "bottom_4_4", "top_0_0")
    assert llwm(FULL, 1).spaces.classes[0].action == Box((0.9,), (1.1,))
    assert [len(AgentGrid(grid, stride).names) for grid, stride in GRIDS.values()] == [64, 256, 1024]


def test_the_stress_between_agents_is_bilinear_and_periodic():
    stress = np.zeros((1, 4, 2))
    stress[0, 1, 0] = 4.0  # one agent, whose neighbours in all directions have none
    spread = AgentGrid(small(grid={"nx": 16, "ny": 10, "nz": 8}).geometry, 4).spread(stress)[0]
    along_x = np.array([0, 1, 2, 3, 4, 3, 2, 1, *[0] * 8]) / 4
    along_z = np.array([4, 3, 2, 1, 0, 1, 2, 3]) / 4
    assert np.array_equal(spread, 4 * np.outer(along_x, along_z))


def log_profile(walls: int, stress: float) -> AgentFlow:
    """A flow that is the logarithmic law at each wall, whose agents have this stress."""
    options = small(grid={"nx": 8, "ny": 10 * walls, "nz": 8, "walls": walls})
    placing = AgentGrid(options.geometry, 2)
    channel = Recipe.of(options, 2000).channel()
    y = placing.grid.distances()[:, None, None]
    # 3 along x and 4 along z make 5.
    channel.u[...] = 0.6 * (np.log(y * 2000) / 0.41 + 5.2)
    channel.w[...] = 0.8 * (np.log(y * 2000) / 0.41 + 5.2)
    count = len(placing.names)
    return AgentFlow(channel, placing, np.linspace(0.075, 0.15, count), np.full(count, stress))


@pytest.mark.parametrize("walls", [1, 2])
def test_llwm_observes_the_constants_of_the_logarithmic_law(walls):
    at_truth = log_profile(walls, 1.0).sense()
    assert at_truth.observed("llwm") == pytest.approx(np.full((walls * 16, 2), [1 / 0.41, 5.2]), rel=2e-5)
    assert at_truth.excess() == pytest.approx(np.zeros(walls * 16), abs=1e-4)
    # √τ = 0.9: 1/κ_m = (1/κ) / 0.9, and B_m = (B − ln(0.9) / κ) / 0.9.
    too_low = log_profile(walls, 0.81).sense()
    assert too_low.observed("llwm") == pytest.approx(np.full((walls * 16, 2), [2.710027, 6.063309]), rel=2e-5)


def test_vwm_observes_speed_slope_and_height_in_wall_units():
    seen = log_profile(1, 0.81).sense().observed("vwm")
    # At y = 0.075: y* = 0.075 · 0.9 · 2000 = 135, u* = (ln(150) / 0.41 + 5.2) / 0.9, du*/dy* = (1/0.41) / 0.9 / 135.
    assert seen[0] == pytest.approx([19.35668, 0.0200743, 135.0], rel=2e-5)
    assert seen[-1, 2] == pytest.approx(270.0)
    assert vwm(SMALL, 1).spaces.classes[0].obs_size == 3


def test_an_action_multiplies_the_stress_and_earns_what_it_gains():
    env = llwm({**SMALL, "start_stress": [0.5, 0.5]}, 2)
    env.reset(0)
    assert env.step(factors(env, 1.1)).rewards[0] == pytest.approx(np.full((16, 2), 0.05))
    moved = env.step(factors(env, 0.9))
    assert moved.rewards[0] == pytest.approx(np.full((16, 2), -0.055))
    assert moved.frame.state == pytest.approx(np.full((2, 16), 0.495))
    env.step(factors(env, 3.0))  # beyond the box: as its bound
    assert env.flows[0].stress_N == pytest.approx(np.full(16, 0.5445))


def test_within_one_percent_there_is_a_bonus():
    env = llwm({**SMALL, "start_stress": [0.9, 0.9], "start_outside": 0}, 1)
    env.reset(0)
    # 0.9 · 1.095 = 0.9855 is not within, 0.9855 · 1.01 = 0.995355 is.
    assert env.step(factors(env, 1.095)).rewards[0][0, 0] == pytest.approx(0.0855)
    assert env.step(factors(env, 1.01)).rewards[0][0, 0] == pytest.approx(0.009855 + 0.1)
    assert env.step(factors(env, 1.0)).rewards[0][0, 0] == pytest.approx(0.1)


def test_the_stress_stays_within_its_bounds():
    env = llwm({**SMALL, "start_stress": [0.0201, 0.0201]}, 1)
    env.reset(0)
    env.step(factors(env, 0.9))
    assert np.array_equal(env.flows[0].stress_N, np.full(16, 0.02))
    env = llwm({**SMALL, "start_stress": [9.5, 9.5], "re_tau": [8000.0]}, 1)
    env.reset(0)
    env.step(factors(env, 1.1))
    assert np.array_equal(env.flows[0].stress_N, np.full(16, 10.0))


def test_no_episode_starts_where_doing_nothing_would_earn_the_bonus():
    options = small()
    starts = [start_stress(options, drawn) for drawn in np.linspace(0, 1, 1000, endpoint=False)]
    assert [starts[0], starts[499], starts[501], starts[-1]] == pytest.approx([0.5, 0.9, 1.1, 1.5], abs=1e-3)
    assert min(abs(start - 1) for start in starts) >= 0.1 - 1e-12
    # Uniform: a quarter of the numbers for a quarter of what is left, [0.5, 0.7].
    assert starts[250] == pytest.approx(0.7, abs=1e-3)
    assert episode_returns(llwm(SMALL, 2), CONTROLLERS["no-op"], 6, seed=3) == [0.0] * 6
    # With starts at the true stress it does, in each of the four decisions.
    trap = llwm({**SMALL, "start_stress": [1.0, 1.0], "start_outside": 0}, 2)
    assert episode_returns(trap, CONTROLLERS["no-op"], 2, seed=3) == pytest.approx([0.4] * 2)


def test_episodes_differ_in_reynolds_number_start_and_heights():
    env = llwm(SMALL, 12)
    env.reset(1)
    assert {round(1 / flow.channel.viscosity) for flow in env.flows} == {2000, 8000}
    assert len({float(flow.stress_N[0]) for flow in env.flows}) == 12
    heights = np.stack([flow.height_N for flow in env.flows])
    assert len(np.unique(heights)) == heights.size and heights.min() >= 0.075 and heights.max() <= 0.15
    # Two snapshots of two Reynolds numbers make more than four flows, because they are shifted, which breaks no mass.
    assert len({flow.channel.u.tobytes() for flow in env.flows}) > 6
    assert max(flow.channel.divergence() for flow in env.flows) < 1e-2


def test_time_truncates_an_episode_and_terminates_nobody():
    env = llwm(SMALL, 2)
    env.reset(0)
    moved = [env.step(factors(env, 1.0)) for _ in range(4)]
    assert [step.truncated.tolist() for step in moved] == [*[[False, False]] * 3, [True, True]]
    assert not any(step.terminated[0].any() or step.broken.any() for step in moved)
    assert env.flows[0].channel.time < 0.2  # that of a snapshot again


def test_a_flow_that_blows_up_ends_its_episode_alone_and_is_kept(empty_cache):
    env = llwm(SMALL, 2)
    frame = env.reset(0)
    last = frame.obs[0][:, 0].copy()
    with capture_logs() as said:
        for number in range(MOST_BLOWN_UP + 2):
            env.flows[0].channel.u[3, 2, 1] = np.nan if number % 2 else 1e9 + number
            moved = env.step(factors(env, 1.1))
            assert moved.broken.tolist() == [True, False] and moved.truncated[0] and not moved.terminated[0].any()
            assert np.array_equal(moved.final.obs[0][:, 0], last) and not moved.rewards[0][:, 0].any()
            assert moved.rewards[0][:, 1].any() and np.isfinite(moved.frame.obs[0]).all()
            last = moved.frame.obs[0][:, 0].copy()
    assert env.blown_up == MOST_BLOWN_UP + 2
    kept = list((empty_cache / "blown_up").iterdir())
    assert len(kept) == MOST_BLOWN_UP and all(
        abs(np.nan_to_num(load_file(each)["u"][3, 2, 1], nan=1e9)) > 1e8 for each in kept
    )
    assert [line["event"] for line in said].count("flow.blown_up") == 1


def test_a_save_goes_on_bit_for_bit_in_another_environment():
    env, other = llwm(SMALL, 3), llwm(SMALL, 3)
    env.reset(5)
    env.step(factors(env, 1.05))
    other.reset(6)
    other.load(env.save())
    for _ in range(5):  # beyond the end of the episode, whose next start is drawn from the saved generator
        ours, theirs = env.step(factors(env, 0.97)), other.step(factors(other, 0.97))
        assert np.array_equal(ours.frame.obs[0], theirs.frame.obs[0])
        assert [flow.channel.u.tobytes() for flow in env.flows] == [flow.channel.u.tobytes() for flow in other.flows]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("reynolds", np.array([2]), "reynolds holds numbers outside 0 to 1"),
        ("steps", np.array([4]), "steps holds numbers outside 0 to 3"),
        ("stress", np.ones((1, 15)), r"stress is float64\[1, 15\], must be float64\[1, 16\]"),
        ("flow/u", np.zeros((1, 10, 8, 9), np.float32), "flow/u is"),
    ],
)
def test_a_damaged_save_is_refused(name, value, message):
    env = llwm(SMALL, 1)
    env.reset(0)
    with pytest.raises(CorruptError, match=message):
        env.load({**env.save(), name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": "XL"}, "unknown grid 'XL'"),
        ({"grid": 3}, "grid must be S, M, L, or a mapping"),
        ({"grid": {"nx": 8, "ny": 10}}, "the grid has no nz"),
        ({"grid": {"nx": 8, "ny": 10, "nz": 2.5}}, "nz must be a whole number"),
        ({"grid": {"nx": 8, "ny": 10, "nz": 8, "deep": 1}}, "unknown number of the grid 'deep'"),
        ({"grid": {"nx": 8, "ny": 10, "nz": 8, "walls": 3}}, "walls is 3"),
        ({"grid": {"nx": 8, "ny": 10, "nz": 8, "length": [1.0]}}, "length must be 2 numbers"),
        ({"grid": {"nx": 8, "ny": 5, "nz": 8}}, "heights 0.075 to 0.15 must lie between the centres of cells"),
        ({"stride": 3}, "stride 3 must divide the cells of the wall, 8 · 8"),
        ({"stride": 0}, "stride must be a whole number from 1"),
        ({"re_tau": []}, "re_tau must be a list of numbers"),
        ({"re_tau": [2000, math.nan]}, "re_tau must be a list of numbers"),
        ({"re_tau": [-2000]}, "re_tau must be a list of numbers from 100"),
        ({"re_tau": [300]}, "at Re_τ 300 the height 0.075 is 22 wall units, and no logarithmic law holds below 30"),
        ({"subgrid": "amdd"}, "unknown subgrid model 'amdd'; did you mean 'amd'"),
        ({"change": 1.0}, "change must be a number from 0.001 to 0.9"),
        ({"start_stress": [1.5, 0.5]}, "start_stress must be two numbers, the lower one first"),
        ({"start_stress": [0.95, 1.05]}, "so that no start is left"),
        ({"decisions": True}, "decisions must be a whole number"),
        ({"bonsu": 1}, "unknown option 'bonsu'; did you mean 'bonus'"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        registry.make("wall_model/llwm", {**SMALL, **options}, 1)


def test_a_grid_on_which_no_flow_lasts_is_refused(monkeypatch, empty_cache):
    from marless_wall_model import snapshots

    def explode(channel, duration):
        channel.u[0, 0, 0] = np.inf

    monkeypatch.setattr(snapshots, "spin_up", explode)
    with pytest.raises(
        SpecError, match=r"the flow at Re_τ (2000|8000) blows up on the grid 8 · 10 · 8 before its first"
    ):
        llwm(SMALL, 1).reset(0)
    assert not list(cache_directory().glob("*.safetensors"))
