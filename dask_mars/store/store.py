"""The shared store, as one process sees it: sealing values into its own arena, reading them from any.

A sealed value is known by its *object reference* (see `protocol.object_ref`). It may refer to blocks that other
values have made: a slice of a chunk is a view and not a copy, as it is under threads. Sealed values are immutable:
they are read through read-only arrays. What NumPy has built in the own arena is sealed where it lies.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dask_mars.errors import StoreFull
from dask_mars.graph.callables import package_of
from dask_mars.protocol.object_ref import (
    ARRAY,
    ARRAYS,
    HANDLE,
    MAP_OUTPUT,
    OBJECT,
    PICKLE,
    SMALL,
    SPILLED,
    VALUE,
    Block,
    ObjectRef,
    blocks_of,
    extents,
    pickle_of,
    relocated,
    size_of,
    spilled_file,
    value_from_blocks,
)
from dask_mars.protocol.pickling import dumps, dumps_plain, frozen, loads, may_open_files, plain_bytes
from dask_mars.store.allocator import Allocator
from dask_mars.store.arena import Arena, Bytes, create
from dask_mars.store.in_place_sealing import InPlaceSealing
from dask_mars.store.map_output import MapOutput, with_checksums
from dask_mars.store.spill_files import SpillFiles

if TYPE_CHECKING:
    from dask_mars.store._arena import Heap, Quota

_SCALARS = frozenset({type(None), bool, int, float, complex})
_ALIGNMENT = 64
# A view smaller than this share of its block is copied out, lest it keep a large block alive.
_VIEW_SHARE = 1 / 64


@dataclass(frozen=True, slots=True)
class _OutOfBand:
    """Bytes that are pickled as a buffer: they are copied once on their way, and not into a pickle first."""

    value: bytes | bytearray

    def __reduce__(self) -> tuple[type, tuple[pickle.PickleBuffer]]:
        return type(self.value), (pickle.PickleBuffer(self.value),)


class Store:
    """Seals and loads values for one process.

    Parameters
    ----------
    arenas : list of Arena
        All arenas of the engine, in their order.
    own : int
        Number of the arena that this process allocates from.
    live : iterable of (int, int)
        Blocks of the own arena that are in use already: what a process that died has left.
    inline_bytes : int
        Values up to this size travel in messages.
    heap : Heap, optional
        Hands out the blocks of the own arena to arrays too, and knows of `live`.
    quota : Quota, optional
        What this process's memory may grow by while an operand runs.
    """

    def __init__(
        self,
        arenas: list[Arena],
        own: int,
        live: Iterable[tuple[int, int]] = (),
        inline_bytes: int = 1 << 14,
        heap: Heap | None = None,
        quota: Quota | None = None,
    ) -> None:
        self.arenas = arenas
        self.own = own
        self.inline_bytes = inline_bytes
        self.allocator: Allocator | Heap = heap or Allocator(arenas[own].capacity_bytes, live)
        self._heap = heap
        self._quota = quota
        self._in_place_sealing = None if heap is None else InPlaceSealing(heap, arenas[own], own)
        #: Whether what has no room in the own arena gets one for itself.
        self._is_overflowing = False
        #: Classes of which an object could be unpickled, by their ids.
        self._loaded_kinds: dict[int, type] = {}
        #: Where arrays of the user's lie that the operand has been lent: from which address to which.
        self._borrowed: list[tuple[int, int]] = []
        #: Whether no block was released since `trim`. Arrays release theirs by themselves.
        self.is_trimmed = True

    # -- sealing ----------------------------------------------------------------------------------------------

    def seal(
        self, value: Any, inputs: Iterable[Block] = (), freeze: bool = False, in_place: bool = False
    ) -> ObjectRef:
        """Put a value where every process can read it.

        Parameters
        ----------
        value : object
            Anything that can be pickled.
        inputs : iterable of Block
            Blocks that the value may be a view of.
        freeze : bool, optional
            The value is the user's own: whoever loads it gets even small arrays read-only.
        in_place : bool, optional
            Leave arrays that were built in the own arena where they are. The caller lets go of the value and then
            calls `finish`.

        Returns
        -------
        ObjectRef
            Where it is. Allocations that it refers to are its second item, if it is in an arena.

        Raises
        ------
        StoreFull
            The arena has no free block that is large enough.
        Exception
            Whatever pickling the value raises.
        """
        kind = type(value)
        if kind in _SCALARS:
            return (VALUE, value)
        if kind is np.ndarray and not value.dtype.hasobject:
            if value.nbytes > self.inline_bytes:
                return self._seal_array(value, inputs, in_place)
            return self._seal_small(value, freeze)
        if kind is MapOutput and value.data is not None and value.data.nbytes > self.inline_bytes:
            return (MAP_OUTPUT, *self._seal_array(value.data, inputs, in_place)[1:])
        if (
            issubclass(kind, np.generic)
            and type(dtype := _portable(value.dtype)) is str
            and kind is value.dtype.type
        ):
            return (SMALL, dtype, None, "C", False, value.tobytes())
        return self._seal_object(value, inputs, freeze, in_place)

    def seal_on_disk(self, value: Any, inputs: Collection[Block], name: str, files: SpillFiles) -> ObjectRef:
        """Put a value for which the own arena has no room where every process can read it: into a file.

        Parameters
        ----------
        value, inputs
            As for `seal`.
        name : str
            Of the file.
        files : SpillFiles
            Where to write it.

        Raises
        ------
        SpillError
            The disk is full or fails.
        StoreFull
            The system has no memory, or no addresses, for a copy.
        """
        if type(value) not in (np.ndarray, MapOutput) or (type(value) is np.ndarray and value.dtype.hasobject):
            return self._write_object(value, name, files)
        count = len(self.arenas)
        self._is_overflowing = True
        try:
            ref = self.seal(value, inputs)
            if len(self.arenas) == count:
                # There is room after all.
                return ref
            return self.spill(ref, name, files)
        finally:
            self._is_overflowing = False
            del self.arenas[count:]

    def finish(self, ref: ObjectRef, inputs: Iterable[Block] = ()) -> ObjectRef:
        """Return the final reference to a value that was sealed with `in_place`, once the caller has let go of it.

        Where something still refers to its arrays, and could write into them, it gets copies of them.

        Parameters
        ----------
        ref : ObjectRef
            What `seal` returned.
        inputs : iterable of Block
            As `seal` got it.

        Raises
        ------
        StoreFull
            There is no room for a copy; what `seal` has put into the arena is gone then.
        """
        if self._in_place_sealing is None:
            return ref
        try:
            moved = self._in_place_sealing.finish()
        except StoreFull:
            for block in blocks_of(ref):
                arena, offset, _ = block
                if arena == self.own and block not in inputs:
                    self.allocator.free(offset)
            raise
        return relocated(ref, self.own, moved) if moved else ref

    def _seal_small(self, array: np.ndarray[Any, Any], freeze: bool) -> ObjectRef:
        writeable: bool | None = array.flags.writeable
        if freeze:
            writeable = None if writeable and array.size else writeable
        elif not writeable:
            array = self._thawed(array)
            writeable = array.flags.writeable
        if not array.flags.forc:
            # NumPy's pickles of other layouts lose the byte order.
            array = array.copy(order="K")
        dtype = _portable(array.dtype)
        if type(dtype) is str:
            # A tenth of the time that a pickle takes, and a fifth of the bytes.
            order: Literal["C", "F"] = "F" if array.flags.fnc else "C"
            return (SMALL, dtype, array.shape, order, writeable, array.tobytes(order=order))
        # A plain array has nothing in it that would need more than the plain pickle, which is twice as fast.
        return (PICKLE, pickle.dumps(frozen(array) if freeze else array, protocol=5))

    def _seal_array(self, array: np.ndarray[Any, Any], inputs: Iterable[Block], in_place: bool) -> ObjectRef:
        low, high = _byte_bounds(array)
        writeable = array.flags.writeable or self._sharing(low, high) is not None or self._is_borrowed(low, high)
        block = self._block_of(low, high, inputs)
        if block is not None:
            # Read-only here because it is shared; whoever gets a copy of it may write, unless items overlap.
            writeable = high - low >= array.nbytes
        elif in_place and self._in_place_sealing is not None:
            block = self._in_place_sealing.seal_block(low, high, array.nbytes)
        if block is not None:
            arena, offset, _ = block
            start = self.arenas[arena].address + offset
            position = int(array.__array_interface__["data"][0]) - start
            return (ARRAY, (block,), _portable(array.dtype), array.shape, array.strides, position, writeable)
        if high - low <= array.nbytes:
            # Contiguous in some order, or broadcast: its memory is copied as it lies, its strides stay.
            size = high - low
            source = _raw(low, size, array)
            position = int(array.__array_interface__["data"][0]) - low
            strides = array.strides
        else:
            return self._seal_strided(array)
        own = self._allocate(size)
        np.copyto(self.arenas[own[0]].view(own[1], size), source)
        return (ARRAY, (own,), _portable(array.dtype), array.shape, strides, position, writeable)

    def _seal_strided(self, array: np.ndarray[Any, Any]) -> ObjectRef:
        """Copy an array without what lies between its elements, its axes in the order in which they lie."""
        axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
        own = self._allocate(array.nbytes)
        memory = self.arenas[own[0]].view(own[1], array.nbytes)
        target = np.ndarray([array.shape[axis] for axis in axes], array.dtype, buffer=memory)
        target = target.transpose(np.argsort(axes))
        np.copyto(target, array)
        return (ARRAY, (own,), _portable(array.dtype), array.shape, target.strides, 0, True)

    def borrow(self, array: np.ndarray[Any, Any]) -> None:
        """Note that the operand reads an array of the user's, read-only just because it is lent."""
        self._borrowed.append(_byte_bounds(array))

    def _is_borrowed(self, low: int, high: int) -> bool:
        return any(start <= low and high <= stop for start, stop in self._borrowed)

    def is_in_arena(self, array: np.ndarray[Any, Any]) -> bool:
        """Say whether any of an array's memory is an arena's."""
        low, high = _byte_bounds(array)
        return any(low < arena.address + arena.capacity_bytes and arena.address < high for arena in self.arenas)

    def _sharing(self, low: int, high: int) -> Arena | None:
        """Return the arena of memory that is read-only just because it is shared; None of any other."""
        if self._in_place_sealing is not None and self._in_place_sealing.is_array_memory(low):
            return None
        for arena in self.arenas:
            if arena.address <= low and high <= arena.address + arena.capacity_bytes:
                return arena
        return None

    def _write_object(self, value: Any, name: str, files: SpillFiles) -> ObjectRef:
        """Write what is pickled to a file, its buffers from where they lie."""
        header, buffers, _ = self._pickled(value, self._thawed)
        if len(header) > self.inline_bytes:
            buffers.append(memoryview(header))
        parts = tuple([(number, 0, buffer.nbytes) for number, buffer in enumerate(buffers)])
        # What would be its blocks in memory: the file has a part for each.
        blocks = tuple([(self.own, 0, buffer.nbytes) for buffer in buffers])
        stored_header = None if len(header) > self.inline_bytes else header
        return (SPILLED, (), files.write(name, buffers), (OBJECT, blocks, stored_header, parts))

    def _pickled(
        self, value: Any, thaw: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
    ) -> tuple[bytes, list[memoryview], bool]:
        """Return a value's pickle, the buffers that are not in it, and whether the value may hold files open."""
        buffers: list[memoryview] = []

        def out_of_band(buffer: pickle.PickleBuffer) -> bool:
            raw = self.for_arena(buffer, _ALIGNMENT - 1)
            if raw is None:
                return True
            buffers.append(raw)
            return False

        if type(value) in (bytes, bytearray) and len(value) > self.inline_bytes:
            value = _OutOfBand(value)
        kinds: dict[int, type] = {}
        header = dumps(value, out_of_band, thaw, kinds)
        if thaw is not frozen and kinds.keys() - self._loaded_kinds.keys():
            # Some pickle and cannot be unpickled. Now their task can still be run where its result need not be.
            loads(header, buffers=buffers)
            self._loaded_kinds.update(kinds)
        return header, buffers, may_open_files(kinds)

    def _seal_object(self, value: Any, inputs: Iterable[Block], freeze: bool, in_place: bool) -> ObjectRef:
        if not freeze:
            # As a rule so: what reductions make of a chunk.
            plain = plain_bytes(value)
            if (
                plain is not None
                and plain <= self.inline_bytes
                and len(header := dumps_plain(value)) <= self.inline_bytes
            ):
                return (PICKLE, header)
        thaw = frozen if freeze else self._thawed
        header, buffers, may_hold_files = self._pickled(value, thaw)
        if sum(buffer.nbytes for buffer in buffers) + len(header) <= self.inline_bytes:
            return (HANDLE if may_hold_files else PICKLE, dumps(value, thaw=thaw) if buffers else header)
        blocks: list[Block] = []
        parts: list[tuple[int, int, int]] = []
        to_copy: list[tuple[int, Bytes]] = []
        if len(header) > self.inline_bytes:
            buffers.append(memoryview(header))
        needed = 0
        for buffer in buffers:
            source = np.frombuffer(buffer, dtype=np.uint8)
            low = int(source.__array_interface__["data"][0])
            block = self._block_of(low, low + source.nbytes, inputs)
            if block is None and in_place and self._in_place_sealing is not None:
                block = self._in_place_sealing.seal_block(low, low + source.nbytes, source.nbytes)
            if block is not None:
                if block not in blocks:
                    blocks.append(block)
                arena, offset, _ = block
                start = self.arenas[arena].address + offset
                parts.append((blocks.index(block), low - start, source.nbytes))
            else:
                parts.append((-1, needed, source.nbytes))
                to_copy.append((needed, source))
                needed += -(-source.nbytes // _ALIGNMENT) * _ALIGNMENT
        if to_copy:
            own = self._allocate(needed)
            blocks.append(own)
            view = self.arenas[own[0]].view(own[1], needed)
            for position, source in to_copy:
                np.copyto(view[position : position + source.nbytes], source)
            last = len(blocks) - 1
            parts = [(last if number < 0 else number, at, size) for number, at, size in parts]
        stored_header: bytes | None = None if len(header) > self.inline_bytes else header
        return (OBJECT, tuple(blocks), stored_header, tuple(parts))

    def for_arena(self, buffer: pickle.PickleBuffer, inline_bytes: int) -> memoryview | None:
        """Return the bytes of a pickle's buffer that are to lie in an arena, None if they stay in the pickle.

        Parameters
        ----------
        buffer : PickleBuffer
            Of any layout.
        inline_bytes : int
            Buffers up to this size stay in the pickle, but for those that as values of their own would not: by the
            arena is known what is the user's.
        """
        try:
            raw = buffer.raw()
        except BufferError:
            return None
        return raw if raw.nbytes > min(inline_bytes, self.inline_bytes) else None

    def put(self, data: memoryview) -> Block:
        """Copy bytes into a block of their own."""
        block = self._allocate(data.nbytes)
        arena, offset, _ = block
        np.copyto(self.arenas[arena].view(offset, data.nbytes), np.frombuffer(data, dtype=np.uint8))
        return block

    def _allocate(self, size_bytes: int) -> Block:
        # Who has waited for it in vain knows why.
        admitted = self._quota is None or self._quota.admit(size_bytes)
        offset = self.allocator.allocate(size_bytes) if admitted else None
        if offset is None:
            if self._is_overflowing:
                return self._allocate_overflow(size_bytes)
            if self._in_place_sealing is not None:
                self._in_place_sealing.abort()
            raise StoreFull(size_bytes, self.allocator.largest_free_bytes, self.allocator.capacity_bytes)
        return (self.own, offset, size_bytes)

    def _allocate_overflow(self, size_bytes: int) -> Block:
        """Return a block in an arena that only this process has, for as long as a value is sealed."""
        try:
            descriptor = create("dask-mars-overflow", size_bytes)
            try:
                self.arenas.append(Arena(descriptor, size_bytes))
            finally:
                os.close(descriptor)
        except OSError as error:
            free, capacity = self.allocator.largest_free_bytes, self.allocator.capacity_bytes
            raise StoreFull(size_bytes, free, capacity) from error
        return (len(self.arenas) - 1, 0, size_bytes)

    def _block_of(self, low: int, high: int, inputs: Iterable[Block]) -> Block | None:
        """Return the input block that memory from `low` to `high` lies in, if it is worth keeping alive."""
        for block in inputs:
            arena, offset, size_bytes = block
            start = self.arenas[arena].address + offset
            if start <= low and high <= start + size_bytes:
                return block if high - low >= size_bytes * _VIEW_SHARE else None
        return None

    def _thawed(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a writable alias of an array that is read-only just because its memory is shared.

        Pickles remember whether an array may be written, and who loads a copy of this one may write.
        """
        if array.flags.writeable or not array.size:
            return array
        low, high = _byte_bounds(array)
        if high - low < array.nbytes:
            # It is broadcast.
            return array
        if _is_users(array) or self._is_borrowed(low, high):
            return array.copy(order="K")
        arena = self._sharing(low, high)
        if arena is None:
            return array
        position = int(array.__array_interface__["data"][0]) - low
        view = arena.view(low - arena.address, high - low)
        return np.ndarray(array.shape, array.dtype, buffer=view, offset=position, strides=array.strides)

    # -- reading ----------------------------------------------------------------------------------------------

    def load(self, ref: ObjectRef, owners: list[tuple[Block, Bytes]] | None = None) -> Any:
        """Read a value without copying what lies in arenas.

        Parameters
        ----------
        ref : ObjectRef
            What `seal` returned, in any process.
        owners : list, optional
            Gets a (block, array) pair for each block that the value refers to. As long as anything made of the
            value is alive, the array has more references than this list's own: see `still_used`.
        """
        kind = ref[0]
        if kind < ARRAY:
            return inline_value(ref)
        if kind == SPILLED:
            return _load_spilled(ref)
        value = value_from_blocks(ref, self._bases(ref, owners))
        return MapOutput(value) if kind == MAP_OUTPUT else value

    def _bases(self, ref: ObjectRef, owners: list[tuple[Block, Bytes]] | None) -> list[Bytes]:
        """Return the memory of each block of a value."""
        bases = []
        for block in ref[1]:
            arena, offset, size_bytes = block
            base = self.arenas[arena].view(offset, size_bytes)
            base.flags.writeable = False
            bases.append(base)
            if owners is not None:
                owners.append((block, base))
        return bases

    def load_pickle(self, ref: ObjectRef, owners: list[tuple[Block, Bytes]]) -> tuple[Any, list[memoryview]]:
        """Return the pickle that an object lies in arenas as, and its buffers, without copying them.

        Parameters
        ----------
        ref : ObjectRef
            Of kind `OBJECT`.
        owners : list
            As for `load`.
        """
        return pickle_of(ref, self._bases(ref, owners))

    def load_copy(self, ref: ObjectRef) -> Any:
        """Read a value into private, writable memory: one copy, and the arena is not referred to any more."""
        kind = ref[0]
        if kind == VALUE:
            return ref[1]
        if kind < ARRAY:
            return _owning(self.load(ref))
        if kind == SPILLED:
            return _load_spilled(ref)
        if kind == MAP_OUTPUT:
            return MapOutput(self.load(ref).data.copy())
        if kind == ARRAY:
            view = self.load(ref)
            copy = _copy_as_it_lies(view)
            if not ref[6]:
                copy.flags.writeable = False
            return copy
        _, blocks, header, parts = ref
        copies = []
        for number, at, size in parts:
            arena, offset, _ = blocks[number]
            copies.append(bytearray(self.arenas[arena].view(offset + at, size)))
        if header is None:
            header = copies.pop()
        return loads(header, buffers=copies)

    # -- spilling ---------------------------------------------------------------------------------------------

    def spill(self, ref: ObjectRef, name: str, files: SpillFiles) -> ObjectRef:
        """Write a value to a file.

        Parameters
        ----------
        ref : ObjectRef
            Of a value that is in arenas.
        name : str
            Of the file.
        files : SpillFiles
            Where to write it.

        Returns
        -------
        ObjectRef
            Of the value on disk.

        Raises
        ------
        SpillError
            The disk is full or fails.
        """
        if ref[0] in ARRAYS:
            views, there = self._needed_of_array(ref)
            if ref[0] == MAP_OUTPUT:
                views = with_checksums(views[0])
        else:
            views = []
            lows = []
            for (arena, offset, _), (low, high) in zip(blocks_of(ref), extents(ref), strict=True):
                views.append(self.arenas[arena].view(offset + low, high - low))
                lows.append(low)
            kind, blocks, header, parts = ref
            there = kind, blocks, header, tuple([(number, at - lows[number], size) for number, at, size in parts])
        return (SPILLED, (), files.write(name, views, in_parts=ref[0] == MAP_OUTPUT), there)

    def _needed_of_array(self, ref: ObjectRef) -> tuple[list[Bytes], ObjectRef]:
        """Return the memory that an array needs, and the reference to it were that its block."""
        kind, (block,), dtype, shape, strides, position, writeable = ref
        arena, offset, size = block
        ((low, high),) = extents(ref)
        if high - low <= size_of(ref):
            view = self.arenas[arena].view(offset + low, high - low)
            return [view], (kind, (block,), dtype, shape, strides, position - low, writeable)
        # Of a slice of columns the rest of the rows is not needed.
        array = np.copy(value_from_blocks(ref, [self.arenas[arena].view(offset, size)]), order="K")
        view = _raw(int(array.__array_interface__["data"][0]), array.nbytes, array)
        return [view], (kind, (block,), dtype, shape, array.strides, 0, writeable)

    def restore(self, ref: ObjectRef) -> ObjectRef:
        """Read a value from a file into the own arena.

        Parameters
        ----------
        ref : ObjectRef
            Of a value on disk.

        Returns
        -------
        ObjectRef
            Of the value in the arena, of which nobody else has been told.

        Raises
        ------
        StoreFull
            The arena has no room for it.
        SpillError
            The file is gone, is not what was written, or cannot be read.
        """
        blocks: list[Block] = []
        try:
            for size in spilled_file(ref).parts:
                blocks.append(self._allocate(size))
            _read_back(ref, [self.arenas[arena].view(at, size) for arena, at, size in blocks])
        except BaseException:
            for _, at, _ in blocks:
                self.allocator.free(at)
            raise
        if self._quota is not None:
            # From here on it is counted as stored.
            self._quota.excuse(sum([size for _, _, size in blocks]))
        kind, _, *rest = ref[3]
        return (kind, tuple(blocks), *rest)

    # -- what operands need -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Count by how much this process's memory grows from now on: an operand begins."""
        self._borrowed.clear()
        if self._quota is not None:
            self._quota.begin()

    @property
    def refusal(self) -> tuple[int, int]:
        """Why growth was refused since an operand began, 0 if it was not, and to how many bytes.

        `protocol.control` has the reasons.
        """
        return (0, 0) if self._quota is None else self._quota.refusal

    def raise_exceeded(self) -> bool:
        """Say, once, whether small objects have taken memory since an operand began that was refused.

        Who is told so has to raise it.
        """
        return self._quota is not None and self._quota.raise_exceeded()

    def mark(self) -> None:
        """Start to watch how much of the own arena is in use."""
        if self._heap is not None:
            self._heap.mark()

    @property
    def peak_bytes(self) -> int:
        """By how much what is in use has grown at most since the mark; 0 where arrays are not built there."""
        return 0 if self._heap is None else self._heap.peak_bytes

    # -- freeing ----------------------------------------------------------------------------------------------

    def release(self, offset: int) -> None:
        """Free a block of the own arena."""
        self.allocator.free(offset)
        self.is_trimmed = False

    def trim(self) -> None:
        """Give the pages of all free blocks of the own arena back to the system."""
        self.is_trimmed = True
        if self._heap is not None:
            # Arrays may be taking blocks meanwhile.
            self._heap.trim()
            return
        arena = self.arenas[self.own]
        for offset, size in self.allocator.free_ranges():
            arena.give_back(offset, size)

    def trim_arena(self, number: int, live: Iterable[tuple[int, int]]) -> None:
        """Give the free pages of an arena that no process allocates from back to the system.

        Parameters
        ----------
        number : int
            The arena's.
        live : iterable of (int, int)
            Offset and size in bytes of the blocks in it that are in use.
        """
        arena = self.arenas[number]
        for offset, size_bytes in Allocator(arena.capacity_bytes, live).free_ranges():
            arena.give_back(offset, size_bytes)


def bytes_to_store(value: Any) -> int:
    """Return the bytes that a value would take in the store, roughly; 0 where that is not seen at a glance."""
    kind = type(value)
    if issubclass(kind, np.ndarray):
        low, high = _byte_bounds(value) if value.size else (0, 0)
        return int(min(value.nbytes, high - low))
    if kind is bytes or kind is bytearray:
        return len(value)
    library = package_of(kind)
    if library == "pandas" and hasattr(value, "memory_usage"):
        # What strings take besides their addresses would take long to see.
        return int(np.sum(value.memory_usage()))
    return int(value.nbytes) if library == "pyarrow" and hasattr(value, "nbytes") else 0


def still_used(owners: list[tuple[Block, Bytes]]) -> list[tuple[Block, Bytes]]:
    """Return those entries of a list that `Store.load` filled whose memory something else still refers to."""
    return [entry for entry in owners if sys.getrefcount(entry[1]) > _UNUSED_COUNT]


def _unused_count() -> int:
    """Count the references to an array that only an entry like those of `still_used` has."""
    entry = ((0, 0, 0), np.frombuffer(bytearray(1), dtype=np.uint8))
    return next(iter([sys.getrefcount(entry[1]) for entry in [entry]]))


_UNUSED_COUNT = _unused_count()


def inline_value(ref: ObjectRef) -> Any:
    """Return a value that is in its reference."""
    kind = ref[0]
    if kind == VALUE:
        return ref[1]
    return _load_small(*ref[1:]) if kind == SMALL else loads(ref[1])


def _load_spilled(ref: ObjectRef) -> Any:
    """Read a value from disk into private, writable memory."""
    original = ref[3]
    if original[0] == MAP_OUTPUT:
        file = spilled_file(ref)
        return MapOutput(None, SpillFiles(Path(file.path).parent).open(file))
    value = value_from_blocks(original, _read_back(ref))
    if original[0] == ARRAY:
        value.flags.writeable = original[6]
    return value


def _read_back(ref: ObjectRef, into: Sequence[Any] | None = None) -> Sequence[Any]:
    """Read the memory of each of the blocks that a value on disk had."""
    file = spilled_file(ref)
    return SpillFiles(Path(file.path).parent).read(file, into)


def _load_small(
    dtype: str, shape: tuple[int, ...] | None, order: Literal["C", "F"], writeable: bool | None, data: bytes
) -> Any:
    if shape is None:
        return np.frombuffer(data, dtype)[0]
    array: Any = np.ndarray(shape, dtype, buffer=data if writeable is None else bytearray(data), order=order)
    if writeable is False:
        array.flags.writeable = False
    return array


def _owning(value: Any) -> Any:
    """Return a small array as one that owns its memory, which alone can be resized; any other value as it is.

    One that is the user's stays a view of the message that it has come in, by which it is known.
    """
    if type(value) is not np.ndarray or value.flags.owndata or not value.flags.writeable:
        return value
    return value.copy(order="K")


#: The short names of dtypes: NumPy would make them anew each time, and pickles each of them.
_names: dict[np.dtype[Any], str] = {}


def _portable(dtype: np.dtype[Any]) -> Any:
    """Return what a message carries of a dtype: its short name where that says everything."""
    if dtype.kind in "biufcmM" and dtype.metadata is None:
        name = _names.get(dtype)
        if name is None:
            name = _names[dtype] = dtype.str
        return name
    return dtype


def _byte_bounds(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the addresses of an array's first byte and of the byte after its last."""
    low = high = int(array.__array_interface__["data"][0])
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high + array.itemsize


class _Memory:
    """Exposes raw memory of an array through the array interface, and keeps the array alive."""

    def __init__(self, address: int, size_bytes: int, keep: Any) -> None:
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (size_bytes,),
            "typestr": "|u1",
            "version": 3,
        }
        self.keep = keep


def _is_users(array: np.ndarray[Any, Any]) -> bool:
    """Say whether an array has come in a message, and is read-only because it is the user's."""
    owner: Any = array
    while issubclass(type(owner), np.ndarray):
        owner = owner.base
    return type(owner) is bytes


def _raw(address: int, size_bytes: int, keep: Any) -> Bytes:
    return np.asarray(_Memory(address, size_bytes, keep))


def _copy_as_it_lies(view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copy an array; one that is broadcast stays so, as it would under Dask's own schedulers."""
    low, high = _byte_bounds(view)
    if high - low >= view.nbytes:
        return np.copy(view, order="K")
    memory = _raw(low, high - low, view).copy()
    position = int(view.__array_interface__["data"][0]) - low
    return np.ndarray(view.shape, view.dtype, buffer=memory, offset=position, strides=view.strides)
