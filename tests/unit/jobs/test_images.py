"""Jobs whose agents observe images: their bytes count as they are, and what is for vectors is refused."""

from dataclasses import replace

import pytest

from marless.core.errors import SpecError
from marless.jobs.job import PreparedJob, prepare, replay_of, schema_of
from marless.jobs.spec import JobSpec, spaces_from_json, spaces_to_json
from marless.learning.algos import registry
from marless.learning.algos.algorithm import scopes
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces

SPACES = EnvSpaces((AgentClass("player", ("a", "b", "c"), 4 * 84 * 84, Discrete(6), (4, 84, 84)),), 0, 1000)


def prepared(spaces: EnvSpaces = SPACES, **sections: object) -> PreparedJob:
    given = {"env": {"name": "game/matrix"}, "model": {"hidden": [8]}, "stop": {"rounds": 1}, **sections}
    given.setdefault("algorithm", {"name": "ippo", "minibatches": 1})
    given.setdefault("actors", {"count": 1, "envs": 2, "steps": 16, "episodes": "carried"})
    return prepare(JobSpec.model_validate(given), lambda name, options: (spaces, True))


def test_a_trajectory_has_a_byte_for_each_pixel():
    job = prepared(actors={"count": 1, "envs": 8, "steps": 128, "episodes": "carried"})
    pixels = 128 * 8 * 3 * 4 * 84 * 84
    assert pixels < schema_of(job.spec, SPACES).bytes_with(0) < 1.01 * pixels
    with pytest.raises(SpecError, match=r"make a trajectory of 662 MiB, and an actor may upload 512"):
        prepared(actors={"count": 1, "envs": 64, "steps": 128, "episodes": "carried"})


def test_a_replay_has_a_byte_for_each_pixel():
    given = {"name": "iql", "replay": {"capacity": 5000}}
    with pytest.raises(SpecError, match=r"takes 4,039 MiB .* lower replay\.capacity to 25,353 at most"):
        prepared(algorithm=given | {"replay": {"capacity": 50_000}})
    job = prepared(algorithm=given)
    schema, capacity = replay_of(job.spec, SPACES, scopes(registry.algorithm("iql"), job.spec.algorithm, SPACES)[0])
    assert capacity == 5000
    assert 3 * 4 * 84 * 84 < schema.frame_bytes < 1.01 * 3 * 4 * 84 * 84


def test_images_are_not_normalised_by_statistics():
    with pytest.raises(SpecError, match=r"normalise_observations: agents observe images, whose bytes nets read as 0"):
        prepared(model={"hidden": [8], "normalise_observations": True})


def test_densities_of_images_are_not_estimated():
    sharing = {"name": "marless"}
    with pytest.raises(SpecError, match=r"sharing\.similarity: kde estimates densities .* policy_distance"):
        prepared(sharing=sharing)
    assert prepared(sharing=sharing | {"similarity": "policy_distance"})


def test_single_images_are_sent_and_kept_whatever_nets_read():
    one, four = (prepared(model={"hidden": [8], "frames": frames}) for frames in (1, 4))
    steps, images = 16, 3 * 2 * 4 * 84 * 84
    of_one, of_four = (schema_of(job.spec, SPACES).bytes_with(0) for job in (one, four))
    assert of_four - of_one == 3 * images
    assert of_one < 1.01 * steps * images
    fresh = {"count": 1, "envs": 2, "steps": 16, "episodes": "fresh"}
    one, four = (prepared(model={"hidden": [8], "frames": frames}, actors=fresh) for frames in (1, 4))
    assert schema_of(one.spec, SPACES) == schema_of(four.spec, SPACES)


@pytest.mark.parametrize(
    ("spaces", "sentence"),
    [
        (EnvSpaces((AgentClass("player", ("a",), 4, Discrete(6)),), 0, 1000), "game/matrix observe no images"),
        (replace(SPACES, turns=True), "wait for their turns"),
    ],
)
def test_images_are_stacked_only_where_there_are_some_in_every_step(spaces, sentence):
    with pytest.raises(SpecError, match=rf"model\.frames: .*{sentence}.*leave it out"):
        prepared(spaces, model={"hidden": [8], "frames": 4})


def test_processes_tell_each_other_of_images():
    assert spaces_from_json(spaces_to_json(SPACES)) == SPACES
