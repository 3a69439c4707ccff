"""The launcher `kubernetes` passes the contract of launchers; its workers are real ones, as processes."""

from marless.fleet.launchers.contract import check_launcher
from marless_kubernetes import launcher as kubernetes


async def test_it_passes_the_contract(server, options):
    await check_launcher(
        lambda program: kubernetes.make(program, options), "marless.services.actor_pool.worker", listen="127.0.0.1:0"
    )
    assert server.pods == server.secrets == {}
