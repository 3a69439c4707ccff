"""Names of places in buckets."""

import pytest

from marless.core.errors import SpecError
from marless.storage.places import Address, is_address, parse


@pytest.mark.parametrize(
    ("text", "bucket", "prefix"),
    [
        ("s3://my-bucket", "my-bucket", ""),
        ("s3://my-bucket/", "my-bucket", ""),
        ("s3://my.bucket/runs/spread/", "my.bucket", "runs/spread"),
        ("s3://abc/team a/ü", "abc", "team a/ü"),
    ],
)
def test_a_place(text, bucket, prefix):
    assert is_address(text)
    assert parse(text) == Address(bucket, prefix)
    assert str(parse(text)) == text.rstrip("/")


@pytest.mark.parametrize(
    "text",
    ["s3://", "s3:///x", "s3://UPPER/x", "s3://a", "s3://b@c/x", "s3://abc/a/../b", "s3://abc/a//b", "s3://abc/x\n",
     "s3://abc/" + "x" * 701, "http://abc/x", "/tmp/x"],
)  # fmt: skip
def test_what_is_no_place(text):
    with pytest.raises(SpecError):
        parse(text)


def test_keys_and_places_below():
    assert parse("s3://abc/runs").key("spread/head.json") == "runs/spread/head.json"
    assert parse("s3://abc").key("head.json") == "head.json"
    assert parse("s3://abc").key("") == ""
    assert parse("s3://abc/runs").below("j") == Address("abc", "runs/j")
    assert parse("s3://abc/runs/j").name == "j"
    assert not is_address("runs/s3") and not is_address(None)
