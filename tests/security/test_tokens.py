"""Directories of tokens: who else may touch them, what a rotation looks like from both sides, and what breaks."""

import os
import stat

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from marless.app.cli.main import app
from marless.core.errors import SpecError
from marless.rpc import tokens as files
from marless.rpc.roles import Role
from marless.rpc.tokens import LOOK_S, Tokens
from tests import tokens
from tests.tokens import token_of


class Clock:
    """A module `time` whose clock stands."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(files, "time", clock)
    return clock


@pytest.fixture
def held(tmp_path, clock) -> Tokens:
    return tokens.made(tmp_path / "tokens")


def modes(directory) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


def test_each_token_has_its_role_and_nothing_else_has_one(held):
    for role in Role:
        assert (held.role_of(token_of(role).encode()), held.of(role)) == (role, token_of(role))
    for wrong in (b"", b"guess", token_of(Role.CLIENT)[:-1].encode(), token_of(Role.CLIENT).encode() + b"\n", b"\xff"):
        assert held.role_of(wrong) is None


def test_a_rotation_refuses_nobody_and_needs_no_restart(tmp_path, held, clock):
    """One process looks again after a second, another has not looked yet: both are served, before and after."""
    server, old = held, token_of(Role.ACTOR)
    assert server.role_of(old.encode()) is Role.ACTOR
    files.rotate(tmp_path / "tokens", Role.ACTOR)
    assert modes(tmp_path / "tokens") == {0o600}
    new = Tokens(tmp_path / "tokens").of(Role.ACTOR)  # a process that has just started
    assert new != old
    assert held.of(Role.ACTOR) == old  # not looked since
    assert [server.role_of(token.encode()) for token in (old, new)] == [Role.ACTOR] * 2  # looked at once
    assert server.of(Role.ACTOR) == new
    files.rotate(tmp_path / "tokens", Role.ACTOR)
    clock.now_s += LOOK_S
    newest = held.of(Role.ACTOR)
    assert [server.role_of(token.encode()) for token in (old, new, newest)] == [None, Role.ACTOR, Role.ACTOR]
    files.retire(tmp_path / "tokens", Role.ACTOR)
    clock.now_s += LOOK_S
    assert [server.role_of(token.encode()) for token in (new, newest)] == [None, Role.ACTOR]


def test_looking_is_rare(tmp_path, held, clock, monkeypatch):
    looks, real = [], files._signature
    monkeypatch.setattr(files, "_signature", lambda directory: looks.append(1) or real(directory))
    for _ in range(1000):
        held.role_of(token_of(Role.CLIENT).encode())
        held.of(Role.SERVICE)
    assert len(looks) == 1


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "no longer exists"),
        (lambda path: path.write_text(""), "is empty"),
        (lambda path: path.write_text("two words in a line\n"), "is not a token"),
        (lambda path: path.write_bytes(b"\xff" * 32), "is not a token"),
        (lambda path: path.write_text("short\n"), "is not a token"),
        (lambda path: path.chmod(0o644), "chmod 600"),
        (lambda path: (path.unlink(), path.mkdir()), "is not a file of tokens"),
        (lambda path: (path.unlink(), os.mkfifo(path, 0o600)), "is not a file of tokens"),
        (lambda path: path.write_text("x" * 2**17), "is not a file of tokens"),
        (lambda path: path.write_text(f"{token_of(Role.CLIENT)}\n"), "is given twice"),
        (lambda path: path.parent.chmod(0o777), "chmod 700"),
        (lambda path: path.parent.rename(path.parent.with_name("away")), "cannot be read"),
    ],
)
def test_what_breaks_leaves_the_last_good_tokens_and_one_warning(tmp_path, held, clock, damage, said):
    held.check()
    damage(tmp_path / "tokens" / "service")
    with capture_logs() as logs:
        for _ in range(3):
            clock.now_s += LOOK_S
            assert held.role_of(token_of(Role.SERVICE).encode()) is Role.SERVICE
            assert held.role_of(token_of(Role.CLIENT).encode()) is Role.CLIENT
    [warning] = logs
    assert (warning["event"], warning["log_level"]) == ("tokens.broken", "warning")
    assert said in warning["reason"]
    assert "canary" not in str(logs)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda directory: (directory / "actor").chmod(0o640), "others may read or write"),
        (lambda directory: (directory / "actor").write_text("  \n"), "is empty"),
        (lambda directory: directory.chmod(0o770), "others may write to the directory"),
        (lambda directory: [(directory / role).unlink() for role in Role], "has no token; `marless tokens"),
        (lambda directory: directory.rename(directory.with_name("away")), "cannot be read .*`marless tokens"),
        (lambda directory: (directory.rename(directory.with_name("a")), directory.touch()), "is no directory"),
    ],
)
def test_a_service_does_not_start_with_tokens_that_others_may_know(tmp_path, damage, said):
    held = tokens.made(tmp_path / "tokens")
    damage(tmp_path / "tokens")
    for _ in range(2):
        with pytest.raises(SpecError, match=said):
            held.check()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_tokens_that_belong_to_another_user_are_refused(tmp_path):
    held = tokens.made(tmp_path / "tokens")
    for path in (tmp_path / "tokens" / "client", tmp_path / "tokens"):
        os.chown(path, 65534, -1)
        with pytest.raises(SpecError, match="another user"):
            held.check()
        os.chown(path, 0, -1)


def test_a_role_without_a_file_has_no_token_until_it_gets_one(tmp_path, clock):
    held = tokens.made(tmp_path / "tokens")
    (tmp_path / "tokens" / "operator").unlink()
    assert held.role_of(token_of(Role.OPERATOR).encode()) is None
    assert held.of(Role.OPERATOR) == ""
    tokens.write(tmp_path / "tokens", Role.OPERATOR, token_of(Role.OPERATOR))
    assert held.role_of(token_of(Role.OPERATOR).encode()) is Role.OPERATOR


def test_the_command_makes_keeps_rotates_and_retires_and_shows_nothing(tmp_path):
    place = tmp_path / "deep" / "tokens"

    def type_(*words: str) -> dict[str, list[str]]:
        done = CliRunner().invoke(app, ["tokens", str(place), *words])
        assert done.exit_code == 0, done.output
        now = {path.name: path.read_text().split() for path in place.iterdir()}
        assert not any(token in done.output for tokens in now.values() for token in tokens)
        return now

    first = type_()
    assert set(first) == set(Role)
    assert (stat.S_IMODE(place.stat().st_mode), modes(place)) == (0o700, {0o600})
    assert len({token for [token] in first.values()}) == len(Role)
    assert type_() == first
    second = type_("--rotate", "actor", "--rotate", "client")
    assert (second["actor"][1:], second["client"][1:], second["learner"]) == (
        first["actor"],
        first["client"],
        first["learner"],
    )
    third = type_("--retire", "actor")
    assert third == second | {"actor": second["actor"][:1]}
    assert CliRunner().invoke(app, ["tokens", str(place), "--rotate", "emperor"]).exit_code == 2


def test_a_file_where_the_directory_should_be_is_said_to_be_none(tmp_path):
    (tmp_path / "tokens").touch()
    with pytest.raises(SpecError, match="tokens is no directory; `marless tokens DIR` makes one"):
        files.create(tmp_path / "tokens")


def test_no_tokens_are_put_among_other_files(tmp_path):
    (tmp_path / "job.yaml").touch()
    with pytest.raises(SpecError, match=r"has other files in it, such as 'job.yaml'; name a new directory"):
        files.create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_tokens_that_are_missing_in_a_directory_of_tokens_are_made(tmp_path):
    files.create(tmp_path / "tokens")
    (tmp_path / "tokens" / "actor").unlink()
    (tmp_path / "tokens" / "README").touch()
    files.create(tmp_path / "tokens")
    assert {path.name for path in (tmp_path / "tokens").iterdir()} == {*Role, "README"}
