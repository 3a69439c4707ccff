"""The command `dashboard`: where it listens, by what it is entered, and what it says when it cannot start."""

import json
import ssl
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest

from marless.app.dashboard.guard import hosts_of, token_of
from marless.app.dashboard.server import DashboardOptions, address_of
from marless.core.errors import SpecError, UnavailableError
from tests import certificates

START_S = 60.0


@contextmanager
def started(*words, stdin=subprocess.DEVNULL):
    """A dashboard in a process of its own, and the address that it prints."""
    command = [sys.executable, "-P", "-m", "marless", "dashboard", *map(str, words)]
    with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()
            assert "Traceback" not in process.stderr.read()


def asked(address: str, path: str, *, token: str | None = None, context=None) -> object:
    base, _, own = address.partition("/#token=")
    headers = {"Authorization": f"Bearer {own if token is None else token}"}
    request = urllib.request.Request(f"{base}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=START_S, context=context) as answer:
        return json.load(answer)


@pytest.fixture(autouse=True)
def _priority_of_tests(monkeypatch):
    """Commands that run in the tests' own process leave its priority as it is; those of `started` lower theirs."""
    monkeypatch.setattr("os.nice", lambda by: 0)


@pytest.fixture
def runs(tmp_path):
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def test_a_folder_is_served_on_loopback_until_the_command_ends(runs):
    with started(runs) as (process, address):
        assert address.startswith("http://127.0.0.1:") and "/#token=" in address
        assert asked(address, "/api/jobs") == {"jobs": [], "problems": [], "unreachable": ""}
        with pytest.raises(urllib.error.HTTPError, match="401"):
            asked(address, "/api/jobs", token="wrong")
        process.terminate()
        assert process.wait(START_S) is not None


def test_it_ends_with_the_process_that_holds_its_input(runs):
    with started(runs, "--until-eof", stdin=subprocess.PIPE) as (process, address):
        assert asked(address, "/api/about")["writable"] is False
        process.stdin.close()
        assert process.wait(START_S) == 0


def test_a_token_file_is_private_and_keeps_the_address(runs, tmp_path):
    file = tmp_path / "token"
    with started(runs, "--token-file", file) as (_, address):
        token = address.partition("=")[2]
    assert file.read_text().strip() == token and file.stat().st_mode & 0o777 == 0o600
    assert token_of(file) == token
    file.write_text("short")
    with pytest.raises(SpecError, match="holds no token"):
        token_of(file)
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnavailableError, match="token"):
        token_of(file)


def test_other_hosts_are_served_with_tls_alone(runs, tmp_path, marless):
    assert marless("dashboard", runs, "--listen", "0.0.0.0:0")[0] == 2
    made = certificates.made(tmp_path, "localhost")
    words = ("--listen", "0.0.0.0:0", "--advertise", "localhost")
    words = (*words, "--tls-cert", made["server.pem"], "--tls-key", made["server.key"])
    with started(runs, *words) as (_, address):
        assert address.startswith("https://localhost:")
        context = ssl.create_default_context(cafile=made["ca.pem"])
        assert asked(address, "/api/jobs", context=context)["jobs"] == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["RUNS", "--listen", "10.0.0.1:80"], 2, "so it needs TLS"),
        (["RUNS", "--listen", "0.0.0.0:0"], 2, "so it needs TLS"),
        (["RUNS", "--listen", "nonsense"], 2, "give a host and a port"),
        (["RUNS", "--listen", "127.0.0.1:99999"], 2, "give a host and a port"),
        (["RUNS", "--listen", "10.0.0.1:80", "--tls-cert", "x"], 2, "belong together"),
        (["nowhere"], 102, "there is no such directory"),
        (["RUNS/job"], 2, "is a run folder; give the directory"),
        (["s3://bucket/runs"], 2, "is a place in a bucket"),
        (["--runs", "RUNS"], 1, "or show a directory of run folders"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_sentence(marless, runs, monkeypatch, words, code, said):
    monkeypatch.delenv("MARLESS_COORDINATOR", raising=False)
    (runs / "job").mkdir()
    (runs / "job" / "job.json").write_text("{}")
    found, out, told = marless("dashboard", *(word.replace("RUNS", str(runs)) for word in words))
    assert (found, out) == (code, "") and said in " ".join(told.split())


def test_without_its_library_the_command_says_how_to_install_it(marless, runs, monkeypatch):
    monkeypatch.setattr("marless.app.cli.dashboard.find_spec", lambda _name: None)
    for words in (("dashboard", runs), ("up", "--runs", runs, "--dashboard", "8090")):
        code, _, told = marless(*words)
        assert code == 1 and "pip install 'marless[dashboard]'" in " ".join(told.split())


def test_the_command_line_starts_without_the_library():
    program = "import sys; from marless.app.cli.main import main; print('aiohttp' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "False"


def test_a_port_that_is_taken_is_said(marless, runs):
    with started(runs) as (_, address):
        port = address.partition("/#")[0].rpartition(":")[2]
        code, _, told = marless("dashboard", runs, "--listen", f"127.0.0.1:{port}")
    assert code == 1 and "choose another port" in told


@pytest.mark.parametrize(
    ("listen", "advertise", "hosts"),
    [
        ("127.0.0.1:0", "", {"127.0.0.1:80", "localhost:80", "[::1]:80", "127.0.0.1", "localhost", "[::1]"}),
        ("0.0.0.0:0", "GPU1.example.org", {"0.0.0.0:80", "gpu1.example.org:80", "0.0.0.0", "gpu1.example.org"}),
        ("[::]:0", "gpu1:7000", {"[::]:80", "gpu1:80", "gpu1:7000", "[::]", "gpu1"}),
    ],
)
def test_the_hosts_by_which_it_is_called(listen, advertise, hosts):
    assert hosts_of(listen, 80, advertise) == hosts
    assert "evil.example:80" not in hosts_of(listen, 80, advertise)


def test_the_address_is_what_others_dial():
    options = DashboardOptions(listen="0.0.0.0:0", advertise="gpu1", token="t")
    assert address_of(options, "https", 8090) == "https://gpu1:8090/#token=t"
    options = DashboardOptions(listen="[::1]:0", token="t")
    assert address_of(options, "http", 8090) == "http://[::1]:8090/#token=t"
