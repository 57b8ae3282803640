"""Journals: files of appended records, which may end anywhere when their writer dies."""

from __future__ import annotations

import os
import pickle
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dask_mars.graph.chunks import Key
from dask_mars.protocol.object_ref import ObjectRef

#: The first bytes of a journal; journals of other versions are not read.
_MAGIC = b"dask-mars journal 2 "
#: Length and checksum before each record.
_HEAD = struct.Struct("<II")

#: State of a file after a chunk had written to it: path, bytes, and modification time in nanoseconds; the bytes
#: are -1 if there was no file.
FileProof = tuple[str, int, int]


class Saved(NamedTuple):
    """Record of a saved chunk."""

    key: Key
    #: Fingerprint of how the value is computed; see `identity.form_of`.
    form: str
    #: Seconds of computing that its loss would cost.
    risk_s: float
    #: The value itself, or a reference to its file, by name.
    ref: ObjectRef
    #: Files that the chunk had written; they must be unchanged for the chunk to count as computed.
    proof: tuple[FileProof, ...] = ()


class Begun(NamedTuple):
    """Record of a started chunk that must not start again."""

    key: Key


Record = Saved | Begun
_KINDS: tuple[type[Record], ...] = (Saved, Begun)


def encoded(records: Iterable[Record]) -> bytes:
    """Return records in the format of a journal."""
    parts: list[bytes] = []
    for record in records:
        payload = pickle.dumps((_KINDS.index(type(record)), *record), protocol=5)
        parts += (_HEAD.pack(len(payload), zlib.crc32(payload)), payload)
    return b"".join(parts)


def decoded(data: bytes | memoryview, identity: str) -> Iterator[Record]:
    """Yield the records of a journal, up to the first incomplete one."""
    beginning = _beginning(identity)
    if bytes(data[: len(beginning)]) != beginning:
        return
    at = len(beginning)
    while at + _HEAD.size <= len(data):
        size, checksum = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        payload = data[at : at + size]
        if not size or len(payload) < size or zlib.crc32(payload) != checksum:
            return
        at += size
        try:
            kind, *fields = pickle.loads(payload)
            record: Record = _KINDS[kind]._make(fields)
            hash(record.key)
        except Exception:
            # A pickle of other versions of Python or of libraries, for example.
            continue
        yield record


def read_journal(path: Path, identity: str) -> list[Record]:
    """Return the complete records of a journal; none if the file is gone."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return list(decoded(data, identity))


class Journal:
    """A journal that one thread of one process writes."""

    def __init__(self, path: Path, identity: str) -> None:
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._size = 0
        try:
            self._write(_beginning(identity))
        except BaseException:
            os.close(self._descriptor)
            raise

    def append(self, records: Sequence[Record], lasting: bool = False) -> None:
        """Append records, undone if the disk is full; `lasting` ones survive a loss of power."""
        self._write(encoded(records))
        if lasting:
            os.fdatasync(self._descriptor)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            # A reader stops at the first incomplete record.
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _beginning(identity: str) -> bytes:
    return _MAGIC + identity.encode() + b"\n"
