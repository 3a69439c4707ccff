"""Nothing is installed but what the locks of requirements/ name, file by file."""

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from datetime import date
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bench.peers.install import REQUIREMENTS as PEERS
from requirements import audit
from requirements.lock import IMAGES, OWN, PYPROJECT
from requirements.pins import Pin, parse, read

ROOT = Path(__file__).parent.parent.parent
LOCKS = ROOT / "requirements"
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
MAC = {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64"}
ENVIRONMENTS = tuple(
    {**platform, "python_version": python, "python_full_version": f"{python}.7"}
    for platform, python in ((LINUX, "3.11"), (LINUX, "3.12"), (MAC, "3.13"))
)
PIP = ("-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:")


def required(tables: dict, extras: tuple[str, ...]) -> list[Requirement]:
    """What marless needs with these extras, extras of its own resolved."""
    found = [Requirement(text) for text in tables["project"]["dependencies"]]
    wanted = list(extras)
    for extra in wanted:
        for text in tables["project"]["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == "marless":
                wanted.extend(requirement.extras - set(wanted))
            else:
                found.append(requirement)
    return found


def not_locked(requirements: list[Requirement], pins: list[Pin], environment: dict[str, str]) -> list[str]:
    """One sentence for each requirement that the pins do not fulfil where markers have these values."""
    wrong = []
    for requirement in requirements:
        if requirement.marker and not requirement.marker.evaluate(environment):
            continue
        name = canonicalize_name(requirement.name)
        matching = [pin for pin in pins if pin.name == name and pin.applies(environment)]
        if len(matching) != 1:
            wrong.append(f"{requirement} has {len(matching)} pins")
        elif not requirement.specifier.contains(matching[0].version):
            wrong.append(f"{requirement} is locked at {matching[0].version}")
    return wrong


def own_pins(*locks: str) -> list[Pin]:
    return [pin for lock in ("torch", *locks) for pin in read(LOCKS / f"{lock}.txt")]


def wanted_and_locked(tables: dict) -> list[tuple[list[Requirement], list[Pin]]]:
    """Each set of requirements that something installs, with the pins of its locks."""
    groups = {name: [Requirement(text) for text in texts] for name, texts in tables["dependency-groups"].items()}
    build = [Requirement(text) for text in tables["build-system"]["requires"]]
    names = list(OWN)
    return [
        *((required(tables, OWN[name]) + build, own_pins(*names[: index + 1])) for index, name in enumerate(names)),
        *((required(tables, IMAGES[name]), own_pins(f"image-{name}")) for name in IMAGES),
        (build, own_pins("image-build")),
        *((groups[name], list(read(LOCKS / f"{name}.txt"))) for name in groups),
        *(([Requirement(text) for text in PEERS[peer]], own_pins(f"peer-{peer}")) for peer in PEERS),
    ]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda e: f"{e['sys_platform']}-{e['python_version']}")
def test_locks_fulfil_pyproject(environment):
    tables = tomllib.loads(PYPROJECT.read_text())
    for requirements, pins in wanted_and_locked(tables):
        assert not_locked(requirements, pins, environment) == [], "run `make lock`"


def test_the_check_sees_a_range_that_moved_and_a_package_that_is_new():
    pins = own_pins("train")
    moved = [Requirement("numpy>=99"), Requirement("left-pad>=1"), Requirement("redis[hiredis]>=6.4,<9")]
    found = not_locked(moved, pins, ENVIRONMENTS[0])
    assert [re.sub(r"at [\d.]+", "at …", sentence) for sentence in found] == [
        "numpy>=99 is locked at …",
        "left-pad>=1 has 0 pins",
    ]


def test_every_pin_has_hashes():
    for path in LOCKS.glob("*.txt"):
        for pin in read(path):
            assert pin.hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}", hashed) for hashed in pin.hashes), pin


def test_no_package_is_in_two_locks_of_one_environment():
    names = [
        pin.name for lock in (*OWN, "fuzz") for pin in {pin.name: pin for pin in read(LOCKS / f"{lock}.txt")}.values()
    ]
    assert len(names) == len(set(names))
    assert not {pin.name for pin in own_pins()} & set(names)


def test_images_have_the_versions_that_are_tested_and_no_package_of_development():
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    development = {Requirement(text).name for text in extras["dev"]} - {"marless"}
    assert {"pytest", "mypy", "ruff"} <= development
    tested = set(own_pins("train", "dev", "cloud"))
    for name in (*IMAGES, "build"):
        pins = set(read(LOCKS / f"image-{name}.txt"))
        assert pins <= tested, name
        assert not {pin.name for pin in pins} & development, name
    assert not {pin.name for pin in read(LOCKS / "image-actors.txt")} & {"scipy", "scikit-learn", "matplotlib", "torch"}


def test_a_line_without_an_exact_version_is_no_pin():
    with pytest.raises(ValueError, match="no exact version"):
        parse("numpy>=2 \\\n    --hash=sha256:00\n")


def test_every_install_command_is_locked():
    commands = [
        line
        for line in (ROOT / "Makefile").read_text().splitlines()
        if re.search(r"\$\((PIP|LOCKED)\)|pip install", line)
    ]
    assert len(commands) > 5
    for command in commands:
        editable = "--no-deps --no-build-isolation -e ." in command
        assert editable or "$(LOCKED)" in command or command.startswith(("PIP :=", "LOCKED :=")), command
    assert "--require-hashes" in (ROOT / "bench" / "peers" / "install.py").read_text()


def test_what_is_installed_is_complete():
    """The locks are installed without resolving dependencies: nothing may be missing."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def finding(**given):
    return {"id": "PYSEC-1", "fix_versions": ["2.0"], "aliases": ["CVE-1"], **given}


def test_an_audit_that_saw_nothing_is_no_success():
    report = {"dependencies": [{"name": "a", "skip_reason": "not found"}, {"name": "b", "version": "1", "vulns": []}]}
    judged = audit.judge([report], waived=frozenset())
    assert (judged.audited, judged.unknown, judged.findings) == (1, ("a",), ())


@pytest.mark.parametrize(("waived", "found"), [((), 1), (("CVE-1",), 0), (("PYSEC-1",), 0), (("CVE-2",), 1)])
def test_a_vulnerability_is_reported_unless_waived(waived, found):
    report = {"dependencies": [{"name": "a", "version": "1.0", "vulns": [finding()]}]}
    judged = audit.judge([report], waived=frozenset(waived))
    assert len(judged.findings) == found
    assert all(sentence == "a 1.0: PYSEC-1, fixed in 2.0" for sentence in judged.findings)


@pytest.mark.parametrize(
    ("reason", "until", "message"),
    [("", "2999-01-01", "no reason"), ("x", "2020-01-01", "ended on"), ("x", "2999-01-01", None)],
)
def test_a_waiver_has_a_reason_and_a_last_day(reason, until, message):
    text = f'[[waiver]]\nid = "CVE-1"\npackage = "a"\nreason = "{reason}"\nuntil = {until}\n'
    if message:
        with pytest.raises(ValueError, match=message):
            audit.waivers(text, today=date(2026, 1, 1))
    else:
        assert audit.waivers(text, today=date(2026, 1, 1)) == {"CVE-1"}


def test_our_waivers_can_be_read():
    audit.waivers((LOCKS / "waivers.toml").read_text(), today=date(2026, 1, 1))


@pytest.fixture
def clean_python(tmp_path):
    venv.create(tmp_path / "clean", with_pip=True)
    return tmp_path / "clean" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_locks_install_and_suffice(clean_python):
    """All but torch, which is large; `make train` in a clean clone installs that too."""
    subprocess.run([clean_python, *PIP, "-r", LOCKS / "train.txt"], check=True)
    subprocess.run([clean_python, *PIP, "-r", LOCKS / "dev.txt"], check=True)
    subprocess.run([clean_python, "-m", "pip", "check"], check=True)


@pytest.mark.slow
def test_a_tampered_file_is_not_installed(clean_python, tmp_path):
    """The lock names another file than the index serves: what a replaced release looks like to pip."""
    (pin,) = [pin for pin in read(LOCKS / "train.txt") if pin.name == "mdurl"]
    lock, hashes = tmp_path / "lock.txt", "".join(f" --hash={hashed}" for hashed in pin.hashes)
    lock.write_text(f"{pin.name}=={pin.version} --hash=sha256:{'0' * 64}\n")
    refused = subprocess.run([clean_python, *PIP, "-r", lock], check=False, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    absent = subprocess.run([clean_python, "-c", "import mdurl"], check=False, capture_output=True)
    assert absent.returncode != 0
    lock.write_text(f"{pin.name}=={pin.version}{hashes}\n")
    subprocess.run([clean_python, *PIP, "-r", lock], check=True)
    subprocess.run([clean_python, "-c", "import mdurl"], check=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_bill_of_materials_names_every_package_with_its_hashes():
    environment = {**os.environ, "MAKEFLAGS": ""}
    subprocess.run(["make", "sbom"], cwd=ROOT, check=True, env=environment)
    bill = json.loads((ROOT / "dist" / "marless.cdx.json").read_text())
    listed = {(component["name"], component["version"]): component for component in bill["components"]}
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "marless"
    for pin in own_pins("train"):
        assert "sha256" in json.dumps(listed[pin.name, pin.version]).lower().replace("-", "")
