"""A gradient as a safetensors file: the arrays of every policy of a scope, each named `<policy>/<array>`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from marless.core.errors import CorruptError, shown, told
from marless.core.state import Arrays


def encode(gradients: Mapping[str, Arrays]) -> bytes:
    """Serialise the gradients of several policies, as `Learner.gradients` gives them. Equal ones give equal bytes."""
    return safetensors.save(
        {
            f"{policy}/{name}": np.asarray(array, order="C")
            for policy, arrays in gradients.items()
            for name, array in arrays.items()
        }
    )


def decode(data: bytes) -> dict[str, dict[str, NDArray[np.generic]]]:
    """The inverse of `encode`; raises CorruptError. Values are not checked; `applying.check` does that."""
    try:
        arrays: dict[str, NDArray[np.generic]] = safetensors.load(data)
    except (SafetensorError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorruptError(f"gradient: not a safetensors file ({told(error)})") from None
    found: dict[str, dict[str, NDArray[np.generic]]] = {}
    for name, array in arrays.items():
        policy, slash, array_name = name.rpartition("/")
        if not slash:
            raise CorruptError(f"gradient: array {shown(name)} belongs to no policy")
        found.setdefault(policy, {})[array_name] = array
    return found
