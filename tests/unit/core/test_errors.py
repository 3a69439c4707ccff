"""Error messages stay short, whatever they quote."""

import json
import zlib

import pytest

from marless.core.errors import (
    LONGEST_SENTENCE,
    LONGEST_SHOWN,
    CorruptError,
    MarlessError,
    OverloadedError,
    shown,
    told,
)
from marless.learning.aggregation import gradient_file
from marless.learning.data import carry
from marless.learning.nets import serial

MEGABYTES = 8 * 2**20


def _file(dtype: str, name: str = "w") -> bytes:
    """A safetensors file that is quoted by the library that reads it."""
    header = json.dumps({name: {"dtype": dtype, "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(4)


def _carry(body: bytes) -> bytes:
    return carry._FORMAT + zlib.crc32(body).to_bytes(4, "little") + body


READERS = {
    "a policy": serial.decode_acting,
    "a gradient": gradient_file.decode,
    "a carry": lambda data: carry.decode(_carry(data)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("data", [_file("F" * MEGABYTES), _file("F32", "n" * MEGABYTES)], ids=["dtype", "name"])
def test_a_header_of_megabytes_is_not_quoted_whole(reader, data):
    try:
        READERS[reader](data)
    except CorruptError as error:
        assert 10 < len(str(error)) < 1000, str(error)[:100]


def test_the_library_quotes_the_whole_header_and_we_do_not():
    with pytest.raises(CorruptError) as refused:
        serial.decode_acting(_file("F" * MEGABYTES))
    assert "SafetensorError" in str(refused.value) and "FFFF" in str(refused.value)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("kind", [MarlessError, CorruptError, OverloadedError])
def test_no_error_has_a_longer_sentence_than_fits_into_a_message(kind):
    assert str(kind("x" * MEGABYTES)) == "x" * (LONGEST_SENTENCE - 1) + "…"
    assert str(kind("x" * LONGEST_SENTENCE)) == "x" * LONGEST_SENTENCE


def test_what_others_say_is_cut():
    assert told(ValueError("x" * MEGABYTES)) == "ValueError: " + "x" * 499 + "…"
    assert told(ValueError("two \n lines")) == "ValueError: two lines"
    assert len(shown("x" * MEGABYTES)) == len(shown([1] * MEGABYTES)) == LONGEST_SHOWN
