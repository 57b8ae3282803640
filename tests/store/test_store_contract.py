"""What stores there are keep the contract: plain arenas, small ones, results built in them, compressed files."""

from __future__ import annotations

import gc
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dask_mars.protocol.object_ref import spilled_file
from dask_mars.store.arena import Arena, create
from dask_mars.store.codec import CODECS, Codec
from dask_mars.store.in_place_sealing import make_heap
from dask_mars.store.spill_files import SpillFiles
from dask_mars.store.store import Store
from tests.store.store_contract import StoreTests


def two_stores(
    capacity_bytes: int, inline_bytes: int = 1 << 12, in_place: bool = False
) -> Iterator[tuple[Store, Store]]:
    descriptors = [create(f"test-{number}", capacity_bytes) for number in range(2)]
    arenas = [[Arena(descriptor, capacity_bytes) for descriptor in descriptors] for _ in range(2)]
    heap = make_heap(arenas[0][0], [], 1 << 12) if in_place else None
    made = Store(arenas[0], 0, inline_bytes=inline_bytes, heap=heap)
    read = Store(arenas[1], 1, inline_bytes=inline_bytes)
    yield made, read
    if in_place:
        from dask_mars.store import _arena

        _arena.uninstall()
        # The heap keeps its arena mapped, and pytest the stores.
        made.__dict__.clear()
        del heap
        gc.collect()
    for arena in [arena for both in arenas for arena in both]:
        arena.close()
    for descriptor in descriptors:
        os.close(descriptor)


class TestPlainArenas(StoreTests):
    @pytest.fixture
    def stores(self) -> Iterator[tuple[Store, Store]]:
        yield from two_stores(1 << 26)


class TestSmallArenas(StoreTests):
    @pytest.fixture
    def stores(self) -> Iterator[tuple[Store, Store]]:
        yield from two_stores(1 << 22, inline_bytes=0)


class TestResultsBuiltInPlace(StoreTests):
    @pytest.fixture
    def stores(self) -> Iterator[tuple[Store, Store]]:
        pytest.importorskip("dask_mars.store._arena")
        yield from two_stores(1 << 26, in_place=True)


class TestCompressedFiles(StoreTests):
    @pytest.fixture
    def stores(self) -> Iterator[tuple[Store, Store]]:
        yield from two_stores(1 << 26)

    @pytest.fixture
    def files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SpillFiles:
        codec = Codec(
            "zlib", lambda data: zlib.compress(data, 1), lambda data, size: zlib.decompress(data, bufsize=size)
        )
        monkeypatch.setitem(CODECS, "zlib", lambda: codec)
        files = SpillFiles(tmp_path, codec)
        # On such a slow disk compressing always pays.
        files.disk_bytes_per_s = 1.0
        return files

    def test_they_are_compressed(self, stores: tuple[Store, Store], files: SpillFiles) -> None:
        spilled = stores[0].spill(stores[0].seal(np.zeros(1 << 18)), "value", files)
        assert spilled_file(spilled).compression == "zlib"
        assert spilled_file(spilled).size_bytes < 1 << 16
