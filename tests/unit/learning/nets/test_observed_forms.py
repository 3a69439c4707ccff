"""What a policy's state says of the observations it reads: written, read, compared, and refused if it is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marless.core.errors import CorruptError, SpecError
from marless.learning.envs.base import AgentClass, Discrete, Entities, EnvSpaces, check_spaces
from marless.learning.nets import observed_forms
from marless.learning.nets.acting import ActingPolicies, ActingState, description
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.layout import generator, layout
from marless.learning.nets.model import ModelSpec
from marless.learning.policies.policy import Origin, Policy
from marless.learning.policies.team import Team

PLAIN = AgentClass("seer", ("a", "b"), 2 * 36 * 40, Discrete(3))
SEER = replace(PLAIN, image=(2, 36, 40))
TEAM = replace(PLAIN, entities=(Entities(4, 3, 2), Entities(10, 2, 5)))
MODEL = ModelSpec(net="nature", hidden=(8,), activation="relu")
KNOWN = Inputs(known=("a", "b"))


def _state(seed: int) -> ActingState:
    shape = layout(KNOWN.shape(SEER), MODEL, 3)
    arrays = shape.to_arrays("policy", shape.initial(generator(seed, "net"), 1.0))
    return ActingState(arrays, description(SEER, MODEL, inputs=KNOWN))


@pytest.mark.parametrize("seen", [PLAIN, SEER, TEAM])
def test_what_is_written_is_read(seen):
    said = observed_forms.metadata_of(seen)
    assert observed_forms.described(AgentClass("seer", ("a", "b"), 0, Discrete(3)), said) == seen
    observed_forms.check(said, seen)
    with pytest.raises(CorruptError, match=r"class seer: its policies read observes: '2880'.*, its agents observe"):
        observed_forms.check(said, replace(seen, obs_size=seen.obs_size + 1))


@pytest.mark.parametrize(
    "said",
    [
        {"observes": "02880"},
        {"observes": "0"},
        {"observes": "9" * 5000},
        {"observes": "2880", "image": "2,36,41"},
        {"observes": "2880", "image": "-2,-36,40"},
        {"observes": "2880", "image": "2880"},
        {"observes": "2880", "entities": ""},
        {"observes": "2880", "entities": "4,3,2;9,1,1"},
        {"observes": "2880", "entities": "4,3,1000"},
        {"observes": "2880", "entities": ";".join(["0,0,0"] * 99)},
        {"image": "2,36,40"},
    ],
)
def test_what_describes_no_observations_is_refused(said):
    with pytest.raises(CorruptError, match="describes no observations"):
        observed_forms.described(PLAIN, said)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"image": (2, 36, 41)}, "observes 2,880 bytes, which are no image of 2 · 36 · 41"),
        ({"entities": (Entities(4, 3, 2), Entities(9, 1, 1))}, "start=9.* overlaps the entities before it"),
        ({"entities": (Entities(4, 0, 2),)}, "or describes nothing"),
        ({"entities": (Entities(2879, 1, 2),)}, "observes 2,880 numbers, and its entities end after 2,881"),
    ],
)
def test_environments_describe_observations_that_exist(changed, said):
    with pytest.raises(SpecError, match=said):
        check_spaces(EnvSpaces((replace(PLAIN, **changed),), 0, 10))


def test_a_loaded_team_reads_images_as_the_actors_do():
    """A team knows nothing but states: nets of images are made from their metadata."""
    states, rng = [_state(1), _state(2)], np.random.default_rng(3)
    policies = [
        Policy(name=name, agents=(name,), version=1, state=state) for name, state in zip("ab", states, strict=True)
    ]
    assert policies[0].obs_size == SEER.obs_size
    obs_NBO = rng.random((2, 64, SEER.obs_size), np.float32)
    expected_NB = ActingPolicies.from_states(SEER, states).greedy(obs_NBO, None)
    found = Team.of(policies, Origin()).act(dict(zip("ab", obs_NBO, strict=True)))
    np.testing.assert_array_equal([found["a"], found["b"]], expected_NB)
    assert len(np.unique(expected_NB)) > 1
    with pytest.raises(CorruptError, match="class seer: its policies read"):
        ActingPolicies.from_states(PLAIN, states)
    spoilt = ActingState(states[0].acting, {k: v for k, v in states[0].metadata.items() if k != "image"})
    with pytest.raises(CorruptError, match="net nature reads images, and these inputs are a vector"):
        ActingPolicies.from_states(PLAIN, [spoilt, spoilt])
