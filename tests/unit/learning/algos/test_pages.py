"""The page that compares settings with those of other libraries has our defaults; docs/settings.md has all others."""

import re
from pathlib import Path

from marless.learning.algos.registry import algorithm

DOCS = Path(__file__).parents[4] / "docs"


def settings(page):
    """What a page's tables say of settings: name → text of the default."""
    found = {}
    for names, default in re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", page, re.MULTILINE):
        fields = re.findall(r"`([\w.]+)`", names)
        defaults = default.split(", ") if len(fields) > 1 else [default]
        found |= dict(zip(fields, defaults, strict=False))
    return found


def default_of(text, name):
    """The default of one algorithm, where a cell has several: `0.01; `iql`, `vdn`: 0.02`."""
    first, *others = text.split("; ")
    for other in others:
        names, _, value = other.rpartition(": ")
        if f"`{name}`" in names:
            return value
    return first


def same(text, value):
    """True if a page means this default; what it words otherwise, such as a schedule, is not judged."""
    text = text.strip("`").replace(",", "")
    if value is None or isinstance(value, bool):
        return text in ("none", "null") if value is None else text == str(value).lower()
    if isinstance(value, int | float):
        return float(text) == value
    return text == value or not isinstance(value, str)


def test_what_is_compared_with_others_has_the_defaults_that_are():
    page = (DOCS / "algorithms/compared.md").read_text("utf-8")
    families = (("ippo", "mappo"), ("iql", "vdn", "qmix"), ("maddpg", "iddpg"))
    for section, names in zip(page.split("\n## ")[1:], families, strict=True):
        compared = {field: re.sub(r" \(.*\)$", "", default) for field, default in settings(section).items()}
        assert len(compared) >= 7
        for name in names:
            config = algorithm(name).config_type().model_dump()
            wrong = {field for field, text in compared.items() if not same(default_of(text, name), config[field])}
            assert wrong == set(), name
