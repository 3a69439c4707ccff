"""The states of nets in a learner: by name, stacked for batched passes, and as the named arrays of a PolicyState."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.core.errors import CorruptError, NotFoundError
from marless.learning.nets.layout import FloatArray, NetLayout, ParameterLayout, checked
from marless.learning.nets.normalising import SEEN

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
        kept = {}
        for names, starts in stacks:
            stack = self._stacks.get(names)
            # A row that is another object was put, changed or moved to another stack since: then this stack's copy is
            # outdated.
            unchanged = names == starts and stack and all(map(is_, map(self.row, names), stack.rows))
            kept[names] = stack if stack and unchanged else self._stack(starts)
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

    def _stack(self, starts: tuple[str, ...]) -> _Stack[FunctionT]:
        sources = [self.row(start) for start in starts]
        tensors = {key: torch.stack([source[key] for source in sources]) for key in sources[0]}
        rows = tuple({key: tensor[i] for key, tensor in tensors.items()} for i in range(len(sources)))
        return _Stack(self._build(tensors), rows)


Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class StateCodec:
    """Converts the state of nets of one layout.

    A row has `flat` (parameters), `first` and `second` (the optimizer's moments), each float32 [D], and `count` (steps
    taken, float64). With `moments`, it also has the running (Σw, Σwx, Σwx²) of each output's targets, float64 [K, 3];
    with `target`, the target net's parameters, float32 [D], initially equal to the net's; with `rewards`, sums of
    rewards, float64 [5] (`marless.learning.algos.training.rewards`); with `seen`, the sums of that many inputs,
    float64 [I, 3] (`marless.learning.nets.normalising`), which actors need as they need the weights.
    """

    prefix: str
    layout: ParameterLayout
    output_gain: float
    """Gain of the initial output layer."""
    acts: bool
    """True if actors need the weights: they are then part of `acting`, otherwise of `learning`."""
    moments: bool = False
    target: bool = False
    rewards: bool = False
    biased: bool = False
    """See `ParameterLayout.initial`."""
    seen: int = 0
    """I, the number of inputs that are normalised; 0: none are."""
    free: tuple[float, ...] = ()
    """Initial values of the last parameters; others are those of the layout."""
    values: int = 0
    """How many outputs, the last ones, are values, whose initial gain is 1 whatever `output_gain` is."""

    def fresh(self, rng: np.random.Generator) -> Row:
        """A row with initial weights and a fresh optimizer state, on the CPU."""
        flat_D = self.layout.initial(rng, self.output_gain, biased=self.biased)
        flat_D[len(flat_D) - len(self.free) :] = self.free
        if self.values and isinstance(self.layout, NetLayout) and self.layout.shapes:  # a module's gain is its own
            self.layout.output_layer(flat_D)[-self.values :] /= self.output_gain
        return self._row(flat_D, {})

    def write(self, row: Row) -> tuple[dict[str, NDArray[np.generic]], dict[str, NDArray[np.generic]]]:
        """Convert a row to (acting, learning) arrays, as copies."""
        # On a CPU `numpy()` shares memory with the stack, which later updates change in
        # place: what is published must not.
        arrays = {key: tensor.cpu().numpy().copy() for key, tensor in row.items()}
        weights: dict[str, NDArray[np.generic]] = {**self.layout.to_arrays(self.prefix, arrays.pop("flat"))}
        # Counted in float64 only because Adam raises its decay rates to powers of it.
        arrays["count"] = arrays["count"].astype(np.int64)
        if self.seen:
            weights[f"{self.prefix}.{SEEN}"] = arrays.pop(SEEN)
        memory = {f"{self.prefix}.{key}": array for key, array in arrays.items()}
        if self.acts and isinstance(self.layout, NetLayout):
            weights |= self.layout.acting_arrays(self.prefix)
        return (weights, memory) if self.acts else ({}, weights | memory)

    def read(self, acting: Arrays, learning: Arrays) -> Row:
        """The inverse of `write`, on the CPU; raises CorruptError, naming the array that does not fit."""
        weights = acting if self.acts else learning
        flat_D = self.layout.from_arrays(self.prefix, weights)
        start = len(self.prefix) + 1
        memory = {key[start:]: array for key, array in learning.items() if key.startswith(f"{self.prefix}.")}
        for key in ("first", "second", "target") if self.target else ("first", "second"):
            checked(memory, key, (self.layout.size,))
        shapes: dict[str, tuple[int, ...]] = {"count": ()}
        shapes |= {"moments": (self.layout.outputs, 3)} if self.moments else {}
        shapes |= {"rewards": (5,)} if self.rewards else {}
        for key, shape in shapes.items():
            if key not in memory or memory[key].shape != shape:
                raise CorruptError(f"policy state: {self.prefix}.{key} is missing or not of shape {list(shape)}")
        if self.seen:
            seen = weights.get(f"{self.prefix}.{SEEN}")
            if seen is None or seen.shape != (self.seen, 3):
                raise CorruptError(f"policy state: {self.prefix}.{SEEN} is missing or not of shape [{self.seen}, 3]")
            memory[SEEN] = seen
        return self._row(flat_D, memory)

    def _row(self, flat_D: FloatArray, memory: Arrays) -> Row:
        zeros_D = np.zeros_like(flat_D)
        row: dict[str, Tensor] = {
            "flat": torch.tensor(flat_D),
            "first": torch.tensor(memory.get("first", zeros_D)),
            "second": torch.tensor(memory.get("second", zeros_D)),
            "count": torch.tensor(memory.get("count", np.int64(0)), dtype=torch.float64),
        }
        if self.moments:
            nothing = np.zeros((self.layout.outputs, 3))
            row["moments"] = torch.tensor(memory.get("moments", nothing), dtype=torch.float64)
        if self.rewards:
            row["rewards"] = torch.tensor(memory.get("rewards", np.zeros(5)), dtype=torch.float64)
        if self.seen:
            row[SEEN] = torch.tensor(memory.get(SEEN, np.zeros((self.seen, 3))), dtype=torch.float64)
        if self.target:
            row["target"] = torch.tensor(memory.get("target", flat_D))
        return row
