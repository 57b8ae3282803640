"""The layout of submissions and results, and what requests say of the forms and parts that they want."""

from __future__ import annotations

import pytest

from dask_mars.web import wire
from dask_mars.web.api import Problem

VERSIONS = {"dask": "1", "python": "3.11"}


def test_a_submission_is_read_as_it_was_written() -> None:
    header = {"kind": "graph", "frames": [3, 0, 5], "versions": VERSIONS, "name": "tempêrature"}
    text = wire.encode_header({**header, "options": {"retries": 2}})
    length = wire.header_bytes(text[: wire.PREFIX_BYTES])
    assert length == len(text) - wire.PREFIX_BYTES
    assert wire.name_in(text[wire.PREFIX_BYTES :], VERSIONS, len(text) + 8) == "tempêrature"
    with pytest.raises(Problem, match=r"dask 1 \(here 2\)$"):
        wire.name_in(text[wire.PREFIX_BYTES :], VERSIONS | {"dask": "2"}, len(text) + 8)
    assert wire.offsets(10, [1, 0, 4]) == [18, 19, 19]
    with pytest.raises(ValueError, match="too long"):
        wire.encode_header({"name": "x" * wire.HEADER_LIMIT_BYTES})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("bytes=0-0", (0, 1)),
        ("bytes=2-", (2, 10)),
        ("bytes=2-100", (2, 10)),
        ("bytes=-4", (6, 10)),
        ("bytes=-40", (0, 10)),
        ("bytes=3-2", None),
        ("bytes=0-1,4-5", None),
        ("bytes=x-2", None),
        ("bytes=-", None),
        ("bytes=²-", None),
        ("rows=0-1", None),
        ("bytes=" + "9" * 50 + "-", None),
    ],
)
def test_ranges(text: str | None, expected: tuple[int, int] | None) -> None:
    assert wire.parse_range(text, 10) == expected


@pytest.mark.parametrize("text", ["bytes=10-", "bytes=99-100", "bytes=-0"])
def test_ranges_behind_the_end_are_refused(text: str) -> None:
    with pytest.raises(Problem) as caught:
        wire.parse_range(text, 10)
    assert (caught.value.status, caught.value.headers) == (416, {"Content-Range": "bytes */10"})


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, wire.MEDIA_TYPE),
        ("*/*", wire.MEDIA_TYPE),
        ("application/*", wire.MEDIA_TYPE),
        ("application/json", "application/json"),
        ("text/html, application/json;q=0.9, */*;q=0.1", "application/json"),
        ("text/html", None),
    ],
)
def test_what_is_accepted(accept: str | None, expected: str | None) -> None:
    assert wire.accepted(accept, [wire.MEDIA_TYPE, "application/x-npy", "application/json"]) == expected
