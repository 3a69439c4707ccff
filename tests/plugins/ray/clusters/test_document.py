"""What docs/deploying.md shows of a Ray cluster is what happens."""

from __future__ import annotations

import pytest

from tests.docs import transcripts
from tests.docs.blocks import Block, blocks
from tests.docs.workplace import Workplace
from tests.plugins.ray.clusters.cluster import ray_cluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.usefixtures("nothing_left")]


def shown() -> Block:
    [block] = [each for each in blocks("docs/deploying.md", "text") if each.heading == "Ray"]
    return block


def test_its_commands_run(tmp_path, monkeypatch):
    workplace = Workplace(tmp_path, small=False)
    workplace.furnish()
    with ray_cluster(4) as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        try:
            seen = workplace.transcript(shown())
        finally:
            workplace.close()
    for command, lines in zip(transcripts.parse(shown().text), seen, strict=True):
        assert transcripts.same(command.output, lines), "\n".join([command.command, *lines])
