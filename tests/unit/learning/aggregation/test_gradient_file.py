"""Gradients as files: what was written is read, and other files are refused."""

import numpy as np
import pytest
from safetensors import numpy as safetensors

from marless.core.errors import CorruptError
from marless.learning.aggregation import gradient_file

GRADIENTS = {
    "agent_0": {"policy": np.arange(4, dtype=np.float32)},
    "critic.agent": {"critic": np.ones(3, np.float32), "critic.returns": np.full((2, 3), 0.5)},
}


def test_what_was_written_is_read() -> None:
    found = gradient_file.decode(gradient_file.encode(GRADIENTS))
    assert found.keys() == GRADIENTS.keys()
    for policy, arrays in GRADIENTS.items():
        assert found[policy].keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[policy][name], array)
            assert found[policy][name].dtype == array.dtype


def test_equal_gradients_give_equal_bytes() -> None:
    assert gradient_file.encode(GRADIENTS) == gradient_file.encode(dict(GRADIENTS))


@pytest.mark.parametrize("data", [b"", b"no file", safetensors.save({"policy": np.ones(2, np.float32)})])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptError, match="gradient"):
        gradient_file.decode(data)
