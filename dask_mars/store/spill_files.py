"""Files of spilled values: written once, read once or twice, and useless after their owner's end.

Files are not synchronized to disk (`fsync`): their owner needs them only while it lives, and until then the system
serves reads from its cache or the disk. Checksums detect late or unreported disk errors. A file gets its name when
it is complete, so that a name stands for a whole value.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from pickle import PickleBuffer
from typing import Any

from dask_mars.errors import SpillDiskFailed, SpillDiskFull, SpilledValueLost
from dask_mars.lazy_numpy import np
from dask_mars.protocol.object_ref import SpilledFile
from dask_mars.store.codec import (
    BLOCK_BYTES,
    CODECS,
    Checksum,
    Codec,
    checksum_kind,
    compressed,
    compression_blocks,
    worthwhile,
)
from dask_mars.store.spill_ownership import claim_directory

#: Bytes of one system call: small enough to stay in the processor's cache between checksum and write, and far
#: below the limits of systems (2 GiB, and less on macOS).
_CHUNK_BYTES = 1 << 18
#: Maximum number of buffers of one system call: the smallest IOV_MAX of any system.
_CHUNK_BUFFERS = 1024

#: Assumed write rate of a disk until the first measurement, in bytes per second.
_DISK_BYTES_PER_S = 1e9

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PARTIAL = ".partial"
_CLOSE_ATTEMPTS = 20


class SpillFiles:
    """Writes and reads files in a directory of another owner; it is thread-safe."""

    def __init__(self, path: str | Path, codec: Codec | None = None) -> None:
        self.path = Path(path)
        self._codec = codec
        self._new_checksum = checksum_kind()
        self._serial = count()
        #: Recently measured write rate. It is high while the system caches writes; when writers wait for the disk
        #: it falls, and compression begins to pay.
        self.disk_bytes_per_s = _DISK_BYTES_PER_S

    def write(self, name: str, buffers: Sequence[Any], in_parts: bool = False) -> SpilledFile:
        """Write buffers to a new file."""
        # Buffers that are read in parts have checksums of their own, and are not compressed. After an
        # error no part of the file is left.
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"not a name for a file: {name!r}")
        views = [PickleBuffer(buffer).raw() for buffer in buffers]
        path = self.path / name
        partial = self.path / f".{os.getpid()}.{next(self._serial)}.{name}{_PARTIAL}"
        try:
            file = self._write(partial, path, views, in_parts)
            partial.rename(path)
        except BaseException as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            if isinstance(error, OSError):
                raise _write_error(path, sum(map(len, views)), error) from error
            raise
        return file

    def read(self, file: SpilledFile, into: Sequence[Any] | None = None) -> list[memoryview]:
        """Read a file's buffers."""
        views = _memory_for(file.parts) if into is None else [PickleBuffer(buffer).raw() for buffer in into]
        if tuple(map(len, views)) != file.parts or any(view.readonly for view in views):
            raise ValueError(f"memory to read into must be writable and have the sizes {file.parts}")
        try:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = self._read(descriptor, file, views)
            finally:
                os.close(descriptor)
        except FileNotFoundError as error:
            raise _lost(file, "the file is gone") from error
        except OSError as error:
            raise SpillDiskFailed(*_facts(file.path, sum(file.parts), error)) from error
        if found != file.checksum:
            raise _lost(file, f"its checksum is {found:x} instead of {file.checksum:x}")
        return views

    def remove(self, file: SpilledFile) -> None:
        """Remove a file, if it exists."""
        try:
            Path(file.path).unlink(missing_ok=True)
        except OSError as error:
            raise SpillDiskFailed(*_facts(file.path, file.size_bytes, error)) from error

    def _write(self, partial: Path, path: Path, views: list[memoryview], in_parts: bool) -> SpilledFile:
        codec = self._codec
        if codec and (in_parts or not worthwhile(views, codec, self.disk_bytes_per_s)):
            codec = None
        blocks: list[int] = []
        checksum = self._new_checksum()
        size = 0
        spent_s = 0.0
        descriptor = _new_file(partial)
        try:
            owner = os.fstat(descriptor).st_uid
            for batch in _batches(compressed(views, codec, blocks) if codec else views):
                for piece in batch:
                    if not in_parts:
                        checksum.update(piece)
                    size += len(piece)
                started_s = time.perf_counter()
                _write_all(descriptor, batch)
                spent_s += time.perf_counter() - started_s
        finally:
            # Network file systems may report a full disk only here.
            os.close(descriptor)
        self._learn(size, spent_s)
        parts = tuple(map(len, views))
        name = codec.name if codec else ""
        return SpilledFile(str(path), size, checksum.intdigest(), name, parts, tuple(blocks), owner)

    def _learn(self, size_bytes: int, spent_s: float) -> None:
        """Update the disk's rate; the newest file counts for a quarter."""
        if size_bytes >= BLOCK_BYTES and spent_s > 0:
            self.disk_bytes_per_s += 0.25 * (size_bytes / spent_s - self.disk_bytes_per_s)

    def _read(self, descriptor: int, file: SpilledFile, views: list[memoryview]) -> int:
        """Fill memory from a file and return the checksum."""
        _check_file(descriptor, file)
        checksum = self._new_checksum()
        if file.compression:
            self._read_blocks(descriptor, file, views, checksum)
        else:
            _fill(descriptor, views, checksum, file)
        return checksum.intdigest()

    def _read_blocks(
        self, descriptor: int, file: SpilledFile, views: list[memoryview], checksum: Checksum
    ) -> None:
        # The reader may have another codec than the writer.
        codec = CODECS.get(file.compression, lambda: self._codec)()
        if codec is None or codec.name != file.compression:
            raise _lost(file, f"it was compressed with {file.compression}, which is not at hand")
        memory = memoryview(bytearray(max(file.blocks)))
        for target, size in zip(compression_blocks(views), file.blocks, strict=True):
            _fill(descriptor, [memory[:size]], checksum, file)
            try:
                target[:] = codec.decompress(memory[:size], len(target))
            except MemoryError:
                # The file is intact.
                raise
            except Exception as error:
                # The checksum would fail at the end anyway.
                raise _lost(file, f"it cannot be decompressed: {error}") from error


class SpilledBytes:
    """The bytes of a file that was written `in_parts`, for partial reads."""

    def __init__(self, file: SpilledFile) -> None:
        self._file = file
        try:
            self._descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            _check_file(self._descriptor, file)
        except FileNotFoundError as error:
            raise _lost(file, "the file is gone") from error
        except OSError as error:
            raise SpillDiskFailed(*_facts(file.path, file.size_bytes, error)) from error

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            os.close(self._descriptor)

    def read(self, start: int, stop: int) -> memoryview:
        """Return a range of the bytes, in memory of their own."""
        if stop > self._file.size_bytes:
            raise _lost(self._file, f"it says that it has {stop:,} bytes")
        view = data = memoryview(bytearray(stop - start))
        try:
            while view:
                count = os.preadv(self._descriptor, [view], start)
                if not count:
                    raise _lost(self._file, "it has become shorter")
                view, start = view[count:], start + count
        except OSError as error:
            raise SpillDiskFailed(*_facts(self._file.path, len(data), error)) from error
        return data

    def reject(self, reason: str) -> SpilledValueLost:
        """Return the exception for damaged bytes."""
        return _lost(self._file, reason)


class SpillDirectory(SpillFiles):
    """A new private directory of spilled values, removed on close."""

    # If this process is killed first, the next engine removes it. Other processes use it by `SpillFiles`.

    def __init__(self, root: str | Path, codec: Codec | None = None) -> None:
        try:
            path = claim_directory(Path(root))
        except OSError as error:
            raise _write_error(Path(root), 0, error) from error
        super().__init__(path, codec)
        self._closed = False

    def write(self, name: str, buffers: Sequence[Any], in_parts: bool = False) -> SpilledFile:
        """Write buffers to a new file, as `SpillFiles.write`; this fails once the directory is being closed."""
        if self._closed:
            raise SpillDiskFailed(str(self.path / name), 0, -1, "the directory is closed")
        return super().write(name, buffers, in_parts)

    def close(self) -> None:
        """Remove the directory with all files; concurrent writes fail."""
        # Otherwise writers might create files faster than they are removed.
        self._closed = True
        for _ in range(_CLOSE_ATTEMPTS):
            try:
                shutil.rmtree(self.path)
            except FileNotFoundError:
                # It is gone, or a file in it was renamed or removed meanwhile.
                if not self.path.exists():
                    return
            except OSError as error:
                # A file that is created meanwhile prevents the removal of the directory.
                if error.errno != errno.ENOTEMPTY:
                    raise SpillDiskFailed(*_facts(str(self.path), 0, error)) from error
        if self.path.exists():
            raise SpillDiskFailed(str(self.path), 0, free_bytes(str(self.path)), "files are still made in it")


# -- memory ---------------------------------------------------------------------------------------------------


def _memory_for(parts: Iterable[int]) -> list[memoryview]:
    # Unlike a bytearray, NumPy's memory is not zeroed first.
    return [np.empty(size, dtype=np.uint8).data for size in parts]


def _batches(views: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Cut memory into lists for one system call each, in order and without empty buffers."""
    batch: list[memoryview] = []
    room = _CHUNK_BYTES
    for view in views:
        start = 0
        while start < len(view):
            piece = view[start : start + room]
            start += len(piece)
            room -= len(piece)
            batch.append(piece)
            if not room or len(batch) == _CHUNK_BUFFERS:
                yield batch
                batch, room = [], _CHUNK_BYTES
    if batch:
        yield batch


# -- system calls ---------------------------------------------------------------------------------------------


def _new_file(path: Path) -> int:
    """Open a new file that only this user can read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        # Left by a dead process of the same id, or created by another user as a trap.
        path.unlink()
        return os.open(path, flags, 0o600)


def _write_all(descriptor: int, batch: list[memoryview]) -> None:
    while batch:
        written = os.writev(descriptor, batch)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        batch = _after(batch, written)


def _fill(descriptor: int, views: Iterable[memoryview], checksum: Checksum, file: SpilledFile) -> None:
    """Read until memory is full."""
    for batch in _batches(views):
        rest = batch
        while rest:
            count_read = os.readv(descriptor, rest)
            if not count_read:
                raise _lost(file, "it ends too early")
            rest = _after(rest, count_read)
        for piece in batch:
            checksum.update(piece)


def _after(batch: list[memoryview], done: int) -> list[memoryview]:
    """Return the rest of a batch after some bytes."""
    for position, piece in enumerate(batch):
        if done < len(piece):
            return [piece[done:], *batch[position + 1 :]]
        done -= len(piece)
    return []


# -- errors ---------------------------------------------------------------------------------------------------


def _write_error(path: Path, requested_bytes: int, error: OSError) -> SpillDiskFull | SpillDiskFailed:
    kind = SpillDiskFull if error.errno in _FULL else SpillDiskFailed
    return kind(*_facts(str(path), requested_bytes, error))


def _check_file(descriptor: int, file: SpilledFile) -> None:
    """Raise an exception if a file's owner or size is not that of the written one."""
    found = os.fstat(descriptor)
    # Checksums can be forged, and unpickling runs code of the writer.
    if found.st_uid != file.owner:
        raise _lost(file, f"it belongs to the user {found.st_uid} instead of {file.owner}")
    if found.st_size != file.size_bytes:
        raise _lost(file, f"it has {found.st_size:,} bytes instead of {file.size_bytes:,}")


def _lost(file: SpilledFile, reason: str) -> SpilledValueLost:
    return SpilledValueLost(file.path, sum(file.parts), free_bytes(file.path), reason)


def _facts(path: str, requested_bytes: int, error: OSError) -> tuple[str, int, int, str]:
    return path, requested_bytes, free_bytes(path), error.strerror or str(error)


def free_bytes(path: str) -> int:
    """Return the free bytes on the disk of a path; -1 if that is unknown."""
    # The file, or the directories around it, may be gone.
    for candidate in (Path(path), *Path(path).parents):
        with contextlib.suppress(OSError):
            found = os.statvfs(candidate)
            return found.f_bavail * found.f_frsize
    return -1
