"""What critics of deterministic policies see, by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from marless.learning.algos.ddpg.inputs import JointInputs, OwnInputs, Sizes, replaced


def _features(*rows: list[float]) -> Tensor:
    """[N, O + 1, 1], last row ones."""
    return torch.tensor([[*row, 1.0] for row in rows]).unsqueeze(2)


def _actions(*rows: list[float]) -> Tensor:
    return torch.tensor(rows).unsqueeze(2)


def test_joint_inputs_are_all_observations_then_all_actions() -> None:
    inputs = JointInputs([Sizes(1, 2, 1), Sizes(2, 1, 2)])
    features = [_features([10.0, 11.0]), _features([20.0], [21.0])]
    built = inputs.build(features, [_actions([0.1]), _actions([0.2, 0.3], [0.4, 0.5])])
    assert inputs.size == 9
    expected = torch.tensor([10, 11, 20, 21, 0.1, 0.2, 0.3, 0.4, 0.5, 1])
    torch.testing.assert_close(built, expected.view(1, -1, 1))
    assert inputs.own(0).tolist() == [[4]]
    assert inputs.own(1).tolist() == [[5, 6], [7, 8]]
    other = replaced(built.expand(2, -1, -1), inputs.own(1), _actions([2.0, 3.0], [4.0, 5.0]))
    torch.testing.assert_close(other[0, :, 0], torch.tensor([10, 11, 20, 21, 0.1, 2, 3, 0.4, 0.5, 1]))
    torch.testing.assert_close(other[1, :, 0], torch.tensor([10, 11, 20, 21, 0.1, 0.2, 0.3, 4, 5, 1]))
    torch.testing.assert_close(built, expected.view(1, -1, 1))


def test_own_inputs_are_an_agents_own() -> None:
    inputs = OwnInputs(Sizes(2, 1, 2))
    built = inputs.build([_features([20.0], [21.0])], [_actions([0.2, 0.3], [0.4, 0.5])])
    assert inputs.size == 3
    torch.testing.assert_close(built[1, :, 0], torch.tensor([21, 0.4, 0.5, 1]))
    assert inputs.own(0).tolist() == [[1, 2], [1, 2]]
    other = replaced(built, inputs.own(0), _actions([2.0, 3.0], [4.0, 5.0]))
    torch.testing.assert_close(other[1, :, 0], torch.tensor([21.0, 4, 5, 1]))
