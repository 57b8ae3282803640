"""The format of submissions to a service and of its results: a JSON header, then frames.

It is the same in files and in bodies of requests: eight bytes (a mark and the header's length), the header, and
the frames, whose sizes are in the header. The frames are a pickle and its out-of-band buffers. The header has all
facts for the front of a service, which never unpickles.
"""

from __future__ import annotations

import json
import platform
import reprlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dask

from dask_mars.version import __version__
from dask_mars.web.api import Problem

#: First bytes of submissions and results; another format gets another mark.
MARK = b"DMW1"
_PREFIX = struct.Struct("<4sI")
PREFIX_BYTES = _PREFIX.size
#: Longest header, in bytes: it has only names, versions and sizes, and small results as JSON.
HEADER_LIMIT_BYTES = 1 << 20
#: Media type of a submission and of a result.
MEDIA_TYPE = "application/vnd.dask-mars"
#: Longest name of a computation, in characters.
_NAME_LIMIT = 500
#: Kinds of submissions: a collection, or a graph with its requested keys, as for a scheduler.
KINDS = ("collection", "graph")
#: Options of a submission.
_OPTIONS = ("num_workers", "retries")
#: Limit for the sizes of frames, in bytes: no file is larger.
_SIZE_LIMIT_BYTES = 1 << 63
_QUOTES = "'\""
#: Shortens refused values in messages.
_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = 60


def encode_header(header: Mapping[str, Any]) -> bytes:
    """Return the bytes before the frames."""
    text = json.dumps(header).encode()
    if len(text) > HEADER_LIMIT_BYTES:
        raise ValueError(f"a header of {len(text):,} bytes is too long")
    return _PREFIX.pack(MARK, len(text)) + text


def header_bytes(prefix: bytes) -> int:
    """Return the length of the header after the first `PREFIX_BYTES`."""
    if len(prefix) < PREFIX_BYTES:
        raise Problem(400, "the body ends before its header")
    mark, length = _PREFIX.unpack_from(prefix)
    if mark != MARK:
        raise Problem(400, f"the body begins with {mark!r} rather than {MARK!r}: it is not for this service")
    if length > HEADER_LIMIT_BYTES:
        raise Problem(400, f"a header of {length:,} bytes is too long")
    return int(length)


def decode_header(text: bytes) -> dict[str, Any]:
    """Return a header, after checking the sizes of its frames."""
    try:
        header = json.loads(text)
    except ValueError as error:
        raise Problem(400, f"the body's header is not JSON: {error}") from None
    except RecursionError:
        raise Problem(400, "the body's header is nested too deeply") from None
    if not isinstance(header, dict):
        raise Problem(400, "the body's header is not a JSON object")
    frames = header.get("frames")
    if not isinstance(frames, list) or not frames or not all(map(_is_size, frames)):
        raise Problem(400, "the body's header gives no sizes of frames")
    return header


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < _SIZE_LIMIT_BYTES


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def name_in(text: bytes, versions: Mapping[str, str], size_bytes: int) -> str:
    """Return the name in the header of a submission, if this service can compute it."""
    header = decode_header(text)
    kind, name, options = header.get("kind"), header.get("name", ""), header.get("options", {})
    if kind not in KINDS:
        raise Problem(400, f"the body is to be of the kind {' or '.join(KINDS)}, not {_brief.repr(kind)}")
    # JSON may contain unpaired surrogates, which no database and no other encoding accepts.
    if not isinstance(name, str) or len(name) > _NAME_LIMIT or not _is_text(name):
        raise Problem(400, f"a name is text of at most {_NAME_LIMIT} characters")
    if not isinstance(options, dict) or not set(options) <= set(_OPTIONS):
        raise Problem(400, f"the options are {' and '.join(_OPTIONS)}, not {_brief.repr(options)}")
    if not all(type(value) is int and value >= 0 for value in options.values()):
        raise Problem(400, f"options are whole numbers, not {_brief.repr(options)}")
    if size_bytes != (expected := PREFIX_BYTES + len(text) + sum(header["frames"])):
        raise Problem(400, f"the body has {size_bytes:,} bytes, and {expected:,} by its header")
    _check_versions(header.get("versions"), versions)
    return name


def _check_versions(given: Any, versions: Mapping[str, str]) -> None:
    if not isinstance(given, dict):
        raise Problem(400, "the body's header gives no versions")
    others = [
        f"{name} {_brief.repr(given.get(name)).strip(_QUOTES)} (here {version})"
        for name, version in versions.items()
        if given.get(name) != version
    ]
    if others:
        raise Problem(409, f"the service has other versions than what was submitted: {', '.join(others)}")


def offsets(header_size_bytes: int, frames: Iterable[int]) -> list[int]:
    """Return the position of each frame."""
    found, at = [], PREFIX_BYTES + header_size_bytes
    for size in frames:
        found.append(at)
        at += size
    return found


def parse_range(text: str | None, size_bytes: int) -> tuple[int, int] | None:
    """Return start and stop of the part of a body that a ``Range`` header requests, None for the whole body."""
    # Several ranges, other units and invalid headers are ignored, as RFC 9110 requires.
    unit, _, given = (text or "").partition("=")
    first, dash, last = given.strip().partition("-")
    digits = first + last
    if unit.strip() != "bytes" or not dash or not digits.isdecimal() or not digits.isascii() or len(digits) > 40:
        return None
    if not first:
        start, stop = max(size_bytes - int(last), 0), size_bytes
    else:
        start, stop = int(first), min(int(last) + 1, size_bytes) if last else size_bytes
        if last and int(last) < start:
            return None
    if start >= size_bytes or start >= stop:
        headers = {"Content-Range": f"bytes */{size_bytes}"}
        raise Problem(416, f"there is no byte {start:,} in {size_bytes:,}", headers)
    return start, stop


def accepted(accept: str | None, offered: Sequence[str]) -> str | None:
    """Return the offered media type that an ``Accept`` header names first; weights count for nothing."""
    for part in (accept or "*/*").split(","):
        wanted = part.partition(";")[0].strip().lower()
        for media_type in offered:
            if wanted in (media_type, "application/*", "*/*"):
                return media_type
    return None


def versions() -> dict[str, str]:
    """Return the versions by package that must be equal in the processes that pickle and unpickle."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"dask_mars": __version__, "dask": dask.__version__, "python": python}
