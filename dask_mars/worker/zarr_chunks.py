"""Chunks of zarr arrays, read and written by the thread that computes.

Zarr 3 reads and writes by an event loop in a thread of its own, and compresses in further threads: 0.4 ms for each
chunk that is read, 1 ms for one that is written, and two copies. This module reads and writes plain chunks without
it; the same library compresses them, and decompresses them right into the result. Zarr does everything else: other
stores, sharded or filtered arrays, missing and empty chunks, parts of chunks, and all unexpected data, so that
values and errors are always zarr's.
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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dask_mars.files import replace_file
from dask_mars.graph.callables import attribute, package_of

#: Decompresses bytes into a contiguous array; returns whether they filled it exactly.
Decode = Callable[[Any, Any], bool]
#: Compresses a contiguous array.
Encode = Callable[[Any], Any]

#: Functions of Dask that read or write an array, with the position of the array among their arguments.
_ARGUMENTS = {"getter": 0, "getter_inline": 0, "getter_nofancy": 0, "load_store_chunk": 1}
_MODULE = "dask.array.core"
#: Maximum number of sources that a getter remembers, and of wrappers around a zarr array.
_SOURCES, _DEPTH = 8, 16
#: Kinds of dtypes whose bytes are their values: numbers, booleans and times.
_PLAIN_KINDS = frozenset("biufcmM")
#: Grids of chunks of one shape, before zarr 3.4 and after.
_REGULAR_GRIDS = frozenset({"RegularChunkGrid", "RegularChunkGridMetadata"})
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def direct_zarr(function: Any) -> Any:
    """Return a function that reads or writes plain chunks of zarr arrays directly, or the function itself."""
    if attribute(function, "__module__") == _MODULE and function.__name__ in _ARGUMENTS:
        return _Direct(function, _ARGUMENTS[function.__name__])
    return function


class _Direct:
    """One of Dask's functions, with a `DirectArray` in place of a zarr array."""

    def __init__(self, function: Callable[..., Any], at: int) -> None:
        self._function = function
        self._at = at
        self.__name__ = function.__name__
        #: By id: the source, kept so that its id stays unique, and its replacement. Only zarr's arrays, as other
        #: sources may be chunks, which must not be kept.
        self._sources: dict[int, tuple[Any, Any]] = {}

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Read or write as the function does."""
        at = self._at
        if len(arguments) <= at:
            return self._function(*arguments, **named)
        source = arguments[at]
        known = self._sources.get(id(source))
        found = direct(source) if known is None else known[1]
        if known is None and (found is not source or _package(source) == "zarr"):
            if len(self._sources) >= _SOURCES:
                self._sources.clear()
            self._sources[id(source)] = (source, found)
        result = self._function(*arguments[:at], found, *arguments[at + 1 :], **named)
        # With `return_stored` that is the array itself.
        return source if result is found else result


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
    """A zarr array whose plain chunks are read and written without zarr; everything else is that array's."""

    def __init__(self, array: Any, layout: _Layout) -> None:
        self._array = array
        self._layout: _Layout | None = layout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)

    def __getitem__(self, index: Any) -> Any:
        """Return a part of the array, as zarr does."""
        layout = self._present_layout()
        found = None if layout is None else layout.read(index)
        return self._array[index] if found is None else found

    def __setitem__(self, index: Any, value: Any) -> None:
        """Set a part of the array, as zarr does."""
        layout = self._present_layout()
        if layout is None or not layout.write(index, value, self._array.async_array.config):
            self._array[index] = value

    def _present_layout(self) -> _Layout | None:
        layout = self._layout
        if layout is not None and layout.metadata is not self._array.metadata:
            # The array has been resized meanwhile.
            layout = self._layout = _layout_of(self._array)
        return layout


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
    #: Compresses a chunk; None if chunks cannot be written directly.
    encode: Encode | None

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
        for coordinates in self._coordinates(bounds):
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

    def _coordinates(self, bounds: list[tuple[int, int]]) -> Iterator[tuple[int, ...]]:
        """Return the coordinates of the chunks that a part of the array touches."""
        sizes = zip(bounds, self.chunks, strict=True)
        return itertools.product(*[range(start // size, -(-stop // size)) for (start, stop), size in sizes])

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

    def write(self, index: Any, value: Any, config: Any) -> bool:
        """Write whole chunks of the array; return False if zarr has to."""
        bounds = self._bounds(index)
        if bounds is None or self.encode is None or type(value) is not np.ndarray or value.dtype != self.dtype:
            return False
        if value.shape != tuple([stop - start for start, stop in bounds]) or not self._are_whole(bounds):
            return False
        parts = [(at, value[self._overlap(at, bounds)[0]]) for at in self._coordinates(bounds)]
        # Zarr does not store such chunks, and removes their files.
        if not config.write_empty_chunks and any(_is_filled(part, self.metadata.fill_value) for _, part in parts):
            return False
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            for at, part in parts:
                _replace(Path(self.folder, self.name(at)), self.encode(np.ascontiguousarray(part)))
            return True
        return False

    def _are_whole(self, bounds: list[tuple[int, int]]) -> bool:
        return all(
            not (start % size or stop % size) for (start, stop), size in zip(bounds, self.chunks, strict=True)
        )

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


def _replace(path: Path, data: Any) -> None:
    """Replace a file atomically, as zarr does."""
    try:
        replace_file(path, data)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)


def _is_filled(part: np.ndarray[Any, Any], fill_value: Any) -> bool:
    """Return whether a chunk has nothing but the fill value."""
    buffer: Any = import_module("zarr.core.buffer")
    first, fill = part.flat[0], np.zeros((), part.dtype)[()] if fill_value is None else fill_value
    # Most chunks differ in their first number already; NaN and NaT are unequal to themselves.
    if first != fill and first == first:
        return False
    return bool(buffer.cpu.NDBuffer.from_numpy_array(part).all_equal(fill))


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
    found = _codec_of_2(metadata) if metadata.zarr_format == 2 else _codec_of_3(metadata)
    if found is None:
        return None
    folder = f"{root}/{array.store_path.path}".rstrip("/")
    shape, chunks = tuple(map(int, array.shape)), tuple(map(int, array.chunks))
    is_written = type(array.store) is zarr.storage.LocalStore and not array.read_only
    return _Layout(
        metadata,
        folder,
        metadata.encode_chunk_key,
        shape,
        chunks,
        dtype,
        found.decode,
        found.encode if is_written else None,
    )


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


class _Codec(NamedTuple):
    """Decompresses chunks, or is None if that is not needed; and compresses them."""

    decode: Decode | None
    encode: Encode


def _codec_of_3(metadata: Any) -> _Codec | None:
    """Return the compression of chunks in format 3, None if they are not plain."""
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
        return _Codec(None, _as_bytes)
    if len(rest) > 1:
        return None
    kind = type(rest[0])
    if kind is codecs.ZstdCodec:
        return _Codec(_zstd(), rest[0]._zstd_codec.encode)
    if kind is codecs.BloscCodec:
        return _Codec(_blosc(), rest[0]._blosc_codec.encode)
    if kind is codecs.GzipCodec:
        return _Codec(_by(_numcodecs().GZip()), rest[0]._gzip_codec.encode)
    return None


def _codec_of_2(metadata: Any) -> _Codec | None:
    """Return the compression of chunks in format 2, in the same form."""
    numcodecs = _numcodecs()
    if metadata.filters or metadata.order != "C":
        return None
    compressor = metadata.compressor
    if compressor is None:
        return _Codec(None, _as_bytes)
    if type(compressor) is numcodecs.Zstd:
        return _Codec(_zstd(), compressor.encode)
    if type(compressor) is numcodecs.Blosc:
        return _Codec(_blosc(), compressor.encode)
    if type(compressor) in (numcodecs.GZip, numcodecs.Zlib, numcodecs.LZ4):
        return _Codec(_by(compressor), compressor.encode)
    return None


def _as_bytes(array: Any) -> Any:
    # Times have no buffer of their own.
    return array.reshape(-1).view(np.uint8)


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
