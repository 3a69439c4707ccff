"""What `make docs` does to the pages, which are written for GitHub and for editors, before it makes a site of them.

- A link to a file outside docs/ leads to a page of the site that shows the file.
- Lists and tables may follow a paragraph without an empty line, as CommonMark allows and Python-Markdown does not.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
FOLDER = "files"
_LINK = re.compile(r"(\]\()((?:\.\./)+[\w./-]+)((?:#[\w-]+)?\))")
_FENCE = re.compile(r" *(?:```|~~~)")
_OPENS = re.compile(r"(?:[-*] |1\. |\|)")
"""How lists and tables begin that may interrupt a paragraph."""
_KINDS = {".py": "python", ".yaml": "yaml", ".md": "markdown", ".sh": "sh", ".toml": "toml"}


def on_files(files: Files, config: Any) -> Files:  # Any: mkdocs has no types of its own here
    """Add a page for each file outside docs/ that a page links to."""
    linked = {path for page in files.documentation_pages() for path in _outside(page.content_string, page.src_uri)}
    for path in sorted(linked):
        files.append(File.generated(config, f"{FOLDER}/{path}.md", content=_shown(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links out of docs/ to those pages, and part lists and tables from paragraphs."""
    own = page.file.src_uri

    def inside(link: re.Match[str]) -> str:
        path = _target(link[2], own)
        if path is None:
            return link[0]
        shown = posixpath.relpath(f"{FOLDER}/{path}.md", posixpath.dirname(own) or ".")
        return f"{link[1]}{shown})"

    return _parted(_LINK.sub(inside, markdown))


def _outside(markdown: str, page: str) -> list[str]:
    found = (_target(link, page) for _, link, _ in _LINK.findall(markdown))
    return [path for path in found if path is not None]


def _target(link: str, page: str) -> str | None:
    """The path in the repository of a file outside docs/; None for a page."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith("docs/") or not (ROOT / path).is_file() else path


def _shown(path: str) -> str:
    text = (ROOT / path).read_text("utf-8")
    kind = _KINDS.get(Path(path).suffix, "text")
    return f"---\nsearch: {{exclude: true}}\n---\n# `{path}`\n\n````{kind}\n{text}````\n"


def _parted(markdown: str) -> str:
    """Put an empty line before each list or table that begins in the middle of a block of lines."""
    lines: list[str] = []
    fenced = opened = False
    for line in markdown.split("\n"):
        if _FENCE.match(line):
            fenced, opened = not fenced, False
        elif not fenced:
            if _OPENS.match(line) and not opened:
                if lines and lines[-1].strip():
                    lines.append("")
                opened = True
            elif not line.strip():
                opened = False
        lines.append(line)
    return "\n".join(lines)
