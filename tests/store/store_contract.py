"""The contract of a store, as a test class."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dask_mars.errors import SpilledValueLost, StoreFull
from dask_mars.protocol.object_ref import ObjectRef, blocks_of, is_spilled, is_stored, size_of
from dask_mars.store.reader import still_used
from dask_mars.store.spill_files import SpillFiles
from dask_mars.store.store import Store

_LENGTH = 50_000
_VALUES: dict[str, Any] = {
    "none": None,
    "number": 3,
    "text": "word " * 100_000,
    "bytes": b"\0" * _LENGTH,
    "NumPy's scalar": np.float32(0.5),
    "moment": np.datetime64("2020-01-01", "s"),
    "empty": np.empty((0, 3)),
    "no dimensions": np.array(1.5),
    "small": np.arange(4, dtype="i2"),
    "array": np.arange(_LENGTH, dtype="f8"),
    "big-endian": np.arange(_LENGTH, dtype=">i4"),
    "Fortran's order": np.asfortranarray(np.arange(_LENGTH, dtype="f8").reshape(100, -1)),
    "backwards": np.arange(_LENGTH)[::-1],
    "every third": np.arange(_LENGTH)[::3],
    "records": np.zeros(_LENGTH, dtype=[("x", "f8"), ("y", "S3")]),
    "objects": np.array(["a", None, 3] * 1000, dtype=object),
    "masked": np.ma.masked_greater(np.arange(_LENGTH // 10, dtype="f8"), 100),
    "container": {"a": [np.arange(_LENGTH), np.ones(3)], "b": ("text", None)},
}
#: Values that are too large for a message.
_LARGE = ("text", "array", "Fortran's order", "records", "masked", "container")


def _same(found: Any, expected: Any) -> bool:
    if type(found) is not type(expected):
        return False
    if isinstance(expected, np.ndarray):
        alike: bool = found.dtype == expected.dtype and found.shape == expected.shape
        if type(expected) is np.ndarray and not expected.dtype.hasobject:
            return alike and found.tobytes() == expected.tobytes()
        return alike and pickle.dumps(found.tolist()) == pickle.dumps(expected.tolist())
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(map(_same, found.values(), expected.values()))
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(_same, found, expected))
    return bool(found == expected)


def _arrays(value: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        return [array for item in value.values() for array in _arrays(item)]
    return [array for item in value for array in _arrays(item)] if isinstance(value, list | tuple) else []


class StoreTests:
    """The contract of `dask_mars.store.store.Store`."""

    # A derived class has a fixture ``stores``, which returns two stores of the same arenas as in two processes:
    # one that seals values and one that reads them. No arena may be larger than 64 MiB.

    @pytest.fixture
    def stores(self) -> tuple[Store, Store]:
        """Return the stores to test."""
        raise NotImplementedError("the fixture `stores` is for the derived class")

    @pytest.fixture
    def files(self, tmp_path: Path) -> SpillFiles:
        """Return the directory for spilled values."""
        return SpillFiles(tmp_path)

    @staticmethod
    def _sealed(store: Store, value: Any) -> ObjectRef:
        """Seal as a worker does, and send the reference through a message."""
        ref = store.seal(value)
        sent: ObjectRef = pickle.loads(pickle.dumps(ref, protocol=5))
        return sent

    @staticmethod
    def _release(store: Store, ref: ObjectRef) -> None:
        for _, offset, _ in blocks_of(ref):
            store.release(offset)

    # -- values -----------------------------------------------------------------------------------------------

    def test_whoever_reads_gets_what_was_sealed(self, stores: tuple[Store, Store]) -> None:
        made, read = stores
        for name, value in _VALUES.items():
            ref = self._sealed(made, value)
            for found in (made.load(ref), read.load(ref), read.load_copy(ref)):
                assert _same(found, value), name
            if name in _LARGE:
                # It does not travel in the message.
                assert is_stored(ref), name
                assert blocks_of(ref), name
                assert len(pickle.dumps(ref)) < 10_000 < size_of(ref), name
            del found
            self._release(made, ref)

    def test_what_was_sealed_does_not_change(self, stores: tuple[Store, Store]) -> None:
        made, read = stores
        for name in ("array", "container"):
            ref = self._sealed(made, _VALUES[name])
            large = [array for array in _arrays(read.load(ref)) if array.size == _LENGTH]
            assert large
            assert not any(array.flags.writeable for array in large)
            for copy in _arrays(read.load_copy(ref)):
                assert copy.flags.writeable
                copy[:] = 7
            assert _same(read.load(ref), _VALUES[name])

    def test_readers_need_no_memory_of_their_own(self, stores: tuple[Store, Store]) -> None:
        made, read = stores
        ref = self._sealed(made, _VALUES["array"])
        first, second = read.load(ref), read.load(ref)
        assert np.shares_memory(first, second)

    def test_views_of_inputs_are_sealed_as_references(self, stores: tuple[Store, Store]) -> None:
        made, read = stores
        ref = self._sealed(made, _VALUES["array"])
        view = read.load(ref)[10:]
        sealed = read.seal(view, blocks_of(ref))
        assert blocks_of(sealed) == blocks_of(ref)
        assert _same(made.load(sealed), _VALUES["array"][10:])

    # -- memory -----------------------------------------------------------------------------------------------

    def test_what_still_refers_to_a_block_is_noticed(self, stores: tuple[Store, Store]) -> None:
        made, read = stores
        for name in _LARGE:
            ref = self._sealed(made, _VALUES[name])
            owners: list[Any] = []
            value = read.load(ref, owners)
            assert {block for block, _ in owners} == set(blocks_of(ref)), name
            if _arrays(value):
                assert still_used(owners), name
            del value
            assert not still_used(owners), name
            owners.clear()
            self._release(made, ref)

    def test_a_full_store_says_so_and_loses_nothing(self, stores: tuple[Store, Store]) -> None:
        made, _ = stores
        ref = self._sealed(made, _VALUES["array"])
        with pytest.raises(StoreFull, match="free"):
            made.seal(np.broadcast_to(np.zeros(1 << 10), (1 << 14, 1 << 10)).copy())
        assert _same(made.load(ref), _VALUES["array"])

    def test_released_memory_is_used_again(self, stores: tuple[Store, Store]) -> None:
        made, _ = stores
        for _ in range(40):
            ref = made.seal(np.ones(1 << 18))
            made.trim()
            self._release(made, ref)

    # -- disk -------------------------------------------------------------------------------------------------

    def test_values_go_to_disk_and_come_back(self, stores: tuple[Store, Store], files: SpillFiles) -> None:
        made, read = stores
        for name in _LARGE:
            ref = self._sealed(made, _VALUES[name])
            spilled = made.spill(ref, "value", files)
            assert is_spilled(spilled)
            assert not blocks_of(spilled)
            self._release(made, ref)
            assert _same(read.load(spilled), _VALUES[name]), name
            assert _same(read.load_copy(spilled), _VALUES[name]), name
            restored = read.restore(spilled)
            assert not is_spilled(restored)
            assert _same(made.load(restored), _VALUES[name]), name
            self._release(read, restored)

    def test_a_file_that_is_not_what_was_written(
        self, stores: tuple[Store, Store], files: SpillFiles, tmp_path: Path
    ) -> None:
        made, read = stores
        spilled = made.spill(self._sealed(made, _VALUES["array"]), "value", files)
        (path,) = [path for path in tmp_path.rglob("*") if path.is_file()]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(SpilledValueLost):
            read.load(spilled)
        with pytest.raises(SpilledValueLost):
            read.restore(spilled)
