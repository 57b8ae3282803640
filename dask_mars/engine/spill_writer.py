"""Writes chunks to disk in a thread of its own, as the engine's thread must not wait for disks."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dask_mars.errors import SpillError
from dask_mars.locking import Lock
from dask_mars.protocol.object_ref import ObjectRef, spilled_file
from dask_mars.store.codec import lz4_codec
from dask_mars.store.spill_files import SpillDirectory
from dask_mars.store.spill_ownership import clear_abandoned
from dask_mars.store.store import Store

logger = logging.getLogger(__name__)

#: Called in the spill writer's thread with the reference to the file or with the error, and with the time at which
#: writing began.
Answer = Callable[[ObjectRef | SpillError, float], None]


class SpillWriter:
    """Writes values of a store to files, one after the other."""

    # It touches the disk with the first value only.

    def __init__(self, store: Store, root: Path) -> None:
        self._store = store
        self._root = root
        self._directory: SpillDirectory | None = None
        #: Guards the directory's creation, by its own thread or the engine's.
        self._making = Lock()
        self._pool: ThreadPoolExecutor | None = None
        #: Size of all files so far, including removed ones.
        self.spilled_bytes = 0

    def clear_abandoned(self) -> None:
        """Remove the files of processes that were killed."""
        for path in clear_abandoned(self._root):
            logger.info("removed %s, whose owner has ended", path)

    def make_directory(self) -> str:
        """Return the directory for spilled values, making it first if need be; raise `SpillError` on failure."""
        with self._making:
            if self._directory is None:
                self._directory = SpillDirectory(self._root, codec=lz4_codec())
            return str(self._directory.path)

    def write(self, name: str, ref: ObjectRef, answer: Answer) -> None:
        """Write a value to a file some time later; its blocks have to stay until the answer comes."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="dask-mars-spill")
        self._pool.submit(self._write, name, ref, answer)

    def _write(self, name: str, ref: ObjectRef, answer: Answer) -> None:
        began_s = time.perf_counter()
        try:
            self.make_directory()
            assert self._directory is not None
            written = self._store.spill(ref, name, self._directory)
            self.add_written(written)
            answer(written, began_s)
        except SpillError as error:
            # Its tracebacks would keep the memory that should become free.
            error.__cause__ = error.__context__ = None
            answer(error.with_traceback(None), began_s)
        except BaseException as error:
            # Every error must be reported to the engine.
            answer(SpillError(str(self._root), 0, -1, repr(error)), began_s)

    def add_written(self, ref: ObjectRef) -> None:
        """Count a file that was written."""
        self.spilled_bytes += spilled_file(ref).size_bytes

    def remove(self, ref: ObjectRef) -> None:
        """Remove a value's file."""
        if self._directory is not None:
            # A file that stays is removed with the directory.
            with contextlib.suppress(SpillError):
                self._directory.remove(spilled_file(ref))

    def close(self) -> None:
        """Remove all files, once the present write has ended."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        if self._directory is not None:
            with contextlib.suppress(SpillError):
                self._directory.close()
