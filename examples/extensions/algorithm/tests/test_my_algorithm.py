import torch
from marless.learning.algos.contract import check_algorithm

from my_algorithm.algorithm import ALGORITHM, MyAlgorithmConfig
from my_algorithm.loss import loss


def test_loss_is_what_was_worked_out_by_hand() -> None:
    # Two samples of one policy, ε = 0.2. ρ = 1.5, A = 2: 1.5·2 − 2/0.4·0.5² = 1.75, times a weight of 3/4.
    # ρ = 0.9, A = −1: −0.9 − 1/0.4·0.1² = −0.925, times 1/4.
    log_prob, old = torch.tensor([[1.5, 0.9]]).log(), torch.zeros(1, 2)
    advantage, weight = torch.tensor([[2.0, -1.0]]), torch.tensor([[0.75, 0.25]])
    expected = torch.tensor([-(0.75 * 1.75 + 0.25 * -0.925)])
    torch.testing.assert_close(loss(log_prob, old, advantage, weight, 0.2), expected)


def test_it_keeps_the_contract() -> None:
    check_algorithm(ALGORITHM, MyAlgorithmConfig(epochs=1), one_step={"minibatches": 1})
