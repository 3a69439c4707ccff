"""Environments by name: ours, adapted ones, and those of other packages."""

import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from marless.core.errors import SpecError
from marless.learning.envs import registry
from tests.scripted_env import ScriptedEnv


@pytest.fixture
def installed(monkeypatch):
    """As if a package had declared `scripted = "their_package:make"` in the group `marless.envs`."""

    def make(options, batch):
        if options:
            raise SpecError("takes no options")
        return ScriptedEnv(batch)

    entry = metadata.EntryPoint("scripted", "their_package:make", registry.ENTRY_POINTS)
    monkeypatch.setitem(sys.modules, "their_package", SimpleNamespace(make=make))
    monkeypatch.setattr(
        "marless.core.registry.entry_points", lambda group: metadata.EntryPoints([entry]).select(group=group)
    )


def test_entry_points_add_environments(installed):
    assert isinstance(registry.make("scripted", {}, 2), ScriptedEnv)
    with pytest.raises(SpecError, match="environment scripted: takes no options"):
        registry.make("scripted", {"size": 3}, 2)


def test_one_entry_point_adds_a_family(monkeypatch):
    asked = []

    def family(name, options, batch):
        asked.append((name, options))
        return ScriptedEnv(batch)

    entry = metadata.EntryPoint("maze/<size>", "their_mazes:family", registry.ENTRY_POINTS)
    monkeypatch.setitem(sys.modules, "their_mazes", SimpleNamespace(family=family))
    monkeypatch.setattr(
        "marless.core.registry.entry_points", lambda group: metadata.EntryPoints([entry]).select(group=group)
    )
    assert isinstance(registry.make("maze/9/round", {"a": 1}, 2), ScriptedEnv)
    assert asked == [("9/round", {"a": 1})]
    assert not registry.is_ours("maze/9") and registry.is_ours("atari/Pong")
    assert "maze/<size>" in registry.environments()
    with pytest.raises(SpecError, match="unknown environment 'maze'"):
        registry.make("maze", {}, 1)


def test_an_unknown_name_gets_the_nearest_match(installed):
    with pytest.raises(SpecError, match="unknown environment 'mpe/simple_sprad'; did you mean 'mpe/simple_spread'"):
        registry.make("mpe/simple_sprad", {}, 1)
    with pytest.raises(SpecError, match="did you mean 'scripted'"):
        registry.make("script", {}, 1)


def test_at_least_one_copy():
    with pytest.raises(SpecError, match="at least one copy, got 0"):
        registry.make("mpe/simple_spread", {}, 0)


def test_spaces_without_keeping_the_environment():
    spaces = registry.spaces("mpe/simple_adversary", {"agents": 2})
    assert [(c.name, c.agents, c.obs_size) for c in spaces.classes] == [
        ("adversary", ("adversary_0",), 8),
        ("agent", ("agent_0", "agent_1"), 10),
    ]
    assert (spaces.state_size, spaces.max_steps, spaces.masks, spaces.deaths) == (28, 25, False, False)
