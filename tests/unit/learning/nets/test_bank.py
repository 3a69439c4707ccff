"""Rows stay stacked while their names stay together, and move only when they must."""

from __future__ import annotations

import pytest
import torch

from marless.core.errors import NotFoundError
from marless.learning.nets.learner_states import Bank, Row


def _bank() -> Bank[Row]:
    bank: Bank[Row] = Bank(lambda row: row)
    for i, name in enumerate("abc"):
        bank.put(name, {"x": torch.full((2,), float(i))})
    return bank


def test_an_unchanged_stack_is_kept_and_trained_through_views() -> None:
    bank = _bank()
    (first,) = bank.arrange([(("a", "b"), ("a", "b"))])
    first["x"] += 10
    assert bank.row("b")["x"].tolist() == [11.0, 11.0]
    (second,) = bank.arrange([(("a", "b"), ("a", "b"))])
    assert second is first


def test_a_replaced_row_is_stacked_anew() -> None:
    bank = _bank()
    (first,) = bank.arrange([(("a", "b"), ("a", "b"))])
    bank.put("a", {"x": torch.full((2,), 5.0)})
    (second,) = bank.arrange([(("a", "b"), ("a", "b"))])
    assert second is not first
    assert second["x"][:, 0].tolist() == [5.0, 1.0]


def test_sources_are_read_before_anything_is_overwritten() -> None:
    bank = _bank()
    first, second = bank.arrange([(("a",), ("b",)), (("b", "c"), ("a", "a"))])
    assert first["x"][:, 0].tolist() == [1.0]
    assert second["x"][:, 0].tolist() == [0.0, 0.0]
    second["x"][0] += 1
    assert [bank.row(name)["x"][0].item() for name in "abc"] == [1.0, 1.0, 0.0]


def test_an_unknown_name_is_not_found() -> None:
    with pytest.raises(NotFoundError, match=r"'z'.*\['a', 'b', 'c'\]"):
        _bank().arrange([(("a",), ("z",))])


def test_a_stack_that_starts_from_others_is_stacked_anew() -> None:
    bank = _bank()
    bank.arrange([(("a", "b"), ("a", "b"))])
    (swapped,) = bank.arrange([(("a", "b"), ("b", "a"))])
    assert swapped["x"][:, 0].tolist() == [1.0, 0.0]
