"""The device of these tests: the first GPU, or what MARLESS_TEST_DEVICE names, such as cpu, to try the tests."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = os.environ.get("MARLESS_TEST_DEVICE", "cuda:0")
MISSING = f"torch {torch.__version__} sees no GPU here; MARLESS_TEST_DEVICE=cpu tries the tests themselves"
needs_device = pytest.mark.skipif(DEVICE.startswith("cuda") and not torch.cuda.is_available(), reason=MISSING)
