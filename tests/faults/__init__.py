"""Faults: what befalls jobs, services and disks, and what must hold all the same."""

import pytest

pytest.register_assert_rewrite("tests.faults.promises", "tests.faults.results")
