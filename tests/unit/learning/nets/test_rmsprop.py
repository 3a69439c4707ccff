"""RMSProp against torch's own."""

from __future__ import annotations

import torch

from marless.learning.nets.adam import RMSProp


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
