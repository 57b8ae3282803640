"""Costs of writing to a directory, updated with each write, and the budget of its bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dask_mars.checkpointing.policy import ASSUMED
from dask_mars.locking import Lock

#: Factor for the engine thread's work, which takes about as long as the writer's.
_HANDLING = 2.0
#: Weight of one more measurement, and largest accepted change, as a factor: other processes use the disk too.
_WEIGHT, _MOST = 0.1, 4.0
#: Size from which a write updates the costs by bytes; smaller ones update the costs by file.
_LARGE_FROM = 1 << 18


class MeasuredCosts:
    """Costs that follow the measured ones. One thread measures, others read."""

    def __init__(self) -> None:
        self.now = ASSUMED

    def learn(self, size_bytes: int, spent_s: float) -> None:
        """Update the costs with one written file."""
        known = self.now
        if size_bytes >= _LARGE_FROM:
            found = max(spent_s - known.file_s, 0.0) / size_bytes
            self.now = known._replace(byte_s=_followed(known.byte_s, found))
        else:
            found = _HANDLING * max(spent_s - size_bytes * known.byte_s, 0.0)
            self.now = known._replace(file_s=_followed(known.file_s, found))

    def learn_records(self, count: int, spent_s: float) -> None:
        """Update the costs with some appended records."""
        known = self.now
        self.now = known._replace(record_s=_followed(known.record_s, _HANDLING * spent_s / count))


def _followed(known_s: float, found_s: float) -> float:
    return known_s + _WEIGHT * (min(max(found_s, known_s / _MOST), known_s * _MOST) - known_s)


_known: dict[Path, MeasuredCosts] = {}
os.register_at_fork(after_in_child=_known.clear)


def costs_of(directory: Path) -> MeasuredCosts:
    """Return the costs of saving in a directory, as far as this process knows them."""
    return _known.setdefault(directory, MeasuredCosts())


class Budget:
    """Bytes that may still be written to a directory. It is thread-safe."""

    def __init__(
        self, limit_bytes: int | None, used_bytes: Callable[[], int], directory: Path, spare_bytes: int = 0
    ) -> None:
        self._directory = directory
        self._spare_bytes = spare_bytes
        self._limit_bytes = limit_bytes
        self._count_used = used_bytes
        self._used_bytes: int | None = None
        self._lock = Lock()

    def take(self, size_bytes: int) -> bool:
        """Take some bytes; return False if too few are left."""
        if self._spare_bytes and self._free_bytes() < size_bytes + self._spare_bytes:
            return False
        if self._limit_bytes is None:
            return True
        with self._lock:
            if self._used_bytes is None:
                self._used_bytes = self._count_used()
            if self._used_bytes + size_bytes > self._limit_bytes:
                return False
            self._used_bytes += size_bytes
            return True

    def _free_bytes(self) -> int:
        found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize

    def give_back(self, size_bytes: int) -> None:
        """Give some bytes back."""
        with self._lock:
            if self._used_bytes is not None:
                self._used_bytes -= size_bytes
