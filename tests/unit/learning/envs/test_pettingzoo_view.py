"""What `BatchedView` refuses; tests of SMAC's and of wall models' views have what it shows."""

import pytest

from marless.core.errors import SpecError
from marless.learning.envs import registry
from marless.learning.envs.pettingzoo.view import BatchedView


class View(BatchedView):
    """A view of any environment."""

    def restarted(self):
        return self._env.reset(1)

    def info(self, moved):
        return {}


def test_agents_of_several_kinds_and_images_are_refused():
    several = registry.make("mpe/simple_tag", {}, 1)
    images = registry.make("atari/Pong", {}, 1)
    for env in (several, images):
        with pytest.raises(SpecError, match="agents of one class that observe vectors of float32"):
            View(env, masked=False)


def test_an_environment_without_a_view_of_its_own_can_be_shown():
    view = View(registry.make("mpe/simple_spread", {}, 1), masked=False)
    with pytest.raises(SpecError, match=r"call reset\(\) first"):
        view.step({})
    seen, _ = view.reset(seed=0)
    steps = 0
    while view.agents:
        seen, rewards, ended, cut, _ = view.step({agent: view.action_space(agent).sample() for agent in view.agents})
        steps += 1
        assert all(view.observation_space(agent).contains(each) for agent, each in seen.items())
    assert steps == 25
    assert list(cut.values()) == [True] * 3
    assert not any(ended.values())
    assert len(rewards) == 3
