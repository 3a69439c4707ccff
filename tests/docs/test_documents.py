"""What the documents say is true, and every snippet does what it says; test_commands.py and test_newcomers.py run the
commands.

Fenced blocks are programs, commands, commands with their output, job files and the like; a block of no known kind is a
failure.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from marless.app.cli.new import ExtensionKind, write_package
from marless.rpc.own_redis import RULES, STORE
from tests import imports
from tests.docs import commands, newcomer, programs, reference, tour, yaml_blocks
from tests.docs.blocks import PAGES, ROOT, blocks, mentioned, of_kind, text_of
from tests.docs.tables import NOT_RUN
from tests.docs.typed import TYPED
from tests.docs.workplace import only_checked

KINDS = {"python", "sh", "console", "yaml", "text"}
TEXTS = {("docs/architecture.md", "Architecture"), ("docs/architecture.md", "Folders")} | {
    ("docs/scaling.md", "`marless` (Wei et al. 2025)"),  # a formula
    ("docs/cost.md", "Machines"),  # of a machine that the pool has released since, which takes half a minute
    ("docs/operating.md", "The parameter store"),
    ("docs/deploying.md", "Images"),  # a Dockerfile
    ("docs/in_process.md", "A breakpoint"),  # what a debugger shows
    ("docs/in_process.md", "An exception"),
    ("docs/deploying.md", "Kubernetes"),  # for a cluster; `make test-kubernetes` checks what it applies
    ("docs/deploying.md", "EC2"),  # for instances of AWS; `make test-cloud` runs it
    ("docs/deploying.md", "AWS with Terraform"),  # for AWS; `make test-cloud` runs it
    ("docs/deploying.md", "Ray"),  # for machines with Ray; `make test-ray` runs it
}


def test_every_block_is_found_and_of_a_known_kind():
    assert [f"{block}: {block.kind!r}" for block in of_kind() if block.kind not in KINDS] == []
    fences = sum(len(re.findall(r"^ *```", text_of(page), re.MULTILINE)) for page in PAGES)
    assert fences == 2 * len(of_kind()), Counter(block.kind for block in of_kind())


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python") and page not in TYPED])
def test_its_programs_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    programs.run(page)


def test_commands_that_are_not_run_could_be():
    lines = [line for block in of_kind("sh", "console") for line in only_checked(block)]
    for words in [words for line in lines for words in commands.simple(line)]:
        commands.check(words, whole=True)
    unused = [beginning for beginning in NOT_RUN if not any(line.startswith(beginning) for line in lines)]
    assert unused == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_sentences_exist(page):
    for words in [words for line in mentioned(page) for words in commands.simple(line)]:
        commands.check(words, whole=False)


@pytest.mark.parametrize("block", of_kind("yaml"), ids=str)
def test_yaml_is_what_the_page_says(block, tmp_path, monkeypatch):
    yaml_blocks.check(block, tmp_path, monkeypatch)


@pytest.mark.parametrize("kind", ExtensionKind)
def test_a_page_shows_what_marless_new_writes(kind, tmp_path):
    page = f"docs/extending/{kind}.md"
    name = newcomer.name_of(page)
    write_package(kind, name, tmp_path)
    first, *_ = blocks(page, "sh")
    [shown] = re.findall("```sh\n(.*?)```", (tmp_path / "README.md").read_text("utf-8"), re.DOTALL)
    assert first.text == f"marless new {kind} {name}\ncd {name}\n{shown}"
    for block in [block for block in blocks(page) if block.excerpt]:
        text = (tmp_path / block.excerpt).read_text("utf-8")
        method = textwrap.indent(block.text, " " * 4)  # pages are formatted, too: it stands at the margin there
        assert block.text in text or method in text, f"{block} is not in {block.excerpt}"


def test_pictures_name_what_is_there():
    assert {(block.page, block.heading) for block in of_kind("text")} == TEXTS
    for block in of_kind("text"):
        services = set(re.findall(r"\b(?:coordinator|\w+_pool|\w+_store)\b", block.text))
        assert all((ROOT / "services" / service).is_dir() for service in services)


def test_the_redis_user_has_the_rights_that_the_store_needs():
    [block] = blocks("docs/operating.md", "text")
    assert block.text == f"user marless on >PASSWORD {RULES[STORE]}\n"


def test_one_round_can_be_followed_in_few_files_and_lines():
    page = (ROOT / "docs/architecture.md").read_text("utf-8").partition("## One round in reading order")[2]
    section = page.partition("\n## ")[0]
    found = tour.measured(section)
    assert found.files <= 28 and found.lines <= 5000
    said = [int(number.replace(",", "")) for number in re.findall(r"\b(\d[\d,]+)(?: files| lines|\))", section)]
    assert said == pytest.approx([found.files, found.lines, found.whole_lines], rel=0.1)


def test_the_drawing_of_imports_is_fresh():
    drawing = (ROOT / "docs/images/imports.svg").read_text("utf-8")
    assert drawing == imports.svg(imports.arrows(imports.sources(""))), (
        "draw it anew: .venv/bin/python -m tests.imports --to docs/images/imports.svg"
    )


def test_a_tour_through_what_is_not_there_is_refused():
    with pytest.raises(KeyError, match=r"Schedule\.overdue"):
        tour.measured("| `marless/jobs/schedules/base.py` | `Schedule.overdue` | x |")


def test_the_errors_that_a_page_explains_are_what_programs_say():
    headings = re.findall(r"^### (.*)", (ROOT / "docs/faq.md").read_text("utf-8"), re.MULTILINE)
    quoted = re.findall(r'"(.+?)"', "\n".join(headings))
    sources = [path.read_text("utf-8") for top in ("marless", "services") for path in (ROOT / top).rglob("*.py")]
    nodes = [node.value for text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    said = "\n".join(value for value in nodes if isinstance(value, str))
    assert [part for text in quoted for part in text.split("…") if part.strip() not in said] == []


def test_the_list_of_folders_is_true():
    [block] = [block for block in blocks("docs/architecture.md", "text") if block.heading == "Folders"]
    above = Path()
    for line in block.text.splitlines():
        names = re.match(r"( *)(\S+(?: \S+)*)", line)
        assert names, line
        above = above if names[1] else Path(names[2])
        for name in names[2].split(" "):
            assert (ROOT / (above / name if names[1] else Path(name))).exists(), line


@pytest.mark.parametrize("page", PAGES)
def test_no_link_leads_nowhere(page):
    for target, anchor in re.findall(r"\]\(([\w/.-]*)(?:#([\w-]+))?\)", (ROOT / page).read_text("utf-8")):
        linked = (ROOT / page).parent / target if target else ROOT / page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}, anchor


def test_each_verb_of_the_client_has_the_options_that_its_line_names():
    page = (ROOT / "docs/client.md").read_text("utf-8")
    for verb, text in re.findall(r"^\| `(\w+)[^|]*\| (.*) \|$", page, re.MULTILINE):
        assert set(re.findall(r"`(--?[a-z-]+)", text)) <= commands.options_of(verb), verb


def test_the_reference_of_settings_is_fresh():
    assert text_of("docs/settings.md") == reference.page(), "write it anew: python -m tests.docs.reference"
