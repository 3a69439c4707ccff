"""What nets see beside observations, row by row."""

from __future__ import annotations

import numpy as np
import pytest

from marless.core.errors import CorruptError
from marless.learning.envs.base import AgentClass, Box, Discrete
from marless.learning.nets.inputs import Inputs

WALKER = AgentClass("walker", ("a", "b"), 2, Discrete(3))
ARM = AgentClass("arm", ("a", "b"), 1, Box((0.0, 0.0), (1.0, 1.0)))
EVERY = [Inputs(), Inputs(last_action=True), Inputs(known=("a", "b")), Inputs(last_action=True, known=("b", "a"))]


@pytest.mark.parametrize("inputs", EVERY)
def test_metadata_round_trips(inputs: Inputs) -> None:
    assert Inputs.parse(inputs.metadata()) == inputs


def test_metadata_of_observations_alone_is_none_as_in_old_states() -> None:
    assert Inputs().metadata() == {}
    assert EVERY[3].metadata() == {"inputs": "obs+last_action+id", "ids": '["b", "a"]'}


@pytest.mark.parametrize(
    "metadata",
    [
        {"inputs": "obs+id"},
        {"inputs": "obs+id", "ids": "a, b"},
        {"inputs": "obs+id", "ids": "[]"},
        {"inputs": "obs+id", "ids": '"ab"'},
        {"inputs": "last_action"},
        {"inputs": "obs+id+last_action", "ids": '["a"]'},
        {"inputs": "obs+more"},
    ],
)
def test_metadata_that_says_nothing_is_refused(metadata: dict[str, str]) -> None:
    with pytest.raises(CorruptError, match="policy state: inputs"):
        Inputs.parse(metadata)


def test_rows_of_discrete_actions() -> None:
    inputs = EVERY[3]
    assert (inputs.size(WALKER), inputs.extra(WALKER.action)) == (7, 5)
    obs_NMO = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    last_NM = np.array([[2, 1, 0], [0, 0, 2]], np.int32)
    found = inputs.build(WALKER, obs_NMO, last_NM, np.array([False, True, False]))
    assert found.dtype == np.float32
    assert found[0].T.tolist() == [
        [0, 1, 0, 0, 1, 0, 1, 1],
        [2, 3, 0, 0, 0, 0, 1, 1],  # an episode starts: nothing was done before
        [4, 5, 1, 0, 0, 0, 1, 1],
    ]
    assert found[1].T.tolist() == [[6, 7, 1, 0, 0, 1, 0, 1], [8, 9, 0, 0, 0, 1, 0, 1], [10, 11, 0, 0, 1, 1, 0, 1]]


def test_rows_of_continuous_actions() -> None:
    obs_NMO = np.zeros((2, 2, 1), np.float32)
    last_NMA = np.array([[[0.5, -3.0], [9.0, 9.0]], [[1.0, 2.0], [9.0, 9.0]]], np.float32)
    found = Inputs(last_action=True).build(ARM, obs_NMO, last_NMA, np.array([False, True]))
    assert found.transpose(0, 2, 1).tolist() == [[[0, 0.5, -3, 1], [0, 0, 0, 1]], [[0, 1, 2, 1], [0, 0, 0, 1]]]


def test_observations_alone() -> None:
    obs_NMO = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    assert Inputs().build(WALKER, obs_NMO).tolist() == [[[0, 2], [1, 3], [1, 1]], [[4, 6], [5, 7], [1, 1]]]


def test_an_agent_without_an_id_is_refused() -> None:
    with pytest.raises(CorruptError, match="tells b, a apart by their ids; it knows no c"):
        EVERY[3].ids(("a", "c"))
