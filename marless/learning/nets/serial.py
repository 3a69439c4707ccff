"""Serialises a PolicyState as two safetensors files, "acting" and "learning". Equal states give equal bytes."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from marless.core.errors import CorruptError, SpecError, told
from marless.learning.nets.acting import Acting, ActingState, Arrays

if TYPE_CHECKING:
    from marless.core.state import PolicyState

_KEY = "marless"  # one entry, because the order of several in a safetensors header is not defined


def encode(state: PolicyState) -> tuple[bytes, bytes]:
    """Serialise a state: the bytes of `acting`, with the metadata in the header, and of `learning`."""
    return encode_acting(state), _save(state.learning)


def encode_acting(part: Acting) -> bytes:
    """Serialise the acting part of a state, with the metadata in the header."""
    return _save(part.acting, json.dumps(dict(part.metadata), sort_keys=True))


def decode(acting: bytes, learning: bytes) -> PolicyState:
    """The inverse of `encode`; raises CorruptError for invalid bytes and for values that are not finite."""
    from marless.core.state import PolicyState  # imported here, because it would import pydantic into actors

    part = decode_acting(acting)
    return PolicyState(acting=part.acting, learning=_load(learning), metadata=part.metadata)


def decode_acting(acting: bytes) -> ActingState:
    """The inverse of `encode_acting`; raises CorruptError."""
    arrays = _load(acting)
    try:
        # The library returns no metadata, so the header, which `_load` has found valid, is read again.
        header = json.loads(acting[8 : 8 + int.from_bytes(acting[:8], "little")])
        metadata = json.loads(header["__metadata__"][_KEY])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CorruptError(f"policy state: the header holds no metadata of ours ({type(error).__name__})") from None
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CorruptError("policy state: the metadata of the header are not texts by name")
    return ActingState(acting=arrays, metadata=metadata)


def _load(data: bytes) -> dict[str, NDArray[np.generic]]:
    try:
        arrays: dict[str, NDArray[np.generic]] = safetensors.load(data)
    except (SafetensorError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorruptError(f"policy state: not a safetensors file ({told(error)})") from None
    if odd := not_finite(arrays):
        raise CorruptError(f"policy state: {odd} holds NaN or infinite values")
    return arrays


def check_update(policy: str, state: PolicyState) -> None:
    """Raise SpecError if an update has made NaN or infinite values in the next version of a policy."""
    if odd := not_finite({**state.acting, **state.learning}):
        raise SpecError(
            f"the update of {policy!r} made NaN or infinite values ({odd}) and was not published; lower algorithm.lr "
            "or algorithm.max_grad_norm, or scale the environment's rewards"
        )


def not_finite(arrays: Arrays) -> str:
    """The name of an array with NaN or infinite values; "" if there is none."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return name
    return ""


def _save(arrays: Arrays, metadata: str | None = None) -> bytes:
    """A safetensors file. Its header is made only once for arrays that differ in nothing but their values, as those of
    all versions of a policy do: the library takes most of its time for headers.
    """
    # The format is little-endian and without gaps; arrays that are so already are not copied.
    plain = {name: np.asarray(each, each.dtype.newbyteorder("<"), order="C") for name, each in arrays.items()}
    header, order = _header(tuple((name, each.dtype, each.shape) for name, each in plain.items()), metadata)
    return b"".join([header, *(plain[name].data for name in order)])


@lru_cache(maxsize=256)
def _header(
    described: tuple[tuple[str, np.dtype[np.generic], tuple[int, ...]], ...], metadata: str | None
) -> tuple[bytes, tuple[str, ...]]:
    """What comes before the values of arrays in their file, and the names of the arrays in the order of values."""
    zeros = {name: np.zeros(shape, dtype) for name, dtype, shape in described}
    file = safetensors.save(zeros, None if metadata is None else {_KEY: metadata})
    start = 8 + int.from_bytes(file[:8], "little")
    # The library orders values as it likes, so their order is taken from the header that it made.
    at = {name: each["data_offsets"] for name, each in json.loads(file[8:start]).items() if name in zeros}
    return file[:start], tuple(sorted(at, key=lambda name: at[name]))
