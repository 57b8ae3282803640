"""What it costs to write to a directory, measured there, and followed as chunks are written."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

from dask_mars.checkpointing.journal import Saved, encoded
from dask_mars.checkpointing.policy import ASSUMED, Costs
from dask_mars.store.codec import lz4_codec
from dask_mars.store.spill_files import SpillFiles

#: What is written to find out: the bytes of a small and of a large file, and how often each is.
_SMALL_BYTES, _LARGE_BYTES, _ROUNDS = 1 << 12, 1 << 20, 3
#: Records that are written together, more or less.
_RECORDS = 16
#: What the engine's thread has to do for it takes about as long as what the thread that writes does.
_HANDLING = 2.0
#: How much one more measurement counts, and by how much it may differ from what is known: others use the disk too.
_WEIGHT, _MOST = 0.1, 4.0
#: Values from so many bytes on tell of bytes, those of fewer of files.
_LARGE_FROM = 1 << 18


class MeasuredCosts:
    """Costs that follow what is measured. One thread measures, others read.

    Attributes
    ----------
    now : Costs
        As far as is known.
    """

    def __init__(self) -> None:
        self.now = ASSUMED
        self.is_measured = False

    def measure(self, directory: Path) -> None:
        """Write some files to a directory and remove them.

        Raises
        ------
        SpillError
            It cannot be written to.
        """
        files = SpillFiles(directory, lz4_codec())
        data = os.urandom(_SMALL_BYTES) * (_LARGE_BYTES // _SMALL_BYTES)
        small_s = min(_written_s(files, data[:_SMALL_BYTES]) for _ in range(_ROUNDS))
        large_s = min(_written_s(files, data) for _ in range(_ROUNDS))
        byte_s = max(large_s - small_s, 0.0) / (_LARGE_BYTES - _SMALL_BYTES)
        # A record takes its part of a call, and what is to be done for it in Python.
        record_s = min(_encoded_s() for _ in range(_ROUNDS)) + small_s / _RECORDS
        self.now = Costs(_HANDLING * record_s, _HANDLING * small_s, byte_s)
        self.is_measured = True

    def learn(self, size_bytes: int, spent_s: float) -> None:
        """Take note of what writing one file has taken."""
        known = self.now
        if size_bytes >= _LARGE_FROM:
            found = max(spent_s - known.file_s, 0.0) / size_bytes
            self.now = known._replace(byte_s=_followed(known.byte_s, found))
        else:
            found = _HANDLING * max(spent_s - size_bytes * known.byte_s, 0.0)
            self.now = known._replace(file_s=_followed(known.file_s, found))

    def learn_records(self, count: int, spent_s: float) -> None:
        """Take note of what appending some records has taken."""
        known = self.now
        self.now = known._replace(record_s=_followed(known.record_s, _HANDLING * spent_s / count))


def _followed(known_s: float, found_s: float) -> float:
    return known_s + _WEIGHT * (min(max(found_s, known_s / _MOST), known_s * _MOST) - known_s)


def _written_s(files: SpillFiles, data: bytes) -> float:
    name = f"{secrets.token_hex(4)}.measured"
    started_s = time.perf_counter()
    try:
        files.write(name, [data])
        return time.perf_counter() - started_s
    finally:
        with contextlib.suppress(OSError):
            (files.path / name).unlink()


def _encoded_s() -> float:
    records = [Saved(("measured", number), "", 0.0, (0, 0.0)) for number in range(_RECORDS)]
    started_s = time.perf_counter()
    encoded(records)
    return (time.perf_counter() - started_s) / _RECORDS


__all__ = ["MeasuredCosts"]
