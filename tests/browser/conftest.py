"""A dashboard in a process of its own, on a scripted coordinator; and Chromium, which Playwright drives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.scripted_coordinator import ScriptedCoordinator

playwright = pytest.importorskip("playwright.sync_api", reason="make test-browser installs it")
WAIT_MS = 15_000


@dataclass
class Opened:
    """A page, and what it has said and asked for."""

    page: playwright.Page
    address: str
    token: str
    said: list[str]
    asked: list[str]

    def show(self, place: str) -> None:
        """Go to a place of the dashboard, such as /job/tiny."""
        self.page.evaluate(f"location.hash = '#{place}'")

    def see(self, text: str) -> None:
        """Wait until a text is shown."""
        self.page.get_by_text(text, exact=False).first.wait_for(timeout=WAIT_MS)


@pytest.fixture(scope="session")
def chromium() -> Iterator[playwright.Browser]:
    path = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    if path is None:
        pytest.skip("Chromium is missing: apt-get install --no-install-recommends chromium")
    with playwright.sync_playwright() as driver:
        # Its sandbox needs privileges that containers, and root, do not have; it opens our pages alone.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def coordinator(tmp_path) -> Iterator[ScriptedCoordinator]:
    with ScriptedCoordinator(tmp_path) as running:
        yield running


@pytest.fixture
def dashboard(coordinator) -> Iterator[tuple[str, str]]:
    """The address and the token of a dashboard."""
    command = [sys.executable, "-P", "-m", "marless", "dashboard", "--coordinator", coordinator.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        address, _, token = process.stdout.readline().strip().partition("/#token=")
        yield address, token
        process.terminate()


@pytest.fixture
def opened(chromium, dashboard, request) -> Iterator[Opened]:
    address, token = dashboard
    options = getattr(request, "param", {})
    page = chromium.new_page(**{"viewport": {"width": 1280, "height": 900}} | options)
    page.set_default_timeout(WAIT_MS)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda sent: asked.append(sent.url))
    page.goto(f"{address}/#token={token}")
    yield Opened(page, address, token, said, asked)
    page.close()
