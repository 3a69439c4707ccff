"""How a service of the local stack starts: forked or not, it finds the same, and its end is noticed."""

import asyncio
import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from marless.app.cli.service_process import UNKNOWN, ServiceProcess, Start, Starter, ahead
from marless.core import process_environment
from marless.fleet.launchers.template import ORDER_BYTES

MODULE = "tests.unit.app.cli.scripted_service"
PATIENCE_S = 30.0


class Place:
    """Starts the scripted service."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.others = {name: value for name, value in os.environ.items() if not name.startswith("MARLESS_")}
        self.starter = Starter("tests.unit.app.cli", (), (str(path), "--word", "x" * 100))

    @property
    def log(self) -> str:
        return (self.path / "log").read_text()

    async def start(self, module: str = MODULE, **variables: str) -> ServiceProcess:
        with (self.path / "log").open("ab") as log, (self.path / "lease").open("w") as lease:
            return await self.starter.start(
                Start(
                    module=module,
                    arguments=(str(self.path), "--word", "word"),
                    environment=self.others | variables,
                    log=log,
                    inherited=[lease.fileno()],
                )
            )

    async def facts(self, service: ServiceProcess) -> dict:
        path = self.path / str(service.pid)
        async with asyncio.timeout(PATIENCE_S):
            while not path.exists():  # noqa: ASYNC110  # a process tells nobody
                await asyncio.sleep(0.01)
        return json.loads(path.read_text())


@pytest.fixture
async def place(tmp_path, monkeypatch):
    monkeypatch.setenv("MARLESS_TOKENS", "canary")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    place = Place(tmp_path)
    yield place
    place.starter.end()


def template_of(service: ServiceProcess) -> psutil.Process | None:
    parent = psutil.Process(service.pid).parent()
    return parent if parent != psutil.Process() else None


@pytest.mark.parametrize(("own", "forked"), [({}, True), ({"PYTHONPATH": "/nowhere"}, False)])
async def test_a_service_finds_what_it_is_given_and_nothing_else(place, own, forked):
    given = {"MARLESS_RUNS": "here", "MARLESS_DATA_DIR": "there"} | own
    (await place.start()).send_signal(signal.SIGKILL)
    service = await place.start(**given)
    found = await place.facts(service)
    process = psutil.Process(service.pid)
    assert bool(template_of(service)) is forked
    assert found["arguments"] == [str(place.path), "--word", "word"]
    assert [word for word in process.cmdline() if word][1:] == ["-P", "-m", MODULE, *found["arguments"]]
    assert found["session"] == service.pid
    assert found["environment"] == place.others | given | (process_environment.ONE_THREAD if forked else {})
    assert "canary" not in str(process.environ()) + str(template_of(service) and template_of(service).environ())
    standard_input, output, errors, *others = found["descriptors"]
    assert standard_input.startswith("pipe:") or not forked
    assert output == errors == str(place.path / "log")
    assert others == [str(place.path / "lease")]


async def test_its_exit_code_and_its_log_are_kept(place):
    service = await place.start()
    await place.facts(service)
    assert service.returncode is None
    os.close(service._standard_input)  # as the end of this process would
    service._standard_input = os.open(os.devnull, os.O_RDONLY)
    held = service._standard_input
    assert await service.wait() == service.returncode == 3
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(held)
    assert place.log == "started\nstopped\n"


async def test_signals_reach_it(place):
    service = await place.start()
    await place.facts(service)
    service.send_signal(signal.SIGTERM)
    assert await service.wait() == -signal.SIGTERM
    service.send_signal(signal.SIGTERM)  # it has ended: nothing happens


async def test_services_outlive_their_template_and_the_next_one_has_another(place):
    before = await place.start()
    await place.facts(before)
    forking = template_of(before)
    forking.kill()
    after = await place.start()
    await place.facts(after)
    assert template_of(after) not in (None, forking)
    assert before.returncode is None
    before.send_signal(signal.SIGKILL)
    assert await before.wait() == UNKNOWN
    after.send_signal(signal.SIGKILL)
    assert await after.wait() == -signal.SIGKILL


async def test_services_are_not_ended_by_a_template_that_ends(place):
    service = await place.start()
    await place.facts(service)
    forking = template_of(service)
    place.starter._template._orders.close()  # as the end of this process would
    forking.wait(PATIENCE_S)
    assert psutil.Process(service.pid).status() == psutil.STATUS_SLEEPING
    service.send_signal(signal.SIGKILL)
    await service.wait()


async def test_what_cannot_be_imported_is_said_in_the_log_of_the_service(place):
    service = await place.start("tests.unit.app.cli.missing")
    assert await service.wait() == 1
    assert "No module named tests.unit.app.cli.missing" in place.log


async def test_settings_that_are_too_long_are_refused(place):
    with pytest.raises(OSError, match="too long"):
        await place.start(MARLESS_ENV_MODULES="x" * ORDER_BYTES)


async def test_services_are_imported_before_the_first_one_is_started(tmp_path):
    """In the order of their names, one after another."""
    package, log = tmp_path / "lazy", tmp_path / "imported"
    package.mkdir()
    for name in ("__init__", "first", "second"):
        (package / f"{name}.py").write_text(f"open({str(log)!r}, 'a').write(__name__ + ' ')\n")
    starter = Starter("lazy", ("second", "first"), ())
    starter.prepare({**os.environ, "PYTHONPATH": str(tmp_path)})
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not log.exists() or log.read_text() != "lazy lazy.second lazy.first ":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        starter.end()


def test_what_was_imported_ahead_is_ended_if_no_service_is_started():
    with pytest.raises(ValueError, match="the job file is wrong"), ahead() as starter:
        forking = psutil.Process(starter.prepare({}).pid)
        assert forking.is_running()
        raise ValueError("the job file is wrong")
    assert not forking.is_running()


async def test_services_are_forked_from_the_package_as_which_they_are_started(place):
    """An installed marless has no other: a template of `services`, as in a checkout, would end at once."""
    place.starter = Starter()
    await (await place.start("marless.fleet.launchers.idle")).wait()
    command = psutil.Process(place.starter.prepare(os.environ).pid).cmdline()
    assert "--module=marless.services" in command
    assert any("marless.services.coordinator" in word for word in command if word.startswith("--ahead="))
