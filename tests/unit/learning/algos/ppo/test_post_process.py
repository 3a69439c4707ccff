"""Advantages of an agent that leaves, against numbers worked out by hand."""

from types import SimpleNamespace

import pytest
import torch

from marless.learning.algos.ppo.algorithms import PPOConfig
from marless.learning.algos.ppo.post_process import estimate


@pytest.mark.parametrize(
    ("terminated", "advantages"),
    [
        # δ = (10, 20 + 0.5·3 − 2): the value of the final observation, and no advantage of what follows it
        ((False, False, False, False), (10 + 0.5 * 19.5, 19.5)),
        ((False, True, False, False), (10 + 0.5 * 18, 18)),
    ],
)
def test_after_its_truncation_an_agent_is_worth_its_final_observation_alone(terminated, advantages):
    def judge(seen, out):
        out.copy_(seen)

    critics = SimpleNamespace(seen=torch.tensor([[1.0, 2, 3, 4]]), boot_seen=torch.tensor([[9.0]]), judge=judge)
    tensors = {
        "reward": torch.tensor([[[10.0], [20], [0], [0]]]),
        "terminated": torch.tensor([[[each] for each in terminated]]),
        "alive": torch.tensor([[[1.0, 1, 0, 0]]]),
        "cut": torch.tensor([[False], [False], [False], [True]]),
        "boot_index": torch.tensor([3]),
    }
    config = PPOConfig.model_validate({"name": "ippo", "gamma": 0.5, "gae_lambda": 1.0})
    advantage_N1S = estimate([critics], tensors, None, config).advantage
    assert advantage_N1S[0, 0, :2].tolist() == list(advantages)
