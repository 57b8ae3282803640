"""Results of subtasks as Dask's workers hold them; the values stay in the store of their agent.

A result is sent in Dask's format for plain values, so that clients and workers without dask_mars can read it. Its
frames are views of the shared memory itself.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

from dask.sizeof import sizeof

from dask_mars.cluster.distributed_api import Serialized, serialize
from dask_mars.locking import Lock
from dask_mars.protocol.deferred import resolved
from dask_mars.protocol.object_ref import ObjectRef, is_pickled, is_spilled, is_writeable_array
from dask_mars.store.persisted import PersistedChunk, value_of
from dask_mars.store.store import Store


class StoredResult(Serialized):  # type: ignore[misc]
    """Values, some of which are in an engine's store; outside the agent a plain list."""

    def __init__(self, items: Sequence[Any], bare: bool = False) -> None:
        # The base constructor requires header and frames, which are created on demand.
        self.items = tuple(items)
        self._bare = bare
        self._opened = threading.local()

    @property
    def header(self) -> dict[str, Any]:
        """The description of the frames; a caller reads `frames` next."""
        header, self._opened.frames = self.serialized()
        return header

    @property
    def frames(self) -> list[Any]:
        """The bytes of the values, in place."""
        frames: list[Any] | None = self._opened.__dict__.pop("frames", None)
        return self.serialized()[1] if frames is None else frames

    def serialized(self) -> tuple[dict[str, Any], list[Any]]:
        """Return what Dask's serialization of the plain values returns."""
        if self._bare:
            return _serialized(self.items[0])
        found: tuple[dict[str, Any], list[Any]] = serialize(
            [Serialized(*_serialized(item)) for item in self.items], iterate_collection=True
        )
        return found

    def value(self) -> Any:
        """Return the plain values as writable copies."""
        values = [plain(item) for item in self.items]
        return values[0] if self._bare else values

    @property
    def nbytes(self) -> int:
        """Approximate size of the values, in bytes."""
        return sum([item.nbytes if type(item) is PersistedChunk else sizeof(item) for item in self.items])

    @property
    def on_disk_bytes(self) -> int:
        """Approximate bytes of the values on disk, which reading them will need in memory."""
        return sum([_on_disk_bytes(item) for item in self.items])

    def __getitem__(self, index: int) -> Any:
        # A task must return an instance of this class.
        item = self.items[index]
        return StoredResult([item], bare=True) if type(item) is PersistedChunk else item

    def item(self, index: int | None) -> Any:
        """Return an item; given None, the only item of a bare result, else this result."""
        return self.items[index or 0] if self._bare or index is not None else self

    # Override two methods of the base class that would read all values.
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return plain, (self.value(),)

    def __repr__(self) -> str:
        return f"<Stored {len(self.items)} values, {self.nbytes:,} bytes>"


def item_of(value: Any, index: int | None) -> Any:
    """Return an item of a result, or, given None, the result."""
    if isinstance(value, StoredResult):
        return value.item(index)
    return value if index is None else value[index]


def plain(value: Any) -> Any:
    """Return the value of a result; other values unchanged."""
    return value.value() if isinstance(value, StoredResult) else resolved(value_of(value))


@sizeof.register(StoredResult)  # type: ignore[untyped-decorator]
def _size_of_stored(stored: StoredResult) -> int:
    return stored.nbytes


def _on_disk_bytes(item: Any) -> int:
    if isinstance(item, StoredResult):
        return item.on_disk_bytes
    ref = item.ref if type(item) is PersistedChunk else None
    return item.nbytes if ref is not None and is_spilled(ref) else 0


def _serialized(item: Any) -> tuple[dict[str, Any], list[Any]]:
    if isinstance(item, StoredResult):
        return item.serialized()
    found: tuple[dict[str, Any], list[Any]]
    if type(item) is not PersistedChunk:
        found = serialize(item)
        return found
    release_unread()
    ref = item.engine.acquire(item.graph, item.chunk)
    owners: list[Any] = []
    try:
        return _frames_of(item.engine.store, ref, owners)
    finally:
        acquired = _AcquiredObject(item, ref, len(owners) + 1)
        for _, base in owners:
            weakref.finalize(base, _dropped_frames.append, acquired).atexit = False
        _dropped_frames.append(acquired)


def _frames_of(store: Store, ref: ObjectRef, owners: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Serialize a value; the receiver may write to its copy, although it is in shared memory here."""
    header: dict[str, Any]
    if is_pickled(ref):
        # It is pickled already.
        pickled, buffers = store.load_pickle(ref, owners)
        return {"serializer": "pickle", "writeable": (True,) * len(buffers)}, [pickled, *buffers]
    header, frames = serialize(store.load(ref, owners))
    writeable = is_writeable_array(ref)
    if writeable is not None and "writeable" in header.get("sub-header", ()):
        header["sub-header"]["writeable"] = [writeable]
    return header, frames


# -- chunks that are pinned while their frames are read -------------------------------------------------------


class _AcquiredObject:
    """A borrowed chunk, and the number of frames that still refer to it."""

    __slots__ = ("left", "persisted", "ref")

    def __init__(self, persisted: PersistedChunk, ref: ObjectRef, left: int) -> None:
        self.persisted = persisted
        self.ref = ref
        self.left = left


#: Chunks with dropped frames. Finalizers may run at any point, and so do no more than append here.
_dropped_frames: deque[_AcquiredObject] = deque()
_lock = Lock()


def release_unread() -> None:
    """Release chunks without remaining frames. An agent calls it periodically."""
    while _dropped_frames:
        with _lock:
            try:
                acquired = _dropped_frames.popleft()
            except IndexError:
                return
            acquired.left -= 1
            left = acquired.left
        engine = acquired.persisted.engine
        if not left and engine.alive:
            engine.release(acquired.ref)
