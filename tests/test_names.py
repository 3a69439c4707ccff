"""Names and sentences, as a gate: one public class a name, no words that say nothing, docstrings with a subject."""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GENERATED = ROOT / "marless/rpc/v1"
BANNED = {
    "_take": "say what it does: _record_round, _apply_event, _accept_upload, _claim_head",
    "beside": "concurrent",
    "everlasting": "with_dead_agents_rewarded",
    "forget": "release what was taken, evict from a cache, discard what is not needed",
    "give_back": "release",
    "leave": "release, or announce_end",
    "let_go": "release, or evict",
    "reach": "failpoint",
    "settle": "flush",
}
"""Names of functions, classes and arguments that do not say what they stand for, and what to write."""
MODULES = {"attendance", "bench", "gathering", "home", "left", "room", "settling", "shown", "told", "utils", "weighing"}
"""Names of modules that are a riddle to whoever looks for something."""
ELSEWHERE = {"marless_smac": {"reach", "settle"}, "marless.learning.policies.drawing": {"reach"}}
"""Where a word has its usual meaning: a weapon's reach, units that settle on the ground."""
NO_SUBJECT = re.compile(r"(It|Its|They|Those|These|Of|As|With|For|From|In|On|By|If|None|Only|After) ")
"""How a first line begins that does not say what its thing is or does."""


def parsed(*tops: str, root: Path = ROOT) -> dict[str, ast.Module]:
    paths = [path for top in tops for path in (root / top).rglob("*.py") if ".venv" not in str(path)]
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): ast.parse(path.read_text("utf-8"))
        for path in paths
        if GENERATED not in path.parents
    }


Functions = (ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.fixture(scope="module")
def house() -> dict[str, ast.Module]:
    """Parsed here and not at import, which every process of pytest-xdist does."""
    return parsed("marless", "services") | parsed(".", root=ROOT / "plugins")


def banned(tree: dict[str, ast.Module]) -> Iterator[str]:
    for module, source in tree.items():
        fine = {word for place, words in ELSEWHERE.items() if f"{module}.".startswith(f"{place}.") for word in words}
        if module.rpartition(".")[2] in MODULES:
            yield f"{module}: no name for a module"
        for node in ast.walk(source):
            if isinstance(node, (*Functions, ast.ClassDef)):
                name = node.name
            elif isinstance(node, ast.arg):
                name = node.arg
            else:
                continue
            word = name if name in BANNED else name.removeprefix("_")
            if word in BANNED and word not in fine:
                yield f"{module}: {name}; {BANNED[word]}"


def classes_of_one_name(tree: dict[str, ast.Module]) -> Iterator[str]:
    found = defaultdict(list)
    for module, source in tree.items():
        for node in ast.walk(source):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module)
    yield from (f"{name}: {', '.join(modules)}" for name, modules in sorted(found.items()) if len(modules) > 1)


def unpacked_tuples(tree: dict[str, ast.Module]) -> Iterator[str]:
    """Calls with `*(a, b)`, whose reader must count to know which argument is which."""
    for module, source in tree.items():
        for node in ast.walk(source):
            if isinstance(node, ast.Call) and any(
                isinstance(each, ast.Starred) and isinstance(each.value, ast.Tuple) for each in node.args
            ):
                yield f"{module}:{node.lineno}: {ast.unparse(node.func)}"


def conditional_statements(tree: dict[str, ast.Module]) -> Iterator[str]:
    """Statements that are a conditional expression, of which nobody sees that they do something."""
    for module, source in tree.items():
        for node in ast.walk(source):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.IfExp):
                yield f"{module}:{node.lineno}"


def without_subject(tree: dict[str, ast.Module]) -> Iterator[str]:
    for module, source in tree.items():
        for node in ast.walk(source):
            if isinstance(node, (*Functions, ast.ClassDef, ast.Module)):
                text = ast.get_docstring(node) or ""
                if NO_SUBJECT.match(text):
                    yield f"{module}.{getattr(node, 'name', '')}: {text.splitlines()[0]}"


def undocumented(tree: dict[str, ast.Module]) -> Iterator[str]:
    """Public methods that neither have a docstring nor are those of a protocol or base, which would have it."""
    classes = [
        (module, node) for module, source in tree.items() for node in source.body if isinstance(node, ast.ClassDef)
    ]
    methods = [
        (f"{module}.{one.name}", each) for module, one in classes for each in one.body if isinstance(each, Functions)
    ]
    documented = {each.name for _, each in methods if ast.get_docstring(each)}
    for where, each in methods:
        private = each.name.startswith("_") or where.rpartition(".")[2].startswith("_")
        if not private and not ast.get_docstring(each) and each.name not in documented:
            yield f"{where}.{each.name}"


RULES = (banned, classes_of_one_name, unpacked_tuples, conditional_statements, without_subject, undocumented)
Rule = Callable[[dict[str, ast.Module]], Iterator[str]]


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_the_rule(rule: Rule, house: dict[str, ast.Module]) -> None:
    everywhere = rule in (unpacked_tuples, conditional_statements)
    assert list(rule(house | parsed("tests", "bench", "examples") if everywhere else house)) == []


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (banned, "def _take(): ..."),
        (banned, "class Queue:\n    def forget(self): ..."),
        (banned, "def f(beside): ..."),
        (classes_of_one_name, "class Config: ...\ndef f():\n    class Config: ..."),
        (unpacked_tuples, "train(*(job, round), epoch=1)"),
        (conditional_statements, "f() if x else g()"),
        (undocumented, "class Queue:\n    def put(self): ..."),
        (without_subject, 'def f():\n    """Of these rollouts."""'),
    ],
)
def test_the_gate_sees_what_breaks_a_rule(rule: Rule, source: str) -> None:
    found = list(rule({"marless.jobs.spec": ast.parse(source)}))
    assert len(found) == 1
