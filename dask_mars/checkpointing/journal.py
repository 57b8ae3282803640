"""Journals: files to which records of chunks are appended, and that may end anywhere, as their writers do."""

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

#: How a journal begins; what begins in another way is of another version, and is not read.
_MAGIC = b"dask-mars journal 2 "
#: Before each record: its length and its checksum.
_HEAD = struct.Struct("<II")

#: What was there of a file when a chunk had been written to it: its path, its bytes, and when it was changed, in
#: nanoseconds; the bytes are -1 if there was none.
FileProof = tuple[str, int, int]


class Saved(NamedTuple):
    """A record of a chunk whose value is saved.

    Attributes
    ----------
    key : Key
        Dask's.
    form : str
        What the value is, besides what the key says; see `identity.form_of`.
    risk_s : float
        How much work it stands for.
    ref : ObjectRef
        The value itself, or of a value in a file where that is; the file's path is its name.
    proof : tuple of FileProof
        What the chunk had written elsewhere, and what must be as it was for the chunk to count as computed.
    """

    key: Key
    form: str
    risk_s: float
    ref: ObjectRef
    proof: tuple[FileProof, ...] = ()


class Begun(NamedTuple):
    """A record of a chunk that was begun and must not be begun again."""

    key: Key


Record = Saved | Begun
_KINDS: tuple[type[Record], ...] = (Saved, Begun)


def encoded(records: Iterable[Record]) -> bytes:
    """Return records as they stand in a journal."""
    parts: list[bytes] = []
    for record in records:
        payload = pickle.dumps((_KINDS.index(type(record)), *record), protocol=5)
        parts += (_HEAD.pack(len(payload), zlib.crc32(payload)), payload)
    return b"".join(parts)


def decoded(data: bytes | memoryview, identity: str) -> Iterator[Record]:
    """Yield the records of a journal, up to the first that is not whole.

    Parameters
    ----------
    data : bytes
        Of the journal.
    identity : str
        Of the computation whose journal it should be; there is nothing in that of another.
    """
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
            # What was pickled by other versions of Python or of libraries, say.
            continue
        yield record


def read_journal(path: Path, identity: str) -> list[Record]:
    """Return the whole records of a journal; none if it is gone."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return list(decoded(data, identity))


class Journal:
    """A journal that is being written, by one thread of one process.

    Parameters
    ----------
    path : Path
        Of the file, which is not there yet.
    identity : str
        Of the computation.

    Raises
    ------
    OSError
        It cannot be made.
    """

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

    def append(self, records: Sequence[Record], lasting: bool = False) -> int:
        """Append records, and return how many bytes that were.

        Parameters
        ----------
        records : sequence of Record
            What to append.
        lasting : bool, optional
            Have them survive a loss of power, too.

        Raises
        ------
        OSError
            The disk is full or fails. What is there of the records is taken back, so that others may follow.
        """
        data = encoded(records)
        self._write(data)
        if lasting:
            os.fdatasync(self._descriptor)
        return len(data)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            # Who reads it stops at the first record that is not whole.
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _beginning(identity: str) -> bytes:
    return _MAGIC + identity.encode() + b"\n"


__all__ = ["Begun", "FileProof", "Journal", "Record", "Saved", "decoded", "encoded", "read_journal"]
