"""Map outputs: the result of one map operand of a shuffle, of which each reducer reads its part.

A map output is one array of bytes: a table of the reducers' parts, and the parts, each a pickle followed by its
buffers. The store treats it as any array. A spilled one is not read as a whole: a reader reads the table and its
part, each with a checksum of its own.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Collection, Iterable
from typing import Any, Protocol

from dask_mars.lazy_numpy import np
from dask_mars.protocol.pickling import dumps, loads
from dask_mars.store.arena import Bytes

_ALIGNMENT = 64
_WORD, _WORD_BYTES = "int64", 8
#: Words in the table's head: the number of parts, and the checksum of the table.
_HEAD = 2
#: Words for each part: its reducer, its start and end, and its checksum, which is unused in memory.
_ROWS = 4


class PartsSource(Protocol):
    """Bytes for partial reads."""

    def read(self, start: int, stop: int) -> memoryview:
        """Return some of the bytes."""

    def reject(self, reason: str) -> Exception:
        """Return the exception for damaged bytes."""


class MapOutput:
    """The parts of several reducers."""

    __slots__ = ("_source", "_table", "data")

    def __init__(self, data: Bytes | None, source: PartsSource | None = None) -> None:
        self.data = data
        self._source: PartsSource = source if data is None and source is not None else _PartsInMemory(data)
        self._table: np.ndarray[Any, np.dtype[np.int64]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return MapOutput, (self.data if self.data is not None else self._all(),)

    def __repr__(self) -> str:
        return f"<MapOutput of {self._rows().shape[1]} parts>"

    def __sizeof__(self) -> int:
        return 0 if self.data is None else self.data.nbytes

    @property
    def reducers(self) -> list[int]:
        """The reducers with a part."""
        return [int(reducer) for reducer in self._rows()[0]]

    def part(self, reducer: int) -> list[Any]:
        """Return a reducer's part: a list of one value, or an empty one."""
        rows = self._rows()
        place = int(np.searchsorted(rows[0], reducer))
        if place == rows.shape[1] or rows[0, place] != reducer:
            return []
        return [_unpack_part(self._part_bytes(place))]

    def select(self, reducers: Collection[int]) -> MapOutput:
        """Return a separate map output with the parts of some reducers."""
        wanted = set(reducers)
        places = [place for place, reducer in enumerate(self.reducers) if reducer in wanted]
        parts = [(self._rows()[0, place], self._part_bytes(place)) for place in places]
        writer = _Writer(len(parts), sum([part.nbytes + _ALIGNMENT for _, part in parts]))
        for reducer, part in parts:
            writer.copy(int(reducer), part)
        return MapOutput(writer.finish())

    def _part_bytes(self, place: int) -> memoryview:
        reducer, start, stop, checksum = map(int, self._rows()[:, place])
        part = self._source.read(start, stop)
        if self.data is None and zlib.crc32(part) != checksum:
            raise self._source.reject(f"the checksum of the part for reducer {reducer} is another")
        return part

    def _rows(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        if self._table is None:
            word = _WORD_BYTES
            count, checksum = np.frombuffer(self._source.read(0, _HEAD * word), _WORD)
            table = self._source.read(_HEAD * word, (_HEAD + _ROWS * int(count)) * word)
            if self.data is None and zlib.crc32(table) != checksum:
                raise self._source.reject("the checksum of its table is another")
            self._table = np.frombuffer(table, _WORD).reshape(_ROWS, int(count))
        return self._table

    def _all(self) -> Bytes:
        rows = self._rows()
        for place in range(rows.shape[1]):
            # Checks the part's checksum, as reads from memory will not.
            self._part_bytes(place)
        end = int(rows[2].max(initial=(_HEAD + rows.size) * _WORD_BYTES))
        return np.frombuffer(self._source.read(0, end), np.uint8)


def pack(parts: Iterable[tuple[int, Any]], count: int, expected_bytes: int = 0) -> MapOutput:
    """Return a map output."""
    # Each value is pickled before the next one is taken.
    writer = _Writer(count, expected_bytes)
    for reducer, value in parts:
        writer.add(reducer, value)
    return MapOutput(writer.finish())


def with_checksums(data: Bytes) -> list[Bytes]:
    """Return a map output with checksums, in pieces, for writing to disk."""
    rows = MapOutput(data)._rows().copy()
    for row in rows.T:
        row[3] = zlib.crc32(data[row[1] : row[2]].data)
    head = np.array([rows.shape[1], zlib.crc32(rows.data)], _WORD)
    start = np.concatenate([head, rows.ravel()]).view(np.uint8)
    return [start, data[start.size :]]


class _Writer:
    """Writes parts one after another to growing memory, behind a table of them."""

    def __init__(self, count: int, expected_bytes: int) -> None:
        table_end = (_HEAD + _ROWS * count) * _WORD_BYTES
        # An array that NumPy builds in an arena need not be copied there.
        self._data: Bytes = np.empty(table_end + expected_bytes, np.uint8)
        self._data[:table_end] = 0
        self._end = table_end
        self._table: list[tuple[int, int, int, int]] = []

    def add(self, reducer: int, value: Any) -> None:
        """Add the part of a reducer."""
        buffers: list[memoryview] = []

        def out_of_band(buffer: pickle.PickleBuffer) -> bool:
            try:
                raw = buffer.raw()
            except BufferError:
                return True
            if raw.nbytes < _ALIGNMENT:
                return True
            buffers.append(raw)
            return False

        pieces = [memoryview(dumps(value, out_of_band)), *buffers]
        sizes = np.array([len(pieces), *[piece.nbytes for piece in pieces]], _WORD)
        start = self._aligned(self._end)
        self._end = start
        for piece in (sizes.data.cast("B"), *pieces):
            self._write(piece)
        self._table.append((reducer, start, self._end, 0))

    def copy(self, reducer: int, part: memoryview) -> None:
        """Add the part of a reducer in the form of another map output."""
        start = self._aligned(self._end)
        self._write(part)
        self._table.append((reducer, start, self._end, 0))

    @staticmethod
    def _aligned(position: int) -> int:
        return -(-position // _ALIGNMENT) * _ALIGNMENT

    def _write(self, piece: memoryview) -> None:
        start = self._aligned(self._end)
        end = start + piece.nbytes
        if end > self._data.size:
            self._resize(max(end, self._data.size * 3 // 2))
        self._data[self._end : start] = 0
        self._data[start:end] = np.frombuffer(piece, np.uint8)
        self._end = end

    def _resize(self, size_bytes: int) -> None:
        self._data.resize(size_bytes, refcheck=False)

    def finish(self) -> Bytes:
        """Return the used memory."""
        self._resize(self._end)
        # Unused rows stay empty behind the table.
        table = np.array(self._table, _WORD).reshape(-1, _ROWS).T.ravel()
        head = np.concatenate([np.array([len(self._table), 0], _WORD), table]).view(np.uint8)
        self._data[: head.size] = head
        return self._data


def _unpack_part(part: memoryview) -> Any:
    """Return the value of a part; its buffers are not copied."""
    word = _WORD_BYTES
    count = int(np.frombuffer(part[:word], _WORD)[0])
    sizes = np.frombuffer(part[word : (1 + count) * word], _WORD)
    position = (1 + count) * word
    pieces = []
    for size in map(int, sizes):
        position = _Writer._aligned(position)
        pieces.append(part[position : position + size])
        position += size
    return loads(pieces[0], buffers=pieces[1:])


class _PartsInMemory:
    """Bytes in memory."""

    def __init__(self, data: Bytes | None) -> None:
        assert data is not None
        self._view = data.data

    def read(self, start: int, stop: int) -> memoryview:
        return self._view[start:stop]

    def reject(self, reason: str) -> Exception:
        return pickle.UnpicklingError(f"a map output is not what was written: {reason}")
