"""The shared store, from one process: it seals values into its own arena, and reads them from any.

An *object reference* identifies a sealed value (see `protocol.object_ref`). It may refer to blocks of other
values: a slice of a chunk is a view and not a copy, as under threads. Sealed values are immutable, and are read
through read-only arrays. Arrays that NumPy has built in the own arena are sealed in place.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dask_mars.errors import StoreFull
from dask_mars.graph.callables import package_of
from dask_mars.lazy_numpy import np
from dask_mars.protocol.object_ref import (
    ARRAY,
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
    relocated,
    spilled_file,
)
from dask_mars.protocol.pickling import dumps, dumps_plain, frozen, loads, may_open_files, plain_bytes
from dask_mars.store.allocation import StoreAllocator
from dask_mars.store.arena import Arena, Bytes
from dask_mars.store.array_memory import byte_bounds, is_users, portable, raw
from dask_mars.store.map_output import MapOutput
from dask_mars.store.reader import read_back
from dask_mars.store.spill_files import SpillFiles

if TYPE_CHECKING:
    from dask_mars.store._arena import Heap, Quota

_SCALARS = frozenset({type(None), bool, int, float, complex})
_ALIGNMENT = 64
# Views below this share of their block are copied, because they would keep the whole block alive.
_VIEW_SHARE = 1 / 64


@dataclass(frozen=True, slots=True)
class _OutOfBand:
    """Bytes that are pickled as a buffer, so that they are copied only once."""

    value: bytes | bytearray

    def __reduce__(self) -> tuple[type, tuple[pickle.PickleBuffer]]:
        return type(self.value), (pickle.PickleBuffer(self.value),)


class Store(StoreAllocator):
    """Seals and loads values for one process."""

    def __init__(
        self,
        arenas: list[Arena],
        own: int,
        live: Iterable[tuple[int, int]] = (),
        inline_bytes: int = 1 << 14,
        heap: Heap | None = None,
        quota: Quota | None = None,
    ) -> None:
        super().__init__(arenas, own, live, heap, quota)
        self.inline_bytes = inline_bytes
        #: Classes that have been unpickled successfully, by id.
        self._loaded_kinds: dict[int, type] = {}
        #: Address ranges of the user's arrays that the current operand borrows.
        self._borrowed: list[tuple[int, int]] = []

    def begin(self) -> None:
        """Start measuring the growth of this process's memory for an operand."""
        self._borrowed.clear()
        super().begin()

    # -- sealing ----------------------------------------------------------------------------------------------

    def seal(
        self, value: Any, inputs: Iterable[Block] = (), freeze: bool = False, in_place: bool = False
    ) -> ObjectRef:
        """Make a value readable for every process."""
        # With `freeze` even small arrays are loaded read-only. With `in_place` arrays stay where they were built
        # in the own arena: the caller drops its references to the value, and calls `finish`.
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
            and type(dtype := portable(value.dtype)) is str
            and kind is value.dtype.type
        ):
            return (SMALL, dtype, None, "C", False, value.tobytes())
        return self._seal_object(value, inputs, freeze, in_place)

    def seal_on_disk(self, value: Any, inputs: Collection[Block], name: str, files: SpillFiles) -> ObjectRef:
        """Write a value without room in the own arena to a file that every process can read."""
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
        """Return the final reference to a value sealed with `in_place`, after the caller has dropped it."""
        # If there is no room for a copy, the blocks that `seal` has allocated are freed.
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
        dtype = portable(array.dtype)
        if type(dtype) is str:
            # This takes a tenth of a pickle's time, and a fifth of its bytes.
            order: Literal["C", "F"] = "F" if array.flags.fnc else "C"
            return (SMALL, dtype, array.shape, order, writeable, array.tobytes(order=order))
        # A plain array needs only the plain pickle, which is twice as fast.
        return (PICKLE, pickle.dumps(frozen(array) if freeze else array, protocol=5))

    def _seal_array(self, array: np.ndarray[Any, Any], inputs: Iterable[Block], in_place: bool) -> ObjectRef:
        low, high = byte_bounds(array)
        writeable = array.flags.writeable or self._sharing(low, high) is not None or self._is_borrowed(low, high)
        block = self._block_of(low, high, inputs)
        if block is not None:
            # Read-only here because it is shared; a copy may be written to, unless items overlap.
            writeable = high - low >= array.nbytes
        elif in_place and self._in_place_sealing is not None:
            block = self._in_place_sealing.seal_block(low, high, array.nbytes)
        if block is not None:
            arena, offset, _ = block
            start = self.arenas[arena].address + offset
            position = int(array.__array_interface__["data"][0]) - start
            return (ARRAY, (block,), portable(array.dtype), array.shape, array.strides, position, writeable)
        if high - low <= array.nbytes:
            # Contiguous in some order, or broadcast: its memory is copied unchanged, with its strides.
            size = high - low
            source = raw(low, size, array)
            position = int(array.__array_interface__["data"][0]) - low
            strides = array.strides
        else:
            return self._seal_strided(array)
        own = self._allocate(size)
        np.copyto(self.arenas[own[0]].view(own[1], size), source)
        return (ARRAY, (own,), portable(array.dtype), array.shape, strides, position, writeable)

    def _seal_strided(self, array: np.ndarray[Any, Any]) -> ObjectRef:
        """Copy an array without the gaps between its elements, in the order of its axes in memory."""
        axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
        own = self._allocate(array.nbytes)
        memory = self.arenas[own[0]].view(own[1], array.nbytes)
        target = np.ndarray([array.shape[axis] for axis in axes], array.dtype, buffer=memory)
        target = target.transpose(np.argsort(axes))
        np.copyto(target, array)
        return (ARRAY, (own,), portable(array.dtype), array.shape, target.strides, 0, True)

    def borrow(self, array: np.ndarray[Any, Any]) -> None:
        """Register an array of the user's that the operand borrows, and that is read-only only for that."""
        self._borrowed.append(byte_bounds(array))

    def _is_borrowed(self, low: int, high: int) -> bool:
        return any(start <= low and high <= stop for start, stop in self._borrowed)

    def _sharing(self, low: int, high: int) -> Arena | None:
        """Return the arena of memory that is read-only only because it is shared; None for other memory."""
        if self._in_place_sealing is not None and self._in_place_sealing.is_array_memory(low):
            return None
        for arena in self.arenas:
            if arena.address <= low and high <= arena.address + arena.capacity_bytes:
                return arena
        return None

    def _write_object(self, value: Any, name: str, files: SpillFiles) -> ObjectRef:
        """Pickle a value to a file, its buffers without a copy."""
        header, buffers, _ = self._pickled(value, self._thawed)
        if len(header) > self.inline_bytes:
            buffers.append(memoryview(header))
        parts = tuple([(index, 0, buffer.nbytes) for index, buffer in enumerate(buffers)])
        # The blocks that it would have in memory: the file has a part for each.
        blocks = tuple([(self.own, 0, buffer.nbytes) for buffer in buffers])
        stored_header = None if len(header) > self.inline_bytes else header
        return (SPILLED, (), files.write(name, buffers), (OBJECT, blocks, stored_header, parts))

    def _pickled(
        self, value: Any, thaw: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
    ) -> tuple[bytes, list[memoryview], bool]:
        """Return a value's pickle, its out-of-band buffers, and whether the value may hold files open."""
        buffers: list[memoryview] = []
        # Values with few bytes become one pickle.
        left = self.inline_bytes // 2

        def out_of_band(buffer: pickle.PickleBuffer) -> bool:
            nonlocal left
            raw = self.for_arena(buffer, _ALIGNMENT - 1)
            if raw is None:
                return True
            left -= raw.nbytes
            if left >= 0:
                return True
            buffers.append(raw)
            return False

        if type(value) in (bytes, bytearray) and len(value) > self.inline_bytes:
            value = _OutOfBand(value)
        kinds: dict[int, type] = {}
        header = dumps(value, out_of_band, thaw, kinds)
        if thaw is not frozen and kinds.keys() - self._loaded_kinds.keys():
            # Some values pickle but do not unpickle. Finding out now allows running the task where its result is
            # needed.
            loads(header, buffers=buffers)
            self._loaded_kinds.update(kinds)
        return header, buffers, may_open_files(kinds)

    def _seal_object(self, value: Any, inputs: Iterable[Block], freeze: bool, in_place: bool) -> ObjectRef:
        if not freeze:
            # The usual case: results of reductions.
            plain = plain_bytes(value, stays=self._stays)
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
            parts = [(last if index < 0 else index, at, size) for index, at, size in parts]
        stored_header: bytes | None = None if len(header) > self.inline_bytes else header
        return (OBJECT, tuple(blocks), stored_header, tuple(parts))

    def for_arena(self, buffer: pickle.PickleBuffer, inline_bytes: int) -> memoryview | None:
        """Return the bytes of a pickle's buffer that belong in an arena, None if they stay in the pickle."""
        # Buffers that would be stored as values of their own never stay in the pickle: memory in an arena
        # identifies arrays of the user.
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

    def _block_of(self, low: int, high: int, inputs: Iterable[Block]) -> Block | None:
        """Return the input block around memory from `low` to `high`, if it is worth keeping alive."""
        for block in inputs:
            arena, offset, size_bytes = block
            start = self.arenas[arena].address + offset
            if start <= low and high <= start + size_bytes:
                return block if high - low >= size_bytes * _VIEW_SHARE else None
        return None

    def _thawed(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a writable alias of an array that is read-only only because its memory is shared."""
        # Pickles record writability, and a loaded copy of this array may be written to.
        if array.flags.writeable or not array.size:
            return array
        low, high = byte_bounds(array)
        if high - low < array.nbytes:
            # It is broadcast.
            return array
        if is_users(array) or self._is_borrowed(low, high):
            return array.copy(order="K")
        arena = self._sharing(low, high)
        if arena is None:
            return array
        position = int(array.__array_interface__["data"][0]) - low
        view = arena.view(low - arena.address, high - low)
        return np.ndarray(array.shape, array.dtype, buffer=view, offset=position, strides=array.strides)

    def _stays(self, array: np.ndarray[Any, Any]) -> bool:
        """Return whether an array is read-only for another reason than that its memory is shared."""
        return array.nbytes <= self.inline_bytes and self._thawed(array) is array

    # -- spilled values ---------------------------------------------------------------------------------------

    def restore(self, ref: ObjectRef) -> ObjectRef:
        """Read a value from a file into the own arena."""
        blocks: list[Block] = []
        try:
            for size in spilled_file(ref).parts:
                blocks.append(self._allocate(size))
            read_back(ref, [self.arenas[arena].view(at, size) for arena, at, size in blocks])
        except BaseException:
            for _, at, _ in blocks:
                self.allocator.free(at)
            raise
        if self._quota is not None:
            # From here on it counts as stored.
            self._quota.excuse(sum([size for _, _, size in blocks]))
        kind, _, *rest = ref[3]
        return (kind, tuple(blocks), *rest)


def bytes_to_store(value: Any) -> int:
    """Return the approximate bytes of a value in the store; 0 where finding out would take long."""
    kind = type(value)
    if issubclass(kind, np.ndarray):
        low, high = byte_bounds(value) if value.size else (0, 0)
        return int(min(value.nbytes, high - low))
    if kind is bytes or kind is bytearray:
        return len(value)
    library = package_of(kind)
    if library == "pandas" and hasattr(value, "memory_usage"):
        return _frame_bytes(value)
    return int(value.nbytes) if library == "pyarrow" and hasattr(value, "nbytes") else 0


def _frame_bytes(value: Any) -> int:
    """Return what `memory_usage` adds up; it makes a series of each column."""
    # The size of strings besides their addresses would take long to compute.
    if value.ndim != 2:
        return int(value.memory_usage())
    total = int(value.index.memory_usage())
    for at, dtype in enumerate(value.dtypes):
        total += len(value) * dtype.itemsize if isinstance(dtype, np.dtype) else int(value.iloc[:, at].nbytes)
    return total
