"""The site of docs/ has every page, builds without a broken link, and loads nothing from other hosts."""

from __future__ import annotations

import ast
import json
import pkgutil
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT, blocks, text_of

MKDOCS = ROOT / ".venv" / "docs" / "bin" / "mkdocs"
LOADED = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"' >]+)""")
LINE = re.compile(r"<p>[^<]*\n(?:[-*|]|1\.) ")
"""A list or a table that was taken for a paragraph."""


def test_every_page_has_its_place_in_the_navigation():
    _, _, navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")
    assert sorted(f"docs/{page}" for page in re.findall(r"[\w/]+\.md", navigation)) == sorted(
        page for page in PAGES if page.startswith("docs/")
    )


def public_names() -> set[str]:
    """The names that docs/api.md lists."""
    listed = re.findall(r"^::: (\S+)\n(?: +options: \{members: \[(.*)\]\})?", text_of("docs/api.md"), re.MULTILINE)
    return {f"{path}.{name}" if name else path for path, names in listed for name in names.split(", ")}


def test_the_reference_has_every_name_that_pages_and_templates_import():
    templates = [path.read_text("utf-8") for path in (ROOT / "examples/extensions").rglob("*.py")]
    texts = [*templates, *(block.text for page in PAGES for block in blocks(page, "python"))]
    trees = [ast.parse(text) for text in texts]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    assert {name for name in names if name.startswith("marless.")} - {"marless.jobs.prices"} <= public_names()


def test_the_reference_names_what_is_there():
    for name in public_names():
        assert pkgutil.resolve_name(name) is not None, name


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not MKDOCS.exists():
        pytest.skip("`make .venv/.docs` installs mkdocs")
    place = tmp_path_factory.mktemp("site")
    command = [str(MKDOCS), "build", "--strict", "--quiet", "--site-dir", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.mark.slow
def test_no_page_loads_anything_from_another_host(site):
    pages = {page: page.read_text("utf-8") for page in site.rglob("*.html")}
    assert {str(page): found for page, text in pages.items() if (found := LOADED.findall(text))} == {}
    assert [str(page) for page, text in pages.items() if LINE.search(text)] == []


@pytest.mark.slow
def test_files_outside_the_docs_are_shown_and_found_by_links(site):
    assert "class Adam" in re.sub(
        "<[^>]+>", "", (site / "files/examples/one_file/ippo.py/index.html").read_text("utf-8")
    )
    assert 'href="../files/examples/one_file/ippo.py/"' in (site / "algorithms/index.html").read_text("utf-8")


@pytest.mark.slow
def test_the_search_knows_pages_and_public_names(site):
    found = {entry["location"] for entry in json.loads((site / "search/search_index.json").read_text("utf-8"))["docs"]}
    assert {"tutorial/", "faq/#training", "api/#marless.load_policy", "settings/#algorithm"} <= found
