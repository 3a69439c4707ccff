"""RMSProp and RAdam against torch's own."""

from __future__ import annotations

import torch

from marless.learning.nets.adam import Adam, RMSProp


def test_rmsprop_is_torchs_also_where_a_run_goes_on_later() -> None:
    gradients = torch.randn(8, 2, 10, generator=torch.Generator().manual_seed(1))
    flat, second, count = torch.ones(2, 10), torch.zeros(2, 10), torch.zeros(2).double()
    oracle = torch.ones(2, 10, requires_grad=True)
    theirs = torch.optim.RMSprop([oracle], lr=0.01, alpha=0.99, eps=1e-5)
    for steps in (range(3), range(3, 8)):
        ours = RMSProp(flat, second, count, lr=0.01, eps=1e-5)
        for step in steps:
            ours.step(gradients[step])
            oracle.grad = gradients[step]
            theirs.step()
    torch.testing.assert_close(flat, oracle.detach())
    assert count.tolist() == [8.0, 8.0]


def test_rectified_steps_are_torchs_also_where_a_run_goes_on_later() -> None:
    """Of the first five steps, v is not used. torch adds ε before it corrects v, and so an ε of nearly 0 here."""
    gradients = torch.randn(12, 2, 10, generator=torch.Generator().manual_seed(1))
    flat, first, second, count = torch.ones(2, 10), torch.zeros(2, 10), torch.zeros(2, 10), torch.zeros(2).double()
    oracle = torch.ones(2, 10, requires_grad=True)
    theirs = torch.optim.RAdam([oracle], lr=0.01, eps=1e-12)
    for steps in (range(3), range(3, 12)):
        ours = Adam(flat, first, second, count, steps=len(steps), lr=0.01, eps=1e-12, rectified=True)
        for step in steps:
            ours.step(gradients[step])
            oracle.grad = gradients[step]
            theirs.step()
            torch.testing.assert_close(flat, oracle.detach())


def test_the_first_rectified_step_is_one_of_the_gradient_itself() -> None:
    flat, first, second, count = torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1).double()
    Adam(flat, first, second, count, steps=1, lr=0.5, eps=1e-8, rectified=True).step(torch.tensor([[2.0, -4.0]]))
    torch.testing.assert_close(flat, torch.tensor([[-1.0, 2.0]]))
