import asyncio

from marless.fleet.launchers.contract import check_launcher

from my_launcher.launcher import MyLauncher


def test_it_keeps_the_contract() -> None:
    asyncio.run(check_launcher(lambda program: MyLauncher(program, {}), "marless.services.actor_pool.worker"))
