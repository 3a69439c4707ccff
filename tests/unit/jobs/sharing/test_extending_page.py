"""The similarity that `marless new` makes, and what its check sees; tests/docs runs its page."""

import importlib

import numpy as np
import pytest

from marless.learning.similarity.contract import check_similarity

KIND = "similarity"


def test_its_similarity_is_what_the_registry_wants(package):
    kind = importlib.import_module("habits.similarity").SIMILARITY
    config = kind.config_type.model_validate({"name": "habits", "power": 2})
    assert config.samples == 256
    check_similarity(kind.make(config))


class Broken:
    def __init__(self, change):
        self._change = change

    def distances(self, behaviour, rng):
        share = behaviour.action.mean(axis=1, dtype="float64")
        return self._change(abs(share[:, None] - share).sum(axis=2))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda far: far[:, :-1], r"distances must be \[3, 3\]"),
        (lambda far: far / far, "must be finite"),
        (lambda far: -far, "must be at least 0"),
        (np.triu, "must be symmetric"),
        (lambda far: far + 1, "no distance from itself"),
        (lambda far: far.max() - far - far.max() * np.eye(len(far)), "agents 0 and 1 behave alike"),
        (lambda far: far * (1 + np.random.default_rng().random()), "equal distances"),
    ],
)
def test_the_check_sees_a_broken_promise(change, sentence):
    with np.errstate(invalid="ignore"), pytest.raises(AssertionError, match=sentence):
        check_similarity(Broken(change))
