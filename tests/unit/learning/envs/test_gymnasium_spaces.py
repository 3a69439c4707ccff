"""The conversion of PettingZoo's spaces against vectors written down by hand."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from marless.core.errors import SpecError
from marless.learning.envs import base
from marless.learning.envs.gymnasium.masks import AUTO, in_info, parse_choice
from marless.learning.envs.gymnasium.spaces import codec as codec_of

FOUR = Discrete(4)
BITS = Box(0, 1, (4,), np.int8)
SIGHT = Box(-9, 9, (2,))


def codec(space, action, choice=AUTO):
    return codec_of(space, action, choice)[0]


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
        (Dict(observation=SIGHT, possible=BITS), None, 6),  # a guess by size alone
        (Dict(observation=SIGHT, unavailable=BITS), None, 6),  # its ones forbid
        (
            Dict(observations=SIGHT, action_mask=Box(0, 1, (4,))),
            "action_mask",
            2,
        ),  # numbers from 0 to 1, as RLlib has it
        (Dict(observation=SIGHT, action_mask=MultiDiscrete([2] * 4)), "action_mask", 2),
        (Dict(observation=SIGHT, valid=MultiBinary(4)), "valid", 2),
        (Dict(observation=SIGHT, inventory=MultiBinary(4), action_mask=BITS), "action_mask", 6),
        (Dict(observation=SIGHT, avail=BITS, my_mask=BITS, action_mask=BITS), "action_mask", 10),
        (Dict(observation=SIGHT, inventory=MultiBinary(4), hand=MultiBinary(4)), None, 10),
        (Dict(observation=SIGHT, invalid=BITS, x=SIGHT), None, 8),
        (Dict(action_mask=BITS), None, 4),
    ],
)
def test_the_mask_is_found_beside_the_observation(space, mask_key, size):
    made = codec(space, FOUR)
    assert (made.mask_source and made.mask_source.key) == mask_key
    assert made.obs_size == size
    seen = space.sample()
    if mask_key:
        seen[mask_key] = np.round(seen[mask_key])
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
        ({7: 1, "won": np.array([1, 0, 0, 0], np.int8)}, None),
    ],
)
def test_the_mask_is_found_in_infos(info, mask):
    source, _ = in_info(info, FOUR, AUTO)
    assert (None if source is None else source.read(info[source.key]).tolist()) == mask


def test_actions_without_bounds_have_no_mask():
    assert in_info({"action_mask": [1, 1]}, Box(-1, 1, (2,)), AUTO)[0] is None


@pytest.mark.parametrize(
    ("action", "mask", "value", "legal"),
    [
        (MultiDiscrete([2, 3]), MultiBinary(5), [0, 1, 0, 0, 1], [(1, 2)]),
        (MultiDiscrete([2, 3]), MultiBinary(6), [0, 1, 0, 0, 0, 1], [(0, 1), (1, 2)]),
        (MultiDiscrete([2, 3]), Tuple((MultiBinary(2), MultiBinary(3))), ([1, 1], [0, 1, 0]), [(0, 1), (1, 1)]),
        (MultiDiscrete([2, 2]), MultiBinary(4), [0, 1, 0, 1], [(1, 1)]),  # as components, though combinations fit, too
        (MultiDiscrete([2, 2]), Box(0, 1, (2, 2)), [[1, 0], [1, 1]], [(0, 0), (0, 1)]),
        (MultiBinary(3), MultiBinary(6), [1, 0, 0, 1, 1, 1], [(0, 1, 0), (0, 1, 1)]),
    ],
)
def test_masks_of_several_components(action, mask, value, legal):
    made = codec(Dict(observation=SIGHT, action_mask=mask), action)
    bits = made.mask({"observation": [0, 0], "action_mask": value}, {})
    assert [tuple(made.decode(i).tolist()) for i in np.flatnonzero(bits)] == legal


def test_a_job_says_where_the_mask_is_and_how_it_is_read():
    space = Dict(state=SIGHT, unavailable=MultiBinary(4))
    made = codec(space, FOUR, parse_choice({"key": "unavailable", "inverted": True}))
    assert made.mask({"state": [0, 0], "unavailable": [1, 1, 0, 1]}, {}).tolist() == [False, False, True, False]
    assert made.obs_size == 2
    assert codec(Dict(observation=SIGHT, action_mask=BITS), FOUR, parse_choice("none")).obs_size == 6
    four = Dict(observation=SIGHT, action_mask=MultiBinary(4))
    combined = codec(four, MultiDiscrete([2, 2]), parse_choice({"key": "action_mask", "of": "actions"}))
    assert combined.mask({"action_mask": [0, 1, 0, 1]}, {}).tolist() == [False, True, False, True]


@pytest.mark.parametrize("given", [3, "", {"inverted": True}, {"key": "a", "of": "rows"}, {"key": "a", "more": 1}])
def test_a_choice_that_is_none_is_refused(given):
    with pytest.raises(SpecError, match=r"env.mask is .*; it is auto, none, the name"):
        parse_choice(given)


@pytest.mark.parametrize(
    ("space", "notes"),
    [
        (Dict(observation=SIGHT, action_mask=BITS), []),
        (Dict(observation=SIGHT, legal_moves=BITS), ["'legal_moves' of observations is taken for the mask"]),
        (Dict(observation=SIGHT, lamps=MultiBinary(4)), ["'lamps' of observations has a number per action and is obs"]),
        (Dict(state=SIGHT, unavailable=MultiBinary(4)), ["'unavailable' of observations has a number per action and"]),
        (Dict(state=SIGHT, lamps=MultiBinary(4)), []),
        (Dict(observation=SIGHT, lamps=MultiBinary(3)), []),
    ],
)
def test_what_was_guessed_is_said(space, notes):
    found = codec_of(space, FOUR)[1]
    assert [each[: len(note)] for each, note in zip(found, notes, strict=True)] == notes


@pytest.mark.parametrize("mask", [Box(0, 1, (3,), np.int8), SIGHT, MultiBinary(5), Tuple((MultiBinary(1), SIGHT))])
def test_an_action_mask_that_fits_no_actions_is_refused(mask):
    with pytest.raises(SpecError, match=r"'action_mask' of observations is no mask: .* has 4 numbers from 0 to 1"):
        codec(Dict(observation=SIGHT, action_mask=mask), FOUR)
    with pytest.raises(SpecError, match=r"'action_mask' of infos is no mask: it is .1, 0., and a mask has 4"):
        in_info({"action_mask": [1, 0]}, FOUR, AUTO)


@pytest.mark.parametrize("value", [[1, 0], 1, [1, 0, 1, 0.5], [1, 0, 1, 2], None, "mask", [1j, 0, 0, 0]])
def test_a_mask_is_zeros_and_ones_in_each_step(value):
    made = codec(Dict(observation=SIGHT, action_mask=BITS), FOUR)
    with pytest.raises(SpecError, match="'action_mask'"):
        made.mask({"observation": [0, 0], "action_mask": value}, {})


@pytest.mark.parametrize(
    ("space", "seen"),
    [
        (Box(-1, 1, (4,)), np.array([0.5])),  # NumPy would spread it over all four
        (Box(-1, 1, (4,)), 0),
        (Box(-1, 1, (2,)), np.array([1j, 0])),
        (Box(-1, 1, (2,)), ["a", "b"]),
        (Box(-1, 1, (2,)), None),
        (Discrete(3), 3),
        (Discrete(3), -1),  # which would be the last one
        (Discrete(3), 1.5),
        (Discrete(3, start=1), 0),
        (MultiDiscrete([2, 3]), [0, 3]),
        (MultiBinary(2), [0, 2]),
        (Tuple((SIGHT, SIGHT)), ([1], [1, 2, 3])),  # as many numbers as declared
        (Dict(a=SIGHT, b=SIGHT), {"a": [1, 2]}),
        (Dict(a=SIGHT, b=SIGHT), [1, 2, 3, 4]),
    ],
)
def test_an_observation_that_is_not_in_its_space_is_refused(space, seen):
    with pytest.raises(SpecError, match=r"^observes .*, its space is "):
        codec(space, FOUR).encode(seen)


@pytest.mark.parametrize(
    ("space", "seen", "flat"),
    [
        (Box(-1, 1, (4,)), [[0.1, 0.2], [0.3, 0.4]], [0.1, 0.2, 0.3, 0.4]),
        (Box(-1, 1, (2,)), [9, -9], [9, -9]),  # beyond its bounds, as many are
        (Box(-1, 1, (1,)), 0.5, [0.5]),
        (Discrete(3), np.array([2.0]), [0, 0, 1]),
        (Discrete(3), np.bool_(True), [0, 1, 0]),
    ],
)
def test_harmless_forms_of_observations_are_taken(space, seen, flat):
    np.testing.assert_allclose(codec(space, FOUR).encode(seen), flat)


@pytest.mark.parametrize(
    "space",
    [
        Box(-0.1, 0.1, (1,), np.float64),
        Box(-0.1, 0.1, (1,), np.float32),
        Box(-0.3, 0.7, (), np.float64),
        Box(-1, 1, (3,), np.int32),
        Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (1,), np.int64),
        Box(0, 255, (2,), np.uint8),
        Box(-0.1, 0.1, (1,), np.float16),
    ],
)
@pytest.mark.parametrize("chosen", [-1.0, -0.3, 0.0, 0.9, 1.0])
def test_every_action_is_in_its_box(space, chosen):
    from marless.learning.nets.acting_heads import to_env

    made = codec(SIGHT, space)
    unit = np.full(made.action_space.n, chosen, np.float32)
    acted = made.decode(to_env(made.action_space, unit))
    assert space.contains(acted), (acted, space)
    if abs(chosen) == 1:
        np.testing.assert_allclose(acted, space.low if chosen < 0 else space.high, rtol=1e-6)
