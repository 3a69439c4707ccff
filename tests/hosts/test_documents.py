"""What the documents show of several hosts is what happens between network namespaces."""

import pytest

from tests.docs import elsewhere
from tests.hosts.network import refused

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("page", "heading"), elsewhere.parts("hosts"))
def test_transcripts_are_true(page, heading):
    if why := refused():
        pytest.skip(f"no network namespaces on this machine: {why}")
    for block, seen in elsewhere.run(page, heading):
        elsewhere.check(block, seen)
