"""The layout of submissions and results, and what requests say of the forms and parts that they want."""

from __future__ import annotations

import doctest
import struct

import pytest

from dask_mars.web import wire
from dask_mars.web.wire import BadBody, ByteRange, SubmissionHeader

VERSIONS = {"dask": "1", "python": "3.11"}


def test_examples() -> None:
    assert doctest.testmod(wire).failed == 0


def test_a_submission_is_read_as_it_was_written() -> None:
    written = SubmissionHeader("graph", (3, 0, 5), VERSIONS, "tempêrature", {"retries": 2})
    text = written.encode()
    length = wire.header_bytes(text[: wire.PREFIX_BYTES])
    assert length == len(text) - wire.PREFIX_BYTES
    assert wire.decode_submission(text[wire.PREFIX_BYTES :], VERSIONS, len(text) + 8) == written


def test_frames_follow_each_other() -> None:
    assert wire.offsets(10, []) == []
    assert wire.offsets(10, [1, 0, 4]) == [18, 19, 19]


def test_headers_of_no_use_are_not_written() -> None:
    with pytest.raises(ValueError, match="too long"):
        wire.encode_header({"name": "x" * wire.HEADER_LIMIT_BYTES})


@pytest.mark.parametrize("prefix", [b"", b"DMW1", b"DMW2" + bytes(4), struct.pack("<4sI", b"DMW1", 1 << 31)])
def test_other_beginnings_are_refused(prefix: bytes) -> None:
    with pytest.raises(BadBody) as caught:
        wire.header_bytes(prefix)
    assert caught.value.status == 400


def test_versions_are_compared_one_by_one() -> None:
    text = SubmissionHeader("graph", (1,), {"dask": "2", "python": "3.11"}).encode()
    with pytest.raises(BadBody, match=r"dask 2 \(here 1\)$") as caught:
        wire.decode_submission(text[wire.PREFIX_BYTES :], VERSIONS, len(text) + 1)
    assert caught.value.status == 409


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("bytes=0-0", ByteRange(0, 1)),
        ("bytes=2-", ByteRange(2, 10)),
        ("bytes=2-100", ByteRange(2, 10)),
        ("bytes=-4", ByteRange(6, 10)),
        ("bytes=-40", ByteRange(0, 10)),
        ("bytes=3-2", None),
        ("bytes=0-1,4-5", None),
        ("bytes=x-2", None),
        ("bytes=-", None),
        ("bytes=²-", None),
        ("rows=0-1", None),
        ("bytes=" + "9" * 50 + "-", None),
    ],
)
def test_ranges(text: str | None, expected: ByteRange | None) -> None:
    assert wire.parse_range(text, 10) == expected


@pytest.mark.parametrize("text", ["bytes=10-", "bytes=99-100", "bytes=-0"])
def test_ranges_behind_the_end_are_refused(text: str) -> None:
    with pytest.raises(BadBody) as caught:
        wire.parse_range(text, 10)
    assert caught.value.status == 416


OFFERED = [wire.MEDIA_TYPE, "application/x-npy", "application/json"]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, wire.MEDIA_TYPE),
        ("*/*", wire.MEDIA_TYPE),
        ("application/*", wire.MEDIA_TYPE),
        ("application/json", "application/json"),
        ("text/html, application/json;q=0.9, */*;q=0.1", "application/json"),
        ("application/x-npy;q=0.2, application/json;q=0.1", "application/x-npy"),
        ("*/*, application/json", "application/json"),
        ("application/json;q=0", None),
        ("application/json;q=high", None),
        ("text/html", None),
    ],
)
def test_what_is_accepted(accept: str | None, expected: str | None) -> None:
    assert wire.accepted(accept, OFFERED) == expected
