"""The contract of environments, kept by SMAC's battles; and every map has its entry point."""

from dataclasses import replace
from functools import partial

import pytest

import marless_smac as smac
from marless.core.errors import SpecError
from marless.core.registry import plugged
from marless.learning.envs import registry
from marless.learning.envs.contract import check_env


def test_every_map_is_an_environment_of_its_name():
    ours = {name for name in plugged(registry.ENTRY_POINTS) if name.startswith("smac/")}
    assert ours == {f"smac/{name}" for name in smac.MAPS}
    for name, smac_map in smac.MAPS.items():
        assert registry.is_ours(f"smac/{name}")
        assert registry.make(f"smac/{name}", {}, 1).map is smac_map


def test_an_unknown_map_or_option_gets_the_nearest_match():
    with pytest.raises(SpecError, match="unknown environment 'smac/3s6z'; did you mean 'smac/3s5z'"):
        registry.make("smac/3s6z", {}, 1)
    with pytest.raises(SpecError, match="environment smac/3m: unknown option 'bakend'; did you mean 'backend'"):
        registry.make("smac/3m", {"bakend": "sc2"}, 1)


def battles(name, batch):
    """Battles that are cut after five steps."""
    return smac.EmbeddedSmac(replace(smac.MAPS[name], limit=5), smac.SmacOptions(), batch)


def test_battles_keep_the_contract():
    check_env(partial(battles, "2s3z"), steps=7)


@pytest.mark.slow
@pytest.mark.parametrize("name", smac.MAPS)
def test_battles_on_each_map_keep_the_contract(name):
    check_env(partial(battles, name), steps=12)
