"""A suite whose tools are missing fails, and says what is missing."""

import subprocess
import sys

SUITE = """
import pytest

@pytest.fixture
def tool():
    pytest.skip("the tool is missing: apt-get install tool")

def test_with_it(tool):
    pass

@pytest.mark.skipif(True, reason="no such kernel")
def test_of_a_kernel():
    pass

def test_of_another_engine():
    pytest.xfail("this engine does otherwise")
"""


def outcome(place, *options: str) -> str:
    (place / "test_suite.py").write_text(SUITE)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", *options)
    return subprocess.run((*command, f"{place}/test_suite.py"), capture_output=True, text=True, check=False).stdout


def test_what_is_skipped_fails_if_nothing_may_be(tmp_path):
    said = outcome(tmp_path, "--nothing-skipped")
    assert "1 xfailed, 2 errors" in said
    assert "this suite cannot run here: the tool is missing: apt-get install tool" in said
    assert "this suite cannot run here: no such kernel" in said
    assert "2 skipped, 1 xfailed" in outcome(tmp_path)
