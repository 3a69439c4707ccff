"""The launcher `docker` on a real engine."""

import pytest

from marless.fleet.launchers import docker
from marless.fleet.launchers.contract import check_launcher

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]
OPTIONS = {"image": "marless-actors", "network": "host", "user": "1000"}


async def test_it_passes_the_contract(images):
    await check_launcher(
        lambda program: docker.make(program, OPTIONS), "services.actor_pool.worker", listen="127.0.0.1:0"
    )
