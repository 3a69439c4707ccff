"""What the documents show of Slurm is what happens; see test_workers.py for what this needs."""

import pytest

from tests.docs import elsewhere
from tests.slurm.cluster import absent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("page", "heading"), elsewhere.parts("slurm"))
def test_transcripts_are_true(page, heading):
    if why := absent():
        pytest.skip(f"no Slurm on this machine: {why}")
    for block, seen in elsewhere.run(page, heading):
        elsewhere.check(block, seen)
