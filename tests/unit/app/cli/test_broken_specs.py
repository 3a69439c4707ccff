"""Every field of a job file broken in turn, as its schema says it can be: one sentence that names the field, exit code
2, and nothing is sent."""

import copy
import dataclasses
import io
import string
import sys
from contextlib import redirect_stderr, redirect_stdout
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from unittest import mock

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic.json_schema import GenerateJsonSchema

from marless.app.cli.main import main
from marless.core.settings import Section
from marless.jobs.scaling.base import SCALING_POLICIES
from marless.jobs.schedules.base import SCHEDULES
from marless.jobs.sharing.base import SHARING_POLICIES
from marless.jobs.spec import JobSpec
from marless.learning.algos import registry as algorithms
from tests.scripted_coordinator import ScriptedCoordinator

JOB = {
    "env": {"name": "mpe/simple_spread"},
    "algorithm": {"name": "mappo"},
    "scaling": {"name": "gns"},
    "stop": {"rounds": 3},
}
NAMED = {
    "algorithm": algorithms.algorithm(JOB["algorithm"]["name"]).config_type,
    "schedule": SCHEDULES.find("synchronous").config_type,
    "scaling": SCALING_POLICIES.find("gns").config_type,
    "sharing": SHARING_POLICIES.find("fixed").config_type,
}
"""Sections whose name decides which fields they have; without a usable one, the section is what is wrong."""
Path = tuple[str, ...]
Schema = dict[str, Any]


LIMITS = {"gt": "exclusiveMinimum", "ge": "minimum", "le": "maximum", "min_length": "minItems"}
TYPES = {int: "integer", float: "number", bool: "boolean", str: "string", tuple: "array", NoneType: "null"}


def kind_schema(kind: Any, bounds: Any = ()) -> Schema:
    """The JSON schema of a field of a section, as far as tests here read it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return kind_schema(arguments[0], arguments[1].metadata)
    if origin in (Union, UnionType):
        return {"anyOf": [kind_schema(each, bounds) for each in arguments]}
    if origin is Literal:
        return {"type": "string", "enum": arguments}
    if origin is None and issubclass(kind, Section):
        return section_schema(kind)
    return {"type": TYPES[origin or kind]} | {LIMITS[name]: bounds[name] for name in bounds if name in LIMITS}


def section_schema(section: type[Section]) -> Schema:
    kinds, found = get_type_hints(section, include_extras=True), dataclasses.fields(section)
    return {
        "type": "object",
        "properties": {each.name: kind_schema(kinds[each.name], each.metadata) for each in found},
        "required": [each.name for each in found if each.default is dataclasses.MISSING],
    }


class Schemas(GenerateJsonSchema):
    """Of pydantic models with sections in them."""

    def function_plain_schema(self, schema: Any) -> Schema:
        return section_schema(schema["function"]["function"].__self__)


def schema_of(config_type: Any) -> Schema:
    if issubclass(config_type, Section):
        return section_schema(config_type)
    return config_type.model_json_schema(schema_generator=Schemas)


def resolved(schema: Schema, root: Schema) -> Schema:
    reference = schema.get("$ref", "").rpartition("/")[2]
    return root["$defs"][reference] | {k: v for k, v in schema.items() if k != "$ref"} if reference else schema


def fields(schema: Schema, root: Schema, path: Path = ()) -> dict[Path, Schema]:
    """Every section and field of a schema, with what is allowed there; `required` fields marked."""
    found = {}
    for name, inner in schema.get("properties", {}).items():
        at = (*path, name)
        found[at] = resolved(inner, root) | {"is_required": name in schema.get("required", ())}
        found |= fields(found[at], root, at)
    return found


def everything() -> dict[Path, Schema]:
    spec = schema_of(JobSpec)
    found = fields(spec, spec)
    for section, config_type in NAMED.items():
        schema = schema_of(config_type)
        found[section,] = schema | {"is_required": section == "algorithm"}
        found |= {(section, *path): inner for path, inner in fields(schema, schema).items()}
    return found


FIELDS = everything()


def others() -> dict[tuple[str, Path], Schema]:
    """The fields of every other algorithm that the first one has not: algorithm and path to the field."""
    found = {}
    for name in sorted(algorithms.ALGORITHMS.modules):
        schema = schema_of(algorithms.algorithm(name).config_type)
        places = {("algorithm", *path): inner for path, inner in fields(schema, schema).items()}
        known = [at for _, at in found] + list(FIELDS)
        found |= {(name, at): inner for at, inner in places.items() if at not in known}
    return found


OTHERS = others()
WORDS = st.text(string.ascii_letters, min_size=1, max_size=8)


def alternatives(schema: Schema) -> list[Schema]:
    return schema.get("anyOf", [schema])


def wrong_type(schema: Schema) -> st.SearchStrategy[Any]:
    kinds = {each.get("type", "object") for each in alternatives(schema)}
    text = WORDS.map(lambda word: f"not {word}")
    candidates = []
    if "string" not in kinds:
        candidates.append(text)
    if not kinds & {"object", "array", "null"}:
        candidates.append(st.lists(st.integers(), min_size=1, max_size=2))
    if not kinds & {"integer", "number", "boolean"}:
        candidates.append(st.integers())
    if kinds & {"integer", "number"} and "boolean" not in kinds:
        candidates.append(st.booleans())
    if "null" not in kinds:
        candidates.append(st.none())
    if "integer" in kinds and "number" not in kinds:
        candidates.append(st.integers(1, 9).map(lambda whole: whole + 0.5))
    return st.one_of(candidates)


def out_of_range(schema: Schema) -> st.SearchStrategy[Any] | None:
    candidates = []
    numbers = [each for each in alternatives(schema) if each.get("type") in ("integer", "number")]
    for each in numbers:
        if "minimum" in each:
            candidates.append(st.integers(max_value=int(each["minimum"]) - 1))
        if "exclusiveMinimum" in each:
            candidates.append(st.integers(max_value=int(each["exclusiveMinimum"])))
        if "maximum" in each:
            candidates.append(st.integers(min_value=int(each["maximum"]) + 1))
        candidates.append(st.sampled_from([float("inf"), float("-inf"), float("nan")]))
    if "enum" in schema or "const" in schema or "pattern" in schema:
        candidates.append(WORDS.map(lambda word: f"{word}, misspelt"))
    if schema.get("minItems"):
        candidates.append(st.just([]))
    return st.one_of(candidates) if candidates else None


def broken(path: Path, value: object, algorithm: str = "mappo") -> dict:
    document = copy.deepcopy(JOB) | {"algorithm": {"name": algorithm}}
    *sections, field = path
    inner: dict = document
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[field] = value
    return document


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    with ScriptedCoordinator(tmp_path_factory.mktemp("broken")) as running:
        yield running


@pytest.fixture(scope="module")
def submit(coordinator, tmp_path_factory):
    """Submits a document; answers the exit code, what was printed, and what was said, without the file's name."""
    file = tmp_path_factory.mktemp("broken") / "job.yaml"

    def run(document: object) -> tuple[int, str, list[str]]:
        file.write_text(yaml.safe_dump(document))
        argv = ["marless", "submit", str(file), "--coordinator", coordinator.address]
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.object(sys, "argv", argv),
            redirect_stdout(out),
            redirect_stderr(err),
            pytest.raises(SystemExit) as end,
        ):
            main()
        said = [line.removeprefix("marless: ").replace(f"{file}: ", "", 1) for line in err.getvalue().splitlines()]
        assert all(str(file) not in line for line in said)
        return int(end.value.code or 0), out.getvalue(), said

    return run


@pytest.fixture(scope="module")
def refused(coordinator, submit):
    """The one sentence that a document is refused with."""

    def run(document: object) -> str:
        code, out, said = submit(document)
        assert (code, out, len(said)) == (2, "", 1)
        assert not coordinator.servicer.asked
        return said[0]

    return run


def test_the_schema_is_walked_to_its_leaves():
    assert {("seed",), ("actors", "count"), ("stop", "return"), ("algorithm", "gamma"), ("model",)} <= set(FIELDS)
    assert len(FIELDS) > 40


def test_what_is_broken_here_is_right_without_it(coordinator, submit):
    assert submit(JOB)[0] == 0
    coordinator.servicer.asked.clear()


def breaks(refused, path, data):
    kinds = [wrong_type(FIELDS[path]), out_of_range(FIELDS[path])]
    value = data.draw(st.one_of([kind for kind in kinds if kind is not None]))
    sentence = refused(broken(path, value))
    section = f"{path[0]}: " if path[0] in NAMED and path[1:] == ("name",) else "\0"
    assert sentence.startswith((f"{'.'.join(path)}: ", section))


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
@settings(max_examples=3)
@given(data=st.data())
def test_a_broken_field_is_named_in_one_sentence(refused, path, data):
    breaks(refused, path, data)


@pytest.mark.slow
@pytest.mark.parametrize("path", FIELDS, ids=".".join)
@settings(max_examples=25)
@given(data=st.data())
def test_a_field_broken_in_many_ways_is_named_in_one_sentence(refused, path, data):
    breaks(refused, path, data)


@pytest.mark.parametrize(
    ("algorithm", "path"), OTHERS, ids=lambda each: each if isinstance(each, str) else ".".join(each)
)
@settings(max_examples=4)
@given(data=st.data())
def test_a_broken_field_of_any_algorithm_is_named_in_one_sentence(refused, algorithm, path, data):
    schema = OTHERS[algorithm, path]
    kinds = [wrong_type(schema), out_of_range(schema)]
    value = data.draw(st.one_of([kind for kind in kinds if kind is not None]))
    assert refused(broken(path, value, algorithm)).startswith(f"{'.'.join(path)}: ")


@pytest.mark.parametrize("algorithm", sorted(algorithms.ALGORITHMS.modules))
def test_an_unknown_field_of_any_algorithm_is_named_in_one_sentence(refused, algorithm):
    sentence = refused(broken(("algorithm", "nonsense"), 1, algorithm))
    assert sentence.startswith("algorithm.nonsense: unknown field 'nonsense'")


@pytest.mark.parametrize("path", [path for path, schema in FIELDS.items() if schema.get("properties")], ids=".".join)
@settings(max_examples=4)
@given(word=WORDS)
def test_an_unknown_field_is_named_in_one_sentence(refused, path, word):
    name = f"{word}_"
    assert refused(broken((*path, name), 1)).startswith(f"{'.'.join(path)}.{name}: unknown field {name!r}")


@pytest.mark.parametrize("path", [path for path, schema in FIELDS.items() if schema["is_required"]], ids=".".join)
def test_a_missing_field_is_named_in_one_sentence(refused, path):
    document = copy.deepcopy(JOB)
    inner = document
    for section in path[:-1]:
        inner = inner[section]
    del inner[path[-1]]
    assert refused(document).startswith(".".join(path[:-1] if path == ("algorithm", "name") else path))


@settings(max_examples=30)
@given(document=st.one_of(st.none(), st.integers(), WORDS, st.lists(st.integers()), st.dictionaries(WORDS, st.none())))
def test_a_file_that_is_no_job_at_all(coordinator, submit, document):
    code, out, said = submit(document)
    assert (code, out) == (2, "")
    assert said and "Traceback" not in "".join(said)
    assert not coordinator.servicer.asked
