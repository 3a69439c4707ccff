"""`marless new` makes packages, and refuses names that cannot work; tests/docs installs, tests and trains them."""

import subprocess
import sys

import pytest

from marless.app.cli.new import ExtensionKind, write_package
from tests.docs import newcomer

KIND = "net"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", ExtensionKind)
def test_it_makes_a_package_whose_names_are_the_readers_own(marless, here, kind):
    code, out, said = marless("new", kind, "our-first")
    assert (code, out) == (0, "")
    assert said == "marless: our_first written; our_first/README.md says how to install, test and use it\n"
    files = [path for path in (here / "our_first").rglob("*") if path.is_file()]
    text = "\n".join(f"{path}\n{path.read_text('utf-8')}" for path in files)
    assert "our_first/our_first/__init__.py" in text
    assert "our_first/tests/test_our_first.py\n" in text
    assert not any(old in text for old in (f"my_{kind}", f"my-{kind}", f"My{kind.capitalize()}", "__pycache__"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("net", "Foo"), "'Foo' cannot be the name of a package: choose 2 to 40 lower-case letters"),
        (("net", "class"), "'class' cannot be the name"),
        (("net", "2nd"), "'2nd' cannot be the name"),
        (("net", "../up"), "'../up' cannot be the name"),
        (("net", "a" * 41), "cannot be the name"),
        (("net", "a"), "'a' cannot be the name"),
        (("net", "two__lines"), "'two__lines' cannot be the name"),
        (("net", "dist"), "dist is a folder that projects have for another purpose"),
        (("net", "build"), "build is a folder that projects have"),
        (("net", "tests"), "tests is a folder that projects have"),
        (("environment", "pyyaml"), "a package pyyaml 6"),
        (("net", "mlp"), "net mlp: the name is taken"),
        (("algorithm", "ippo"), "algorithm ippo: the name is taken"),
        (("scaling", "minions"), "scaling minions: the name is taken"),
        (("schedule", "pipelined"), "schedule pipelined: the name is taken"),
        (("similarity", "kde"), "similarity kde: the name is taken"),
        (("sink", "wandb"), "sink wandb: the name is taken"),
        (("launcher", "docker"), "launcher docker: the name is taken"),
        (("command", "train"), "command train: the name is taken"),
        (("command", "scheduler"), "command scheduler: the name is taken"),
        (("environment", "numpy"), "Python has a module numpy already"),
        (("environment", "time"), "Python has a module time already (built-in)"),
        (("environment", "taken"), "taken: it is not empty; choose another folder with --to"),
        (("environment", "game", "--to", "taken/file"), "taken/file: cannot be written (Not a directory)"),
    ],
)
def test_a_name_or_folder_that_cannot_be_is_one_sentence(marless, here, arguments, sentence):
    (here / "taken").mkdir()
    (here / "taken/file").touch()
    code, out, said = marless("new", *arguments)
    assert (code, out) == (2, "")
    assert sentence in said and said.count("\n") == 1
    assert [path.name for path in here.iterdir()] == ["taken"]


def test_an_empty_folder_will_do_and_another_one_can_be_chosen(marless, here):
    (here / "game").mkdir()
    assert marless("new", "environment", "game")[0] == 0
    assert marless("new", "environment", "game", "--to", "deep/place")[0] == 0
    assert (here / "deep/place/game/environment.py").is_file()


def test_what_is_installed_has_its_name(marless, package):
    assert "net residual: the name is taken" in marless("new", "net", "residual")[2]


@pytest.mark.parametrize("kind", ExtensionKind)
def test_what_it_makes_is_formatted_and_without_a_complaint_of_ruff(here, kind):
    write_package(kind, newcomer.name_of(f"docs/extending/{kind}.md"), here)
    options = ("--isolated", "--line-length=120", "--no-cache")
    rules = ("--select=E,F,I,W,UP,RET,N,D1,B", "--ignore=N803,N806,D107", "--per-file-ignores=tests/*:D1")
    for command in (("check", *options, *rules), ("format", "--check", *options)):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
