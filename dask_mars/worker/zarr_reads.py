"""Chunks of zarr arrays, read and decompressed by the thread that computes.

Zarr 3 reads by an event loop in a thread of its own, and decompresses in further threads: 0.4 ms for each chunk,
and two copies. This module reads plain chunks directly, and the same library decompresses them right into the
result. Zarr reads everything else: other stores, sharded or filtered arrays, missing chunks, and all unexpected
data, so that values and errors are always zarr's.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from dask_mars.graph.callables import attribute, package_of

#: Decompresses bytes into a contiguous array; returns whether they filled it exactly.
Decode = Callable[[Any, Any], bool]

_GETTERS = frozenset({"getter", "getter_inline", "getter_nofancy"})
_GETTERS_MODULE = "dask.array.core"
#: Maximum number of sources that a getter remembers, and of wrappers around a zarr array.
_SOURCES, _DEPTH = 8, 16
#: Kinds of dtypes whose bytes are their values: numbers, booleans and times.
_PLAIN_KINDS = frozenset("biufcmM")
#: Grids of chunks of one shape, before zarr 3.4 and after.
_REGULAR_GRIDS = frozenset({"RegularChunkGrid", "RegularChunkGridMetadata"})
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def direct_reads(function: Any) -> Any:
    """Return a getter that reads plain chunks of zarr arrays directly, or the function itself."""
    if attribute(function, "__module__") == _GETTERS_MODULE and function.__name__ in _GETTERS:
        return _DirectGetter(function)
    return function


class _DirectGetter:
    """One of Dask's getters, with a direct reader in place of a zarr array."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__name__ = function.__name__
        #: By id: the source, kept so that its id stays unique, and its replacement. Only zarr's arrays, as other
        #: sources may be chunks, which must not be kept.
        self._sources: dict[int, tuple[Any, Any]] = {}

    def __call__(self, source: Any, *arguments: Any, **named: Any) -> Any:
        """Read as the getter does."""
        known = self._sources.get(id(source))
        if known is not None:
            return self._function(known[1], *arguments, **named)
        found = direct(source)
        if found is not source or _package(source) == "zarr":
            if len(self._sources) >= _SOURCES:
                self._sources.clear()
            self._sources[id(source)] = (source, found)
        return self._function(found, *arguments, **named)


# -- arrays ---------------------------------------------------------------------------------------------------


def direct(source: Any) -> Any:
    """Return a direct reader for a zarr array or Xarray's wrappers around one; otherwise the source itself."""
    if _package(source) == "zarr":
        layout = _layout_of(source)
        return source if layout is None else DirectArray(source, layout)
    if not _is_xarrays(source):
        return source
    around: list[Any] = []
    inner = source
    while _is_xarrays(inner) and len(around) < _DEPTH:
        around.append(inner)
        if type(inner).__name__ == "MemoryCachedArray":
            # It changes when it is read.
            return source
        inner = getattr(inner, "_array" if type(inner).__name__ == "ZarrArrayWrapper" else "array", None)
    layout = _layout_of(inner) if type(around[-1]).__name__ == "ZarrArrayWrapper" else None
    if layout is None:
        return source
    inner = DirectArray(inner, layout)
    for outer in reversed(around):
        made = copy.copy(outer)
        setattr(made, "_array" if type(made).__name__ == "ZarrArrayWrapper" else "array", inner)
        inner = made
    return inner


def _is_xarrays(value: Any) -> bool:
    return _package(value) == "xarray"


def _package(value: Any) -> str:
    return package_of(type(value))


class DirectArray:
    """A zarr array whose plain chunks are read without zarr; everything else is that array's."""

    def __init__(self, array: Any, layout: _Layout) -> None:
        self._array = array
        self._layout: _Layout | None = layout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)

    def __getitem__(self, index: Any) -> Any:
        """Return a part of the array, as zarr does."""
        array, layout = self._array, self._layout
        if layout is not None and layout.metadata is not array.metadata:
            # The array has been resized meanwhile.
            layout = self._layout = _layout_of(array)
        found = None if layout is None else layout.read(index)
        return array[index] if found is None else found


class _Layout(NamedTuple):
    """Location and format of an array's chunks."""

    #: Zarr's metadata, the source of the layout.
    metadata: Any
    #: Directory of the chunks' files.
    folder: str
    #: Returns the name of a chunk's file, given its coordinates.
    name: Callable[[tuple[int, ...]], str]
    #: Shapes of the array and of all chunks. Files of chunks at the edges are complete, too.
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    #: Dtype of the items.
    dtype: np.dtype[Any]
    #: Decompresses a chunk; None for uncompressed chunks.
    decode: Decode | None

    def read(self, index: Any) -> Any:
        """Return the part of the array at an index, or None if zarr has to read it."""
        bounds = self._bounds(index)
        if bounds is None:
            return None
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            return self._read(bounds)
        return None

    def _bounds(self, index: Any) -> list[tuple[int, int]] | None:
        """Return the bounds of a part along each axis, None if its index is more than plain slices."""
        if type(index) is not tuple or len(index) != len(self.shape):
            return None
        bounds = []
        for along, length in zip(index, self.shape, strict=True):
            if type(along) is not slice:
                return None
            start, stop, step = along.indices(length)
            if step != 1 or stop <= start:
                return None
            bounds.append((start, stop))
        return bounds

    def _read(self, bounds: list[tuple[int, int]]) -> Any:
        result = np.empty([stop - start for start, stop in bounds], self.dtype)
        scratch = None
        along = [
            range(start // size, -(-stop // size)) for (start, stop), size in zip(bounds, self.chunks, strict=True)
        ]
        for coordinates in itertools.product(*along):
            into, part = self._overlap(coordinates, bounds)
            target = result[into]
            path = f"{self.folder}/{self.name(coordinates)}"
            if target.shape == self.chunks and target.flags.c_contiguous:
                if not self._load(path, target):
                    return None
                continue
            if scratch is None:
                scratch = np.empty(self.chunks, self.dtype)
            if not self._load(path, scratch):
                return None
            target[...] = scratch[part]
        return result

    def _overlap(
        self, coordinates: tuple[int, ...], bounds: list[tuple[int, int]]
    ) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Return the position of a chunk's part in the result, and its position in the chunk."""
        into, part = [], []
        for at, (start, stop), size in zip(coordinates, bounds, self.chunks, strict=True):
            first, last = max(start, at * size), min(stop, (at + 1) * size)
            into.append(slice(first - start, last - start))
            part.append(slice(first - at * size, last - at * size))
        return tuple(into), tuple(part)

    def _load(self, path: str, target: np.ndarray[Any, Any]) -> bool:
        """Fill an array with a chunk; return whether that had the right size."""
        with _opened(path) as (descriptor, size_bytes):
            if self.decode is None:
                return size_bytes == target.nbytes and _read_all(descriptor, target)
            # NumPy's allocator keeps pages warm.
            encoded = np.empty(size_bytes, np.uint8)
            return _read_all(descriptor, encoded) and self.decode(encoded, target)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[int, int]]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor, os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, target: np.ndarray[Any, Any]) -> bool:
    view = target.reshape(-1).view(np.uint8).data
    while len(view):
        count = os.readv(descriptor, [view])
        if not count:
            return False
        view = view[count:]
    return True


# -- layouts --------------------------------------------------------------------------------------------------


def _layout_of(array: Any) -> _Layout | None:
    """Return the storage of a zarr array, None if that is not known to be plain."""
    try:
        return _plain_layout(array)
    except (AttributeError, ImportError, KeyError, NotImplementedError, TypeError, ValueError):
        # Another version of zarr.
        return None


def _plain_layout(array: Any) -> _Layout | None:
    zarr: Any = import_module("zarr")
    buffer: Any = import_module("zarr.core.buffer")
    pipeline: Any = import_module("zarr.core.codec_pipeline")
    if type(array) is not zarr.Array:
        return None
    root = _root(array.store)
    if root is None:
        return None
    metadata, dtype = array.metadata, np.dtype(array.dtype)
    is_plain = (
        sys.byteorder == "little"
        and array.order == "C"
        and dtype.kind in _PLAIN_KINDS
        and dtype.isnative
        and math.prod(array.shape) > 0
        and type(array.async_array.codec_pipeline) is pipeline.BatchedCodecPipeline
        and buffer.default_buffer_prototype() == buffer.cpu.buffer_prototype
    )
    if not (is_plain and array.shape):
        return None
    found = _decode_of_2(metadata) if metadata.zarr_format == 2 else _decode_of_3(metadata)
    if found is None:
        return None
    folder = f"{root}/{array.store_path.path}".rstrip("/")
    shape, chunks = tuple(map(int, array.shape)), tuple(map(int, array.chunks))
    return _Layout(metadata, folder, metadata.encode_chunk_key, shape, chunks, dtype, *found)


def _root(store: Any) -> str | None:
    """Return the directory of a local store, None for other stores."""
    storage: Any = import_module("zarr.storage")
    if type(store) is storage.LocalStore:
        return str(store.root)
    if type(store) is not storage.FsspecStore:
        return None
    # Dask opens paths by this store.
    wrapper: Any = import_module("fsspec.implementations.asyn_wrapper")
    local: Any = import_module("fsspec.implementations.local")
    is_local = type(store.fs) is wrapper.AsyncFileSystemWrapper and type(store.fs.sync_fs) is local.LocalFileSystem
    return str(store.path) if is_local and str(store.path).startswith("/") else None


def _decode_of_3(metadata: Any) -> tuple[Decode | None] | None:
    """Return the decompressor of chunks in format 3, in a tuple, or None if they are not plain."""
    codecs: Any = import_module("zarr.codecs")
    if type(metadata.chunk_grid).__name__ not in _REGULAR_GRIDS:
        return None
    first, *rest = metadata.codecs
    if type(first) is not codecs.BytesCodec:
        return None
    # An enumeration before zarr 3.4, a plain name after; None for single bytes.
    if getattr(first.endian, "value", first.endian) not in ("little", None):
        return None
    if not rest:
        return (None,)
    decodes: dict[type, Decode] = {
        codecs.ZstdCodec: _zstd(),
        codecs.BloscCodec: _blosc(),
        codecs.GzipCodec: _by(_numcodecs().GZip()),
    }
    decode = decodes.get(type(rest[0]))
    return (decode,) if decode is not None and len(rest) == 1 else None


def _decode_of_2(metadata: Any) -> tuple[Decode | None] | None:
    """Return the decompressor of chunks in format 2, in the same form."""
    numcodecs = _numcodecs()
    if metadata.filters or metadata.order != "C":
        return None
    compressor = metadata.compressor
    if compressor is None:
        return (None,)
    if type(compressor) is numcodecs.Zstd:
        return (_zstd(),)
    if type(compressor) is numcodecs.Blosc:
        return (_blosc(),)
    if type(compressor) in (numcodecs.GZip, numcodecs.Zlib, numcodecs.LZ4):
        return (_by(compressor),)
    return None


def _numcodecs() -> Any:
    return import_module("numcodecs")


def _zstd() -> Decode:
    zstd: Any = import_module("numcodecs.zstd")

    def decode(encoded: Any, target: Any) -> bool:
        if _zstd_content_bytes(encoded) != target.nbytes:
            return _take(zstd.decompress(encoded), target)
        zstd.decompress(encoded, target)
        return True

    return decode


def _blosc() -> Decode:
    blosc: Any = import_module("numcodecs.blosc")

    def decode(encoded: Any, target: Any) -> bool:
        # The header has the sizes of content and chunk (README_CHUNK_FORMAT of c-blosc).
        header = bytes(encoded[:16])
        sizes = int.from_bytes(header[4:8], "little"), int.from_bytes(header[12:], "little")
        if sizes != (target.nbytes, len(encoded)):
            return False
        blosc.decompress(encoded, target)
        return True

    return decode


def _by(codec: Any) -> Decode:
    return lambda encoded, target: _take(codec.decode(encoded), target)


def _take(decoded: Any, target: Any) -> bool:
    data = np.frombuffer(decoded, np.uint8)
    if data.nbytes != target.nbytes:
        return False
    target.reshape(-1).view(np.uint8)[:] = data
    return True


def _zstd_content_bytes(encoded: Any) -> int | None:
    """Return the content size in the header of a frame (RFC 8878, 3.1.1.1), None if it has none."""
    header = bytes(encoded[:18])
    if len(header) < 6 or not header.startswith(_ZSTD_MAGIC):
        return None
    descriptor = header[4]
    is_single = bool(descriptor & 0x20)
    flag = descriptor >> 6
    if not (flag or is_single):
        return None
    at = 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    size = (1, 2, 4, 8)[flag]
    return int.from_bytes(header[at : at + size], "little") + (256 if flag == 1 else 0)
