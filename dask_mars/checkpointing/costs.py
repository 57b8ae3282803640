"""What it costs to write to a directory, measured there, and followed as chunks are written."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

from dask_mars.checkpointing.policy import ASSUMED, Costs

#: What is written to find out: the bytes of a small and of a large file, and how often each is.
_SMALL_BYTES, _LARGE_BYTES, _ROUNDS = 1 << 12, 1 << 20, 3
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
        OSError
            It cannot be written to.
        """
        data = os.urandom(_SMALL_BYTES) * (_LARGE_BYTES // _SMALL_BYTES)
        small_s = min(_written_s(directory, data[:_SMALL_BYTES]) for _ in range(_ROUNDS))
        large_s = min(_written_s(directory, data) for _ in range(_ROUNDS))
        byte_s = max(large_s - small_s, 0.0) / (_LARGE_BYTES - _SMALL_BYTES)
        # A record takes its part of a call and what is to be done for it in Python.
        self.now = Costs(max(small_s / 10, 5e-6), small_s, max(byte_s, 1e-11))
        self.is_measured = True

    def learn(self, size_bytes: int, spent_s: float) -> None:
        """Take note of what writing one file has taken."""
        known = self.now
        if size_bytes >= _LARGE_FROM:
            found = max(spent_s - known.file_s, 0.0) / size_bytes
            self.now = known._replace(byte_s=_followed(known.byte_s, found))
        else:
            found = max(spent_s - size_bytes * known.byte_s, 0.0)
            self.now = known._replace(file_s=_followed(known.file_s, found))

    def learn_records(self, count: int, spent_s: float) -> None:
        """Take note of what appending some records has taken."""
        known = self.now
        self.now = known._replace(record_s=_followed(known.record_s, spent_s / count))


def _followed(known_s: float, found_s: float) -> float:
    return known_s + _WEIGHT * (min(max(found_s, known_s / _MOST), known_s * _MOST) - known_s)


def _written_s(directory: Path, data: bytes) -> float:
    partial = directory / f".{secrets.token_hex(4)}.partial"
    started_s = time.perf_counter()
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
        partial.rename(partial.with_suffix(".partial.named"))
        return time.perf_counter() - started_s
    finally:
        for path in (partial, partial.with_suffix(".partial.named")):
            with contextlib.suppress(OSError):
                path.unlink()


__all__ = ["MeasuredCosts"]
