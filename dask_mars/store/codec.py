"""Compression and checksums of spilled values, with the installed libraries."""

from __future__ import annotations

import importlib
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

#: Bytes of one compressed block.
BLOCK_BYTES = 1 << 20
#: Smallest value that may be compressed, in bytes: writing less is faster than the decision.
_COMPRESSED_BYTES = 1 << 17
_SAMPLE_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Codec:
    """A compression method."""

    #: Name in the reference to a file.
    name: str
    compress: Callable[[memoryview], bytes]
    #: Decompresses bytes, given the size of the result.
    decompress: Callable[[memoryview, int], bytes]


def lz4_codec() -> Codec | None:
    """Return lz4, if it is installed. The standard library has no codec faster than a disk."""
    try:
        block: Any = importlib.import_module("lz4.block")
    except ImportError:
        return None
    return Codec(
        "lz4",
        lambda data: block.compress(data, store_size=False),
        lambda data, size: block.decompress(data, uncompressed_size=size),
    )


#: Factories of codecs by name; they return None for one that is not installed.
CODECS: dict[str, Callable[[], Codec | None]] = {"lz4": lz4_codec}


def compression_blocks(views: Iterable[memoryview]) -> Iterator[memoryview]:
    """Cut memory into the blocks that are compressed separately."""
    for view in views:
        for start in range(0, len(view), BLOCK_BYTES):
            yield view[start : start + BLOCK_BYTES]


def compressed(views: Iterable[memoryview], codec: Codec, sizes: list[int]) -> Iterator[memoryview]:
    """Compress block by block, and append the size of each to `sizes`."""
    for block in compression_blocks(views):
        data = codec.compress(block)
        sizes.append(len(data))
        yield memoryview(data)


def worthwhile(views: list[memoryview], codec: Codec, disk_bytes_per_s: float) -> bool:
    """Return whether compression would save time, by three small samples of the largest buffer."""
    if sum(map(len, views)) < _COMPRESSED_BYTES:
        return False
    largest = max(views, key=len)
    last = max(len(largest) - _SAMPLE_BYTES, 0)
    samples = [largest[start : start + _SAMPLE_BYTES] for start in (0, last // 2, last)]
    started_s = time.perf_counter()
    packed_bytes = sum(len(codec.compress(sample)) for sample in samples)
    spent_s = time.perf_counter() - started_s
    return spent_s < (sum(map(len, samples)) - packed_bytes) / disk_bytes_per_s


class Checksum(Protocol):
    """A checksum that is updated piece by piece."""

    def update(self, data: memoryview, /) -> object:
        """Add some bytes."""

    def intdigest(self) -> int:
        """Return the checksum of all bytes so far."""


class _Crc32:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def update(self, data: memoryview) -> None:
        self.value = zlib.crc32(data, self.value)

    def intdigest(self) -> int:
        return self.value


def checksum_kind() -> Callable[[], Checksum]:
    """Return the fastest available kind: xxhash if it is installed, else zlib's."""
    try:
        xxhash: Any = importlib.import_module("xxhash")
    except ImportError:
        return _Crc32
    checksum: Callable[[], Checksum] = xxhash.xxh3_64
    return checksum
