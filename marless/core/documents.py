"""Reads untrusted JSON and YAML within limits, so that no small document takes much time or memory to read; builds
dataclasses from it, with each field as its annotation says, and no others.

Plain scalars of YAML mean what YAML 1.2's core schema says, not what PyYAML's YAML 1.1 does, where 010 is 8, 12:30:00
is 45000, `on` is true and 2026-11-27 is a date; and underscores may separate digits, as in Python: 1_000.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import threading
from collections.abc import Collection, Mapping
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from marless.core import regular_files
from marless.core.errors import SpecError, shown
from marless.core.limits import MAX_COUNT, MAX_SPEC_BYTES

if TYPE_CHECKING:
    import yaml
    from msgspec import Struct

MAX_CHARACTERS = 2**20
"""Characters of a document."""
MAX_VALUES = 20_000
"""Values and keys of a document, at all depths; a YAML alias counts each time that it is used."""
MAX_DEPTH = 20
"""Nesting of sections and lists."""
MAX_TEXT = 10_000
"""Characters of one string."""
MAX_BITS = 14_000
"""Bits of an integer: Python prints at most 4,300 digits, and YAML can write longer integers in hexadecimal."""
_STDIN, _STDIN_NAME = Path("-"), "standard input"
_EXPONENT = re.compile(r"^[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9]+)[eE][-+]?[0-9]+$")
"""Numbers such as 1e6 and 2.5e-4."""
_YAML = "tag:yaml.org,2002:"
_PLAIN: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("!exponent", _EXPONENT, "-+.0123456789"),
    (f"{_YAML}int", re.compile(r"^([-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+)$"), "-+0123456789"),
    (
        f"{_YAML}float",
        re.compile(r"^([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9]+|\.(inf|Inf|INF))|\.(nan|NaN|NAN))$"),
        "-+.0123456789",
    ),
    (f"{_YAML}bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    (f"{_YAML}null", re.compile(r"^(~|null|Null|NULL|)$"), "~nN\0"),
    (f"{_YAML}merge", re.compile(r"^<<$"), "<"),
)
"""Tag, pattern and first characters of plain scalars that are no strings; the first pattern that matches counts."""
Part = TypeVar("Part")
_LEARNING = threading.Lock()
"""Held while msgspec looks at a class for the first time: a second thread would find fields that are not there yet, and
the process would die of it.
"""


def from_json(text: str, what: str, *, finite: bool = True) -> object:
    """Parse JSON; raises SpecError, starting with `what`, if it is invalid or exceeds the limits.

    `finite` refuses NaN and Infinity, which Python's JSON parser accepts.
    """
    _check_length(len(text), what)

    def refuse(constant: str) -> NoReturn:
        raise SpecError(f"{what}: {constant} is not a JSON number; give a finite one")

    try:
        document = json.loads(text, parse_constant=refuse if finite else None)
    except RecursionError:
        raise _too_deep(what) from None
    except ValueError as error:
        raise SpecError(f"{what}: not valid JSON: {error}") from None
    check(document, what)
    return document


def from_yaml(path: Path, kind: str = "job file") -> object:
    """Read a YAML file; raises SpecError if it cannot be read, is not YAML, or exceeds the limits."""
    try:
        with path.open(encoding="utf-8") as file:
            # One character more than is allowed, so that a longer file, or one without end, is noticed and not read on.
            text = file.read(MAX_CHARACTERS + 1)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror}); give the path of a {kind}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    return yaml_of(text, str(path))


def stored(path: Path) -> object:
    """Read a YAML file of a run folder; raises SpecError if it is not YAML or exceeds the limits, and what
    `marless.core.regular_files` lists.
    """
    return yaml_of(regular_files.text(path, MAX_SPEC_BYTES), str(path))


def given(path: Path) -> object:
    """Read the YAML document at a path that a user gave, which may be a pipe; "-" is standard input.

    Raises SpecError as `from_yaml`.
    """
    if path != _STDIN:
        return from_yaml(path)
    try:
        text = sys.stdin.read(MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{_STDIN_NAME}: cannot be read ({' '.join(str(error).split())}); pipe a job into it") from None
    return yaml_of(text, _STDIN_NAME)


def name_of(path: Path) -> str:
    """The name under which error messages refer to the document at a path that a user gave."""
    return _STDIN_NAME if path == _STDIN else str(path)


def whole(text: str) -> int:
    """A whole number that is typed as an option or a setting: 1000, or 1e3 as in YAML; raises ValueError for others."""
    if not _EXPONENT.match(text):
        return int(text)
    number = float(text.replace("_", ""))
    if not number.is_integer():
        raise ValueError(text)
    return int(number)


def to_yaml(document: object) -> str:
    """Write YAML that `yaml_of` reads back as the same document; keys keep their order."""
    import yaml

    return yaml.dump(document, Dumper=_dumper(), sort_keys=False)


def to_yaml_line(value: object) -> str:
    """Write a value as YAML in one line, as `--set` and a line of a job file take it."""
    import yaml

    text: str = yaml.dump([value], Dumper=_dumper(), sort_keys=False, default_flow_style=True, width=sys.maxsize)
    return text.strip().removeprefix("[").removesuffix("]")


def yaml_of(text: str, what: str) -> object:
    """Parse YAML; raises SpecError, starting with `what`, if it is invalid or exceeds the limits."""
    import yaml  # here, because actors read JSON only

    _check_length(len(text), what)
    try:
        _check_events(text, what)
        loader = _loader()(text)
        try:
            document: object = loader.get_single_data()
        finally:
            loader.dispose()
    except RecursionError:
        raise _too_deep(what) from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, OverflowError) as error:  # e.g. an impossible date
        raise SpecError(f"{what}: not valid YAML: {' '.join(str(error).split())}") from None
    check(document, what)
    return document


def _check_events(text: str, what: str) -> None:
    """Raises SpecError if YAML exceeds the limits. Runs before any object is constructed, because merging mappings
    (`<<`) and reading long numbers in base 60 can take hours.
    """
    import yaml

    values = 0
    opened: list[tuple[str | None, int]] = []
    """The enclosing sections and lists: the anchor of each, and the number of values before it."""
    sizes: dict[str | None, int] = {}
    """Anchor → number of values that an alias to it adds."""
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            sizes[anchor] = values - before
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, values))
            values += 1
        elif isinstance(event, yaml.NodeEvent):
            values += sizes.get(event.anchor, 1) if isinstance(event, yaml.AliasEvent) else 1
        if isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1
            _check_value(event.value, what)
        _check_count(values, what)
        if len(opened) > MAX_DEPTH + 1:
            raise _too_deep(what)


def _check_keys(section: yaml.MappingNode) -> None:
    """Raises YAMLError for a key that is given twice."""
    import yaml

    keys = set()
    for key, _ in section.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in keys:
                twice = f"{shown(key.value)} is given twice in one section"
                raise yaml.MarkedYAMLError(problem=twice, problem_mark=key.start_mark)
            keys.add((key.tag, key.value))


@cache
def _loader() -> type[yaml.SafeLoader]:
    """PyYAML's safe loader with the scalars of YAML 1.2 (integral numbers with an exponent become ints: 1e6, but not
    1e-3), which refuses a key that is given twice, of which PyYAML would take the last.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {}  # noqa: RUF012  # PyYAML's own are those of YAML 1.1

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            self._flat: set[yaml.MappingNode] = set()

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            if node not in self._flat:  # afterwards it has what it merges, too
                _check_keys(node)
                self._flat.add(node)
            super().flatten_mapping(node)

    def number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int | float:
        text = str(loader.construct_scalar(node))
        try:
            return whole(text)
        except ValueError:
            return float(text.replace("_", ""))

    def integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
        text = str(loader.construct_scalar(node)).replace("_", "")
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))

    for tag, pattern, first in _PLAIN:
        Loader.add_implicit_resolver(tag, pattern, [each if each != "\0" else "" for each in first])
    Loader.add_constructor("!exponent", number)
    Loader.add_constructor(f"{_YAML}int", integer)
    return Loader


@cache
def _dumper() -> type[yaml.SafeDumper]:
    """PyYAML's safe dumper, extended to quote strings that `_loader` would read as numbers."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    # Beside those of YAML 1.1, so that either reader takes a string for a string.
    for tag, pattern, first in _PLAIN[:2]:
        Dumper.add_implicit_resolver(tag, pattern, list(first))
    return Dumper


def check(document: object, what: str) -> None:
    """Raises SpecError if a parsed document exceeds the limits on values, depth, strings and integers."""
    # Layer by layer, not by recursion, which a deep document could exhaust.
    layer, values = [document], 1
    for _ in range(MAX_DEPTH + 1):
        below: list[object] = []
        for value in layer:
            _check_value(value, what)
            if isinstance(value, Mapping | list | tuple | set):
                values += len(value) * (2 if isinstance(value, Mapping) else 1)
                _check_count(values, what)
                below += value
                if isinstance(value, Mapping):
                    below += value.values()
        if not below:
            return
        layer = below
    raise _too_deep(what)


def _check_value(value: object, what: str) -> None:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise SpecError(f"{what}: a whole number of more than {MAX_BITS} bits; give a smaller one")
    if not isinstance(value, str):
        return
    if len(value) > MAX_TEXT:
        raise SpecError(f"{what}: {shown(value)} has {len(value):,} characters; at most {MAX_TEXT:,} are taken")
    # Most texts are ASCII, and their characters need not be looked at one by one.
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise SpecError(f"{what}: {shown(value)} holds half a character (a lone surrogate), which is no text")


def _check_count(values: int, what: str) -> None:
    if values > MAX_VALUES:
        raise SpecError(f"{what}: more than {MAX_VALUES:,} values, the limit; give fewer")


def _check_length(characters: int, what: str) -> None:
    if characters > MAX_CHARACTERS:
        raise SpecError(f"{what}: longer than {MAX_CHARACTERS:,} characters, the limit")


def _too_deep(what: str) -> SpecError:
    return SpecError(f"{what}: sections and lists are nested more than {MAX_DEPTH} deep")


def dataclass_of(kind: type[Part], data: object, *, unlimited: Collection[type] = ()) -> Part:
    """A dataclass, with those inside it, from parsed JSON.

    Raises ValueError, which names the place, for a field that is missing, unknown or of another type, and for whole
    numbers, and floats that are a field of their own, beyond `MAX_COUNT`; in the classes of `unlimited`, such floats
    are only finite. Floats in lists and mappings may have any value.
    """
    import msgspec  # here, because many commands start without it

    with _LEARNING:
        struct = _learned(kind, frozenset(unlimited))  # type: ignore[arg-type]  # classes are hashable
    checked = msgspec.convert(data, struct)
    return msgspec.convert(checked, kind, from_attributes=True)


@cache
def _learned(kind: Any, unlimited: frozenset[type]) -> type[Struct]:  # Any: a dataclass
    """See `_struct`; msgspec has looked at all fields of both classes, and of those inside them."""
    import msgspec

    struct = _struct(kind, unlimited)
    for each in (struct, kind):
        msgspec.json.Decoder(each)
    return struct


@cache
def _struct(kind: Any, unlimited: frozenset[type]) -> type[Struct]:  # Any: a dataclass
    """The Struct that takes what `dataclass_of` says of a dataclass: in its own Structs only, msgspec refuses unknown
    fields.
    """
    import msgspec

    most = sys.float_info.max if kind in unlimited else MAX_COUNT
    number = Annotated[float, msgspec.Meta(ge=-most, le=most)]
    whole = Annotated[int, msgspec.Meta(ge=-MAX_COUNT, le=MAX_COUNT)]

    def strict(hint: Any) -> Any:  # Any: an annotation
        if hint is int or hint is float:
            return whole if hint is int else number
        if dataclasses.is_dataclass(hint):
            return _struct(hint, unlimited)  # type: ignore[arg-type]  # as above
        if isinstance(hint, UnionType):
            return reduce(or_, map(strict, get_args(hint)))
        if origin := get_origin(hint):
            return origin[tuple(each if each is float else strict(each) for each in get_args(hint))]
        return hint

    hints = get_type_hints(kind)
    fields: list[Any] = []  # Any: (name, annotation, default), the last one only if there is one
    for each in dataclasses.fields(kind):
        defaults = [msgspec.field(default_factory=each.default_factory)] if callable(each.default_factory) else []
        defaults += [each.default] if each.default is not dataclasses.MISSING else []
        fields.append((each.name, strict(hints[each.name]), *defaults))
    return msgspec.defstruct(kind.__name__, fields, kw_only=True, forbid_unknown_fields=True)
