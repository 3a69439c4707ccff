"""Ten times as many callers as keep a service busy."""

import pytest

from tests.faults import overload


@pytest.mark.alone
async def test_services_do_no_less_under_overload(tmp_path):
    """A small size, lenient: on a busy machine callers come too slowly for any to be refused."""
    figures = await overload.run(tmp_path, seconds=1.0, least=0.2, turns=2)
    assert {name.partition(" ")[0] for name in figures} == {"publishes", "gets", "uploads", "rollouts", "submits"}
