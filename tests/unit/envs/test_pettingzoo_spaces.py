"""The conversion of PettingZoo's spaces against vectors written down by hand."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from marless.envs import base
from marless.envs.pettingzoo.spaces import codec, info_mask

FOUR = Discrete(4)
BITS = Box(0, 1, (4,), np.int8)
SIGHT = Box(-9, 9, (2,))


@pytest.mark.parametrize(
    ("space", "seen", "flat"),
    [
        (Box(-9, 9, (2, 2)), np.array([[1, 2], [3, 4.5]]), [1, 2, 3, 4.5]),
        (Box(0, 255, (1, 1, 3), np.uint8), np.array([[[0, 51, 255]]], np.uint8), [0, 0.2, 1]),
        (Box(0, 9, (2,), np.uint8), np.array([0, 9], np.uint8), [0, 9]),  # bytes, but no pixels
        (Box(0, 1, (2,), np.bool_), np.array([True, False]), [1, 0]),
        (Discrete(3, start=5), 6, [0, 1, 0]),
        (MultiDiscrete([2, 3]), np.array([1, 2]), [0, 1, 0, 0, 1]),
        (MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
        (Tuple((SIGHT, Discrete(2))), (np.array([7, 8]), 1), [7, 8, 0, 1]),
        (
            Dict(z=Discrete(2), eye=Box(0, 255, (1,), np.uint8)),
            {"eye": np.array([255], np.uint8), "z": 0},
            None,
        ),
    ],
)
def test_observations_are_flattened(space, seen, flat):
    made = codec(space, FOUR)
    if flat is None:  # a Dict's parts come in the order of its space
        flat = [number for key in space.spaces for number in ([1] if key == "eye" else [1, 0])]
    np.testing.assert_allclose(made.encode(seen), flat, rtol=1e-6)
    assert made.obs_size == len(flat)


@pytest.mark.parametrize(
    ("action", "choices", "chosen", "acted"),
    [
        (MultiDiscrete([2, 3]), 6, 5, [1, 2]),
        (MultiDiscrete([2, 3]), 6, 1, [0, 1]),
        (MultiDiscrete([2, 3], start=[5, 7]), 6, 3, [6, 7]),
        (MultiDiscrete([[2, 1], [1, 2]]), 4, 2, [[1, 0], [0, 0]]),
        (MultiBinary(3), 8, 6, [1, 1, 0]),
        (MultiBinary((1, 2)), 4, 1, [[0, 1]]),
    ],
)
def test_combinations_are_numbered(action, choices, chosen, acted):
    made = codec(SIGHT, action)
    assert made.action_space == base.Discrete(choices)
    assert np.asarray(made.decode(chosen)).tolist() == acted
    assert {tuple(np.ravel(made.decode(i)).tolist()) for i in range(choices)} == {
        tuple(np.ravel(made.decode(i)).tolist()) for i in range(choices) if action.contains(made.decode(i))
    }


def test_bounds_that_stand_for_none_are_none():
    largest = np.finfo(np.float32).max
    space = Box(np.array([-largest, -1, 0], np.float32), np.array([largest, 2, np.inf], np.float32))
    assert codec(SIGHT, space).action_space == base.Box(low=(-np.inf, -1.0, 0.0), high=(np.inf, 2.0, np.inf))


@pytest.mark.parametrize(
    ("space", "mask_key", "size"),
    [
        (Dict(observation=SIGHT, action_mask=BITS), "action_mask", 2),
        (Dict(obs=SIGHT, legal_moves=BITS), "legal_moves", 2),
        (Dict(observation=SIGHT, possible=BITS), "possible", 2),  # the only one beside `observation`
        (Dict(observation=SIGHT, valid=MultiBinary(4)), "valid", 2),
        (Dict(observation=SIGHT, inventory=MultiBinary(4), action_mask=BITS), "action_mask", 6),
        (Dict(observation=SIGHT, avail=BITS, my_mask=BITS, action_mask=BITS), "action_mask", 10),
        (Dict(observation=SIGHT, inventory=MultiBinary(4), hand=MultiBinary(4)), None, 10),
        (Dict(observation=SIGHT, invalid=BITS, x=SIGHT), None, 8),
        (Dict(observation=SIGHT, action_mask=SIGHT), None, 4),  # not a number per action
        (Dict(action_mask=BITS), None, 4),
    ],
)
def test_the_mask_is_found_beside_the_observation(space, mask_key, size):
    made = codec(space, FOUR)
    assert made.mask_key == mask_key
    assert made.obs_size == size
    seen = space.sample()
    assert made.encode(seen).shape == (size,)
    if mask_key:
        assert made.mask(seen, {}).tolist() == (np.asarray(seen[mask_key]) != 0).tolist()


@pytest.mark.parametrize(
    ("info", "mask"),
    [
        ({"action_mask": [1, 0, 0, 1]}, [True, False, False, True]),
        ({"legal": np.array([1, 0, 1, 0], np.int8)}, [True, False, True, False]),
        ({"legal_moves": [0, 1, 2, 3]}, None),  # a list of actions
        ({"invalid_mask": [0, 0, 1, 0]}, None),
        ({"action_mask": [1, 0]}, None),
        ({7: 1, "won": np.array([1, 0, 0, 0], np.int8)}, None),
    ],
)
def test_the_mask_is_found_in_infos(info, mask):
    found = info_mask(info, FOUR)
    assert (None if found is None else found.tolist()) == mask


def test_actions_without_bounds_have_no_mask():
    assert info_mask({"action_mask": [1, 1]}, Box(-1, 1, (2,))) is None
