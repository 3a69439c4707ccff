"""The code of the documents: every fenced block, and every command inside a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "plugins/README.md",
    *sorted(str(each.relative_to(ROOT)) for each in ROOT.glob("docs/**/*.md")),
)
PROGRAMS = ("marless", "make", "python", "pip", "pytest")
"""What a sentence shows is a command if it begins with one of these and a space."""

_FILE = re.compile(r"^(From )?`([\w./-]+)`:$")
_COMMAND = re.compile(rf"^(?:[A-Z_]+=\S+ )?(?:{'|'.join(PROGRAMS)}) \S")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    """Of the fence, from 1."""
    kind: str
    """The word after the fence; "indented" for code without a fence, "" for a fence without a word."""
    text: str
    heading: str
    """That it stands under."""
    file: str
    """Which file the reader is to write with it; "" if none."""
    excerpt: str = ""
    """The file that it is a part of, among those that `marless new` has written; "" if none."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def text_of(page: str) -> str:
    """A page as it was when it was first asked for."""
    return (ROOT / page).read_text("utf-8")


def blocks(page: str, *kinds: str) -> list[Block]:
    """The blocks of a page, in order: all, or those of some kinds."""
    return [block for block in _blocks(page) if not kinds or block.kind in kinds]


@cache
def _blocks(page: str) -> tuple[Block, ...]:
    found, heading, paragraph = [], "", ""
    for token, before in _with_last(_tokens(page)):
        if token.type == "inline":
            paragraph = token.content
            heading = paragraph if before.type == "heading_open" else heading
        elif token.type in ("fence", "code_block"):
            kind = token.info.strip() if token.type == "fence" else "indented"
            file = _FILE.match(paragraph) if before.type == "paragraph_close" else None
            line = (token.map or [0])[0] + 1
            shown, written = (file[2], "") if file and file[1] else ("", file[2] if file else "")
            found.append(Block(page, line, kind, token.content, heading, written, shown))
    return tuple(found)


def files(page: str) -> Mapping[str, str]:
    """The files that a page has the reader write, by path."""
    return {block.file: block.text for block in blocks(page) if block.file}


def mentioned(page: str) -> list[str]:
    """The commands in the sentences of a page."""
    inline = (child for token in _tokens(page) for child in token.children or () if child.type == "code_inline")
    return [child.content for child in inline if _COMMAND.match(child.content)]


@cache
def _tokens(page: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text_of(page))


def _with_last(tokens: list[Token]) -> Iterator[tuple[Token, Token]]:
    yield from zip(tokens, [tokens[0], *tokens], strict=False)


def of_kind(*kinds: str) -> list[Block]:
    """The blocks of these kinds, or all, of every page."""
    return [block for page in PAGES for block in blocks(page, *kinds)]
