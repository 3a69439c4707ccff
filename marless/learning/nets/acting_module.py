"""Modules of torch in actors, without torch: onnxruntime runs the graph that comes with the weights.

The inputs of a graph are "inputs", float32 [batch, I], or "images", float32 [batch, channels, height, width], and
"others", float32 [batch, others]; "memory", float32 [batch, H], of a module that remembers; then the module's
parameters, "parameter.<name>", in the order of the flat vector. Its outputs are "outputs", float32 [batch, K], and
"next_memory". Imports `onnx` and `onnxruntime` when a graph is read: the extra `onnx`.
Shapes: N agents (or 1, if all share their weights), B environment copies, I inputs, H numbers of memory (0 without), K
outputs, M samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError, SpecError, told
from marless.core.limits import MAX_PUBLISH_BYTES
from marless.learning.envs.base import FloatArray
from marless.learning.nets.acting_nets import ActingNet
from marless.learning.nets.module_layout import GRAPH, ModuleLayout
from marless.learning.nets.net_kind import InputShape

OPSET = 18
"""Of 2022: runtimes of that time and later read it."""
OUTPUTS, PARAMETER = "outputs", "parameter."
MEMORY, NEXT_MEMORY = "memory", "next_memory"
_PREFIX = "policy"
_MOST_BYTES = 2**26
"""Of a graph, which holds what is not trained."""
_MOST_NUMBERS = MAX_PUBLISH_BYTES // 4
"""That inputs of a graph have together, before memory is allocated for them."""


@dataclass(frozen=True, eq=False)
class Program:
    """A graph that was read."""

    session: Any  # an onnxruntime.InferenceSession, which has no types
    names: tuple[str, ...]
    """Of its inputs, the module's parameters last."""
    given: tuple[tuple[int, ...], ...]
    """Shape of one sample of each input that is no parameter, the memory last."""
    parameters: tuple[tuple[int, ...], ...]
    """Shape of each parameter."""
    outputs: int
    memory: int

    def __call__(self, given: Sequence[FloatArray], parameters: Sequence[FloatArray]) -> list[FloatArray]:
        """Outputs [M, K] of samples [M, …], and beside them the next memory [M, H], if there is one."""
        fed = dict(zip(self.names, (*given, *parameters), strict=True))
        found: list[FloatArray] = self.session.run([OUTPUTS, NEXT_MEMORY] if self.memory else [OUTPUTS], fed)
        return found

    def parts(self, flat_D: FloatArray) -> tuple[FloatArray, ...]:
        """Views of the parameters in their flat vector."""
        sizes = [prod(shape) for shape in self.parameters]
        pieces = np.split(flat_D[: sum(sizes)], np.cumsum(sizes)[:-1])
        return tuple(piece.reshape(shape) for piece, shape in zip(pieces, self.parameters, strict=True))


class ActingModule(ActingNet):
    """One module for each agent, or one that all share."""

    def __init__(self, program: Program, parameters: Sequence[tuple[FloatArray, ...]], inputs: InputShape) -> None:
        self.remembers = program.memory > 0
        self._program, self._parameters, self._inputs = program, parameters, inputs
        self._input = np.empty((0, 0, 0), np.float32)

    def allocate(self, agents: int, batch: int) -> FloatArray:
        # Each copy's inputs, and its memory, in one piece, as graphs take them.
        self._kept_NHB = np.zeros((agents, batch, self._program.memory), np.float32).swapaxes(1, 2)
        self._input = np.ones((agents, batch, self._inputs.size + 1), np.float32).swapaxes(1, 2)
        return self._input

    def output(self) -> FloatArray:
        x_NBI, kept_NBH = self._input.swapaxes(1, 2)[:, :, :-1], self._kept_NHB.swapaxes(1, 2)
        agents, copies, _ = x_NBI.shape
        parts = len(self._parameters)  # 1 if all agents share a module
        samples = agents * copies // parts
        x_PMI = x_NBI.reshape(parts, samples, self._inputs.size)
        kept_PMH = kept_NBH.reshape(parts, samples, self._program.memory)
        found = []
        for x_MI, kept_MH, parameters in zip(x_PMI, kept_PMH, self._parameters, strict=True):
            given = split(self._inputs, x_MI)
            found.append(self._program([*given, kept_MH] if self.remembers else given, parameters))
        outputs_NBK, *memory = (np.concatenate(each).reshape(agents, copies, -1) for each in zip(*found, strict=True))
        if memory:
            (kept_NBH[...],) = memory
        return np.ascontiguousarray(outputs_NBK.swapaxes(1, 2))


def split(inputs: InputShape, x_MI: FloatArray) -> list[FloatArray]:
    """What a graph takes of inputs: all of them, or the images and, if there are any, the others."""
    if inputs.image is None:
        return [np.ascontiguousarray(x_MI)]
    images, others = x_MI[:, : inputs.pixels], x_MI[:, inputs.pixels :]
    parts = [images.reshape(len(x_MI), *inputs.image), *([others] if others.shape[1] else [])]
    return [np.ascontiguousarray(part) for part in parts]


def input_names(count: int, *, remembers: bool) -> tuple[str, ...]:
    """Names of a graph's inputs that are no parameters; of a module that remembers, the last one is its memory."""
    if remembers:
        return (*input_names(count - 1, remembers=False), MEMORY)
    return ("inputs",) if count == 1 else ("images", "others")


def stacked(
    owners: Sequence[Mapping[str, NDArray[np.generic]]], inputs: InputShape, outputs: int, free: int
) -> tuple[ActingNet, FloatArray]:
    """See `acting_nets.stacked`; also raises SpecError where onnxruntime is not installed."""
    graphs = {graph_in(arrays) for arrays in owners}
    if len(graphs) > 1:
        raise CorruptError("its policies are different modules")
    found = program(*graphs)
    sample = np.zeros((1, inputs.size), np.float32)
    shapes = tuple(each.shape[1:] for each in split(inputs, sample))
    if found.memory:
        shapes = (*shapes, (found.memory,))
    if (found.given, found.outputs) != (shapes, outputs):
        raise CorruptError(
            f"policy state: its graph maps {_listed(found.given)} to {found.outputs} numbers, expected "
            f"{_listed(shapes)} and {outputs}"
        )
    numbers = sum(map(prod, found.parameters))
    layout = ModuleLayout(inputs.size, (), outputs, free, numbers=numbers)
    flat_ND = np.stack([layout.from_arrays(_PREFIX, arrays) for arrays in owners])
    return ActingModule(found, [found.parts(flat_D) for flat_D in flat_ND], inputs), flat_ND[:, numbers:]


def graph_in(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """The graph of a policy's state; raises CorruptError."""
    array = arrays.get(f"{_PREFIX}.{GRAPH}")
    if array is None or array.dtype != np.uint8 or array.ndim != 1 or array.size > _MOST_BYTES:
        raise CorruptError(f"policy state: {_PREFIX}.{GRAPH} is missing, or no ONNX graph")
    return array.tobytes()


@lru_cache(maxsize=64)
def program(graph: bytes) -> Program:
    """Read a graph, once for all versions of a policy; raises CorruptError, and SpecError without onnxruntime."""
    onnx, onnxruntime = _libraries()
    try:
        _check_harmless(onnx.load_model_from_string(graph))
        return _read(_session(onnxruntime, graph))
    except CorruptError:
        raise
    except Exception as error:  # noqa: BLE001  # the libraries raise classes of their own for what they cannot read
        raise CorruptError(f"policy state: its ONNX graph cannot be read: {told(error)}") from None


def _check_harmless(model: Any) -> None:  # Any: a message of the package onnx, which the actor imports here only
    """Raise CorruptError for a graph that could read files, loop, or call what is not of ONNX."""
    graph = model.graph
    attributes = [(node.op_type, each) for node in graph.node for each in node.attribute]
    tensors = [*graph.initializer, *(each.t for _, each in attributes)]
    tensors += [tensor for _, each in attributes for tensor in each.tensors]
    outside = [each.name or "a constant" for each in tensors if each.external_data or each.data_location]
    foreign = [each.op_type for each in graph.node if each.domain not in {"", "ai.onnx"}]
    nested = [operator for operator, each in attributes if each.graphs or each.HasField("g")]
    sparse = ["a sparse tensor"] * bool(
        graph.sparse_initializer or any(each.HasField("sparse_tensor") for _, each in attributes)
    )
    functions = [each.name for each in model.functions]
    if odd := [*outside, *foreign, *nested, *sparse, *functions]:
        raise CorruptError(f"policy state: its ONNX graph has something that modules are not made of: {odd[0]!r:.60}")


def _session(onnxruntime: Any, graph: bytes) -> Any:  # Any: a module without types, and its session
    options = onnxruntime.SessionOptions()
    # One thread, as NumPy's products have: results depend on nothing but the inputs, and actors share the cores.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def _read(session: Any) -> Program:  # Any: see `Program`
    """The program of a session, which computes two samples; raises CorruptError for other inputs and outputs."""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    names = tuple(each.name for each in inputs)
    given = tuple(tuple(each.shape[1:]) for each in inputs if not each.name.startswith(PARAMETER))
    parameters = tuple(tuple(each.shape) for each in inputs if each.name.startswith(PARAMETER))
    remembers = MEMORY in names
    results = [OUTPUTS, NEXT_MEMORY] if remembers else [OUTPUTS]
    whole = all(type(length) is int for shape in (*given, *parameters) for length in shape)
    named = names[: len(given)] == input_names(len(given), remembers=remembers)
    named = named and [each.name for each in outputs] == results
    ours = named and parameters and (not remembers or len(given[-1]) == 1)
    if not whole or not ours or {each.type for each in (*inputs, *outputs)} != {"tensor(float)"}:
        raise CorruptError("policy state: its ONNX graph has other inputs or outputs than those of a module")
    shapes = [*((2, *shape) for shape in given), *parameters]
    if sum(map(prod, shapes)) > _MOST_NUMBERS:
        raise CorruptError(f"policy state: its ONNX graph has inputs of more than {_MOST_NUMBERS:,} numbers")
    found = Program(session, names, given, parameters, int(outputs[0].shape[1]), given[-1][0] if remembers else 0)
    zeros = [np.zeros(shape, np.float32) for shape in shapes]
    tried = [each.shape for each in found(zeros[: len(given)], zeros[len(given) :])]
    if tried != [(2, found.outputs), (2, found.memory)][: len(results)]:
        raise CorruptError(f"policy state: its ONNX graph has outputs of shape {_listed(tried)} for two samples")
    return found


def _libraries() -> tuple[Any, Any]:  # Any: modules without types
    try:
        import onnx
        import onnxruntime
    except ModuleNotFoundError as error:
        raise SpecError(
            f"policies that are modules of torch act by onnxruntime, and {error.name} is not installed; pip install "
            "'marless[onnx]'"
        ) from None
    return onnx, onnxruntime


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(" × ".join(map(str, shape)) for shape in shapes)
