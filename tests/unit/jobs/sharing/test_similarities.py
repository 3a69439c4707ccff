"""Similarities against divergences known in closed form, and the cases in which a density or a root has no value."""

import math
import sys
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest

from marless.core.errors import SpecError
from marless.jobs.sharing.marless import read_similarity
from marless.learning.similarity.contract import check_similarity, sample_behaviour
from marless.learning.similarity.measures import Behaviour, Choices, Normals, similarity


def made(name, **settings):
    kind = similarity(name)
    return kind.make(kind.config_type(**settings))


def divergences(samples):
    from marless.learning.similarity import densities  # takes a second to be imported

    return densities.divergences(samples)


def behaviour(obs, action, acting=None):
    return Behaviour(np.asarray(obs, np.float32), np.asarray(action, np.float32), None, lambda *_: acting)


@pytest.mark.parametrize("name", ["kde", "policy_distance"])
def test_it_keeps_the_contract(name):
    check_similarity(made(name))


@pytest.mark.parametrize(
    ("mean", "std", "symmetric_kl"),
    [
        (1.0, 1.0, 0.5),  # (μ/σ)² / 2, both ways
        (0.0, 1.5, (math.log(1.5) + 1 / 4.5 - 1 / 2 - math.log(1.5) + 2.25 / 2 - 1 / 2) / 2),  # 0.174
        (2.0, 1.0, 2.0),
    ],
)
def test_divergences_are_those_of_known_gaussians(mean, std, symmetric_kl):
    """Only of those that overlap: beyond its samples, a density by kernels falls faster than what it estimates."""
    rng = np.random.default_rng(1)
    samples = np.stack([rng.normal(size=(2000, 1)), rng.normal(mean, std, (2000, 1))])
    assert divergences(samples)[0, 1] == pytest.approx(symmetric_kl, abs=0.15 * symmetric_kl + 0.03)


def test_divergences_of_correlated_gaussians():
    rng = np.random.default_rng(2)
    root = np.linalg.cholesky([[1.0, 0.5], [0.5, 1.0]])  # determinant 0.75
    samples = np.stack([rng.normal(size=(2000, 2)) @ root.T, rng.normal(size=(2000, 2))])
    # KL(Σ ‖ 1) = (tr Σ − 2 − ln det Σ) / 2 = 0.144; KL(1 ‖ Σ) = (tr Σ⁻¹ − 2 + ln det Σ) / 2 = 0.190
    exact = (-math.log(0.75) / 2 + (2 / 0.75 - 2 + math.log(0.75)) / 2) / 2
    assert divergences(samples)[0, 1] == pytest.approx(exact, abs=0.08)


def test_divergences_are_those_of_the_densities_by_quadrature():
    from scipy.stats import gaussian_kde

    rng = np.random.default_rng(4)
    samples = np.stack([rng.normal(size=(4000, 1)), rng.normal(2.5, 0.7, (4000, 1))])
    p, q = (gaussian_kde(each[:2000].T) for each in samples)
    grid = np.linspace(-6, 8, 4001)
    at_p, at_q = p(grid), q(grid)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(p.logpdf(grid) - q.logpdf(grid))
    exact = np.trapezoid((at_p - at_q) * ratio, grid) / 2
    assert divergences(samples)[0, 1] == pytest.approx(exact, rel=0.1)


def test_agents_of_one_distribution_are_near_nothing():
    rng = np.random.default_rng(3)
    samples = rng.normal(size=(4, 400, 3))
    assert divergences(samples).max() < 0.1
    samples[3] += 1
    assert divergences(samples)[3, :3].min() > 0.5


def test_agents_with_equal_samples_are_at_no_distance():
    one = sample_behaviour(agents=1, samples=64)
    twins = behaviour(np.repeat(one.obs, 2, axis=0), np.repeat(one.action, 2, axis=0))
    assert (made("kde").distances(twins, np.random.default_rng(0)) == 0).all()


def test_features_that_never_change_count_for_nothing():
    seen = sample_behaviour()
    padded = np.concatenate([seen.obs, np.full((*seen.obs.shape[:2], 3), 1e6, np.float32)], axis=2)
    plain, padded = (made("kde").distances(each, np.random.default_rng(0)) for each in (
        seen, behaviour(padded, seen.action)))  # fmt: skip
    np.testing.assert_allclose(padded, plain, rtol=1e-9)


def test_agents_that_all_do_the_same_all_the_time_are_at_no_distance():
    same = behaviour(np.ones((3, 16, 4)), np.tile([0.0, 1.0], (3, 16, 1)))
    assert (made("kde").distances(same, np.random.default_rng(0)) == 0).all()


def test_agents_that_each_do_one_thing_are_apart_but_not_infinitely():
    obs = np.random.default_rng(0).normal(size=(3, 64, 4))
    action = np.zeros((3, 64, 3))
    for agent, choice in enumerate([0, 0, 2]):
        action[agent, :, choice] = 1
    far = made("kde").distances(behaviour(obs, action), np.random.default_rng(0))
    assert np.isfinite(far).all()
    assert far[0, 1] < 1 < far[0, 2]


def test_samples_are_compressed_jointly_to_the_components_that_are_enough():
    rng = np.random.default_rng(0)
    plane = rng.normal(size=(2, 100, 2)) @ rng.normal(size=(2, 5))  # 5 features, all within a plane
    assert made("kde", dimensions=8, variance=0.95).compressed(plane).shape == (2, 100, 2)
    noise = rng.normal(size=(2, 100, 20))
    assert made("kde", dimensions=8, variance=0.95).compressed(noise).shape == (2, 100, 8)
    assert made("kde", dimensions=32, variance=0.5).compressed(noise).shape[2] < 20
    assert made("kde", dimensions=8, variance=1.0).compressed(noise[:, :8]).shape == (2, 8, 2), (
        "4 points span no more than 2 components"
    )
    assert made("kde", dimensions=8, variance=0.95).compressed(np.ones((2, 100, 3))).shape == (2, 100, 0)


def test_scores_do_not_depend_on_units():
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(2, 100, 3))
    scaled = samples * [1.0, 1e4, 1e-4] + [0.0, 5e3, 7.0]
    np.testing.assert_allclose(
        made("kde", dimensions=8, variance=1.0).compressed(scaled),
        made("kde", dimensions=8, variance=1.0).compressed(samples),
        atol=1e-6,
    )


def test_discrete_policies_are_as_far_as_jensen_and_shannon_say():
    # m = (3/4, 1/4): JS = (log2 4/3 + (log2 2/3 + log2 2) / 2) / 2 = 0.3113 bits; (1, 0) and (0, 1) are at 1.
    half, left, right = (0.5, 0.5), (1.0, 0.0), (0.0, 1.0)
    acting = Choices(np.array([[left, half], [half, half], [right, half]], np.float32))
    far = made("policy_distance").distances(behaviour(np.zeros((3, 1, 1)), np.zeros((3, 1, 2)), acting), None)
    root = math.sqrt((math.log2(4 / 3) + (math.log2(2 / 3) + 1) / 2) / 2)
    np.testing.assert_allclose(far, np.array([[0, root, 1], [root, 0, root], [1, root, 0]]) / 2, atol=1e-7)


def test_normal_policies_are_as_far_as_it_takes_to_carry_one_to_the_other():
    mean = np.array([[[0, 0], [0, 0]], [[3, 4], [0, 0]], [[0, 0], [0, 0]]], np.float32)
    std = np.array([[[1, 1]] * 2, [[1, 1]] * 2, [[1, 13]] * 2], np.float32)
    far = made("policy_distance").distances(
        behaviour(np.zeros((3, 1, 1)), np.zeros((3, 1, 2)), Normals(mean, std)), None
    )
    # Of the two observations, one tells agents 0 and 1 apart, by (3, 4); agent 2 differs in its spread alone, by 12.
    np.testing.assert_allclose(far, [[0, 2.5, 12], [2.5, 0, (13 + 12) / 2], [12, (13 + 12) / 2, 0]])


def test_policies_are_asked_about_what_all_agents_saw_with_what_was_legal_there():
    seen = {}

    def act(obs, legal):
        seen.update(obs=obs, legal=legal)
        return Choices(np.full((2, len(obs), 3), 1 / 3, np.float32))

    obs, legal = np.arange(12, dtype=np.float32).reshape(2, 3, 2), np.arange(18).reshape(2, 3, 3) % 2 > 0
    far = made("policy_distance").distances(Behaviour(obs, np.zeros((2, 3, 3), np.float32), legal, act), None)
    assert (far == 0).all()
    np.testing.assert_array_equal(seen["obs"], np.arange(12).reshape(6, 2))
    np.testing.assert_array_equal(seen["legal"], legal.reshape(6, 3))


@pytest.mark.filterwarnings("error")
def test_policies_that_are_almost_equal_have_no_root_of_a_negative_number():
    rng = np.random.default_rng(0)
    one = rng.dirichlet(np.ones(5), 500).astype(np.float32)
    acting = Choices(
        np.stack([one, np.nextafter(one, np.float32(1)), np.eye(5, dtype=np.float32)[rng.integers(5, size=500)]])
    )
    far = made("policy_distance").distances(behaviour(np.zeros((3, 1, 1)), np.zeros((3, 1, 5)), acting), None)
    assert np.isfinite(far).all()
    assert far[0, 1] < 1e-3


def test_entry_points_add_similarities_with_fields_of_their_own(monkeypatch):
    kde = similarity("kde")
    entry = metadata.EntryPoint("theirs", "their_package:SIMILARITY", "marless.similarity")
    monkeypatch.setitem(sys.modules, "their_package", SimpleNamespace(SIMILARITY=kde))
    monkeypatch.setattr(
        "marless.core.registry.entry_points", lambda group: metadata.EntryPoints([entry]).select(group=group)
    )
    assert similarity("theirs") is kde
    with pytest.raises(SpecError, match="unknown similarity 'their'; did you mean 'theirs'"):
        similarity("their")


def test_a_section_without_a_name_is_kde():
    assert read_similarity({"samples": 9}) == similarity("kde").config_type(samples=9)
    assert read_similarity("policy_distance").name == "policy_distance"
