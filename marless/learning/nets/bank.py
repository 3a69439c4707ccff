"""Holds learner states by name, stacked for batched passes; a stack is reused while the same names are requested."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from marless.core.errors import NotFoundError

Row = Mapping[str, Tensor]
"""The state of one learner function under one name; all rows of a bank have equal keys and shapes."""
FunctionT = TypeVar("FunctionT")


@dataclass(frozen=True)
class _Stack(Generic[FunctionT]):
    function: FunctionT
    rows: tuple[Row, ...]


class Bank(Generic[FunctionT]):
    """Rows by name. `build` makes the function that trains a stack of rows in place, from the stacked tensors."""

    def __init__(self, build: Callable[[Row], FunctionT]) -> None:
        self._build = build
        self._rows: dict[str, Row] = {}
        self._stacks: dict[tuple[str, ...], _Stack[FunctionT]] = {}

    def built(self, stacked: Row) -> FunctionT:
        """The function of a stack that the bank does not hold."""
        return self._build(stacked)

    def put(self, name: str, row: Row) -> None:
        """Hold a row under a name, replacing the present one."""
        self._rows[name] = row

    def row(self, name: str) -> Row:
        """The row of a name, possibly as views of a stack; raises NotFoundError."""
        if name not in self._rows:
            raise NotFoundError(f"the learner holds no state of {name!r}; it holds {sorted(self._rows)}")
        return self._rows[name]

    def arrange(self, stacks: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]) -> list[FunctionT]:
        """The function of each stack, given as (names, names to start from); the names' rows become views of the stack.

        An unchanged stack is reused without copying. All sources are read before any name is overwritten.
        """
        kept = {names: self._unchanged(names, starts) or self._stack(starts) for names, starts in stacks}
        for names, stack in kept.items():
            self._rows.update(zip(names, stack.rows, strict=True))
        self._stacks = kept
        return [kept[names].function for names, _ in stacks]

    def copies(self, stacks: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]) -> list[FunctionT]:
        """Arrange copies, as `arrange` does the rows themselves: the held rows do not change."""
        return [self._stack(starts).function for _, starts in stacks]

    def change(self, name: str, change: Callable[[FunctionT], None]) -> None:
        """Apply `change` to the function of a stack of one row, and hold the changed row under its name."""
        stack = self._stack((name,))
        change(stack.function)
        self._rows[name] = stack.rows[0]

    def _unchanged(self, names: tuple[str, ...], starts: tuple[str, ...]) -> _Stack[FunctionT] | None:
        stack = self._stacks.get(names)
        if stack is None or names != starts:
            return None
        # A row that is another object was put, changed or moved to another stack since: then
        # this stack's copy is outdated.
        same = all(self.row(name) is row for name, row in zip(names, stack.rows, strict=True))
        return stack if same else None

    def _stack(self, starts: tuple[str, ...]) -> _Stack[FunctionT]:
        sources = [self.row(start) for start in starts]
        tensors = {key: torch.stack([source[key] for source in sources]) for key in sources[0]}
        rows = tuple({key: tensor[i] for key, tensor in tensors.items()} for i in range(len(sources)))
        return _Stack(self._build(tensors), rows)
