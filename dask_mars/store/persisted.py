"""Handles of persisted chunks, and the nodes that hold them in Dask's graphs."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import uuid
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol, Self

from dask_mars.dask_api.core import DataNode, GraphNode, TaskRef, is_dask_future
from dask_mars.errors import PersistedLost
from dask_mars.lazy_numpy import np
from dask_mars.protocol.deferred import resolved
from dask_mars.protocol.object_ref import ObjectRef, array_type, is_spilled
from dask_mars.store.store import Store

# Two runs of a program must not give the same name to persisted chunks.
_program = uuid.uuid4().hex
_ids = itertools.count()
#: Whether a persisted chunk was ever created; before that no search of arguments is needed.
_exist = False


class ObjectOwner(Protocol):
    """The part of an engine that persisted chunks use."""

    pid: int

    store: Store

    @property
    def alive(self) -> bool:
        """Return whether the engine is running."""

    def acquire(self, graph: int, chunk: int) -> ObjectRef:
        """Return the reference to a persisted object, pinned until `release`."""

    def release(self, ref: ObjectRef) -> None:
        """Unpin a reference from `acquire`."""

    def ref_of(self, graph: int, chunk: int) -> ObjectRef | None:
        """Return the current reference to a persisted chunk, None if unknown."""


class PersistedChunk:
    """A chunk that is kept in the store of an engine.

    `dask.persist` puts such objects into the graphs of its collections. A later computation on the same engine
    reads the chunk in place. Elsewhere, in Dask's own schedulers and in pickles, it stands for a copy of its
    value. The chunk is freed with the last reference to the object.
    """

    __slots__ = ("__weakref__", "_id", "chunk", "engine", "graph", "key", "nbytes")

    def __init__(self, engine: ObjectOwner, graph: int, chunk: int, key: Hashable, nbytes: int) -> None:
        self.engine = engine
        self.graph = graph
        self.chunk = chunk
        self.key = key
        #: Approximate size of its value, in bytes.
        self.nbytes = nbytes
        self._id = next(_ids)
        global _exist
        _exist = True

    def result(self) -> Any:
        """Return a writable copy of the value."""
        with self.acquired() as (store, ref):
            return store.load_copy(ref)

    @contextlib.contextmanager
    def acquired(self) -> Iterator[tuple[Store, ObjectRef]]:
        """Return the store and the reference to the chunk, pinned meanwhile."""
        if self.engine.pid != os.getpid():
            raise PersistedLost(str(self.key), "it is in a process that this one was forked from")
        try:
            ref = self.engine.acquire(self.graph, self.chunk)
        except PersistedLost:
            raise
        except Exception as error:
            raise PersistedLost(str(self.key), str(error)) from error
        try:
            yield self.engine.store, ref
        finally:
            with contextlib.suppress(Exception):
                self.engine.release(ref)

    @property
    def ref(self) -> ObjectRef | None:
        """The current reference to the chunk; None if unknown."""
        return self.engine.ref_of(self.graph, self.chunk)

    def attribute(self, name: str) -> Any:
        """Return an attribute of the value; dtype and shape of an array without a copy of its elements."""
        ref = self.ref
        known = None if ref is None else array_type(ref)
        if known is not None:
            dtype, shape = known
            return dtype if name == "dtype" else shape
        return getattr(self.result(), name)

    def __repr__(self) -> str:
        ref = self.ref
        on_disk = ref is not None and is_spilled(ref)
        where = "on disk" if on_disk else "in shared memory" if self.engine.alive else "lost"
        return f"<Persisted {self.key!r} {self.nbytes:,} bytes {where}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return value_of, (self.result(),)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return type(self).__name__, _program, os.getpid(), self._id


class _Persisted(GraphNode):  # type: ignore[misc]
    """A persisted chunk as a node in Dask's graph, which all schedulers can run."""

    # In the graph of a persisted collection, code finds an array under Dask's threads, and a future under
    # `distributed`. Code for both (``chunk.result() if hasattr(chunk, "result") else chunk``, as in Dask's own
    # helpers) can read this node, and so can NumPy.
    # It is not a `Task`: Dask's optimizers rebuild tasks under the key that the node was created with, not the one
    # that `clone` has given it.

    __slots__ = ()

    value: Any

    def __init__(self, key: Hashable, value: Any) -> None:
        # The slots of the first two are Dask's, which has no types.
        self.key = key  # type: ignore[misc]
        self._dependencies: frozenset[Hashable] = frozenset()  # type: ignore[misc]
        self.value = value

    @property
    def block_fusion(self) -> bool:
        """Return True, so that Dask does not fuse the node: `clone` gives it keys that fusion does not know."""
        return True

    def __call__(self, values: Any = ()) -> Any:
        """Return the value, for schedulers."""
        return self.result()

    def copy(self) -> Self:
        """Return another node of the same key and chunk."""
        return type(self)(self.key, self.value)

    def substitute(self, subs: Any, key: Any = None) -> Self:
        """Return the node under another key; it has no dependencies."""
        return self if key is None or key == self.key else type(self)(key, self.value)

    def result(self) -> Any:
        """Return a writable copy of the value."""
        return value_of(self.value)

    @property
    def dtype(self) -> Any:
        """The value's dtype; AttributeError if it has none."""
        return _attribute(self.value, "dtype")

    @property
    def shape(self) -> Any:
        """The value's shape; AttributeError if it has none."""
        return _attribute(self.value, "shape")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.result(), dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.value)

    def __dask_tokenize__(self) -> Any:
        # As with futures: nodes of the same key are equal, however often they were computed.
        return PersistedNode.__name__, self.key

    def __repr__(self) -> str:
        return repr(self.value)


class PersistedNode(_Persisted):
    """A persisted chunk's node that Dask's own schedulers read when its turn comes."""

    __slots__ = ("value",)


class PersistedData(_Persisted, DataNode):  # type: ignore[misc]
    """A persisted chunk's node for graphs that distinguish data from tasks."""

    # Array expressions do, and put aliases to tasks there. Dask's own schedulers read all such nodes at the start.

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.result())


class _Value(DataNode):  # type: ignore[misc]
    """The node of a value that Dask would search for keys and tasks."""

    __slots__ = ()

    @property
    def block_fusion(self) -> bool:
        """As for `PersistedNode`."""
        return True


def _attribute(value: Any, name: str) -> Any:
    # The node of a pickle holds the value itself.
    return value.attribute(name) if type(value) is PersistedChunk else getattr(value, name)


class PersistedWeakRef(weakref.ref[PersistedChunk]):
    """A weak reference with the chunk and graph of its persisted chunk."""

    __slots__ = ("chunk", "graph")

    graph: int
    chunk: int


def weak_reference_to(persisted: PersistedChunk, when_gone: Callable[[Any], None]) -> PersistedWeakRef:
    """Call a function when the last reference to a persisted chunk is gone."""
    # Any thread may call it at any moment, even one that holds a lock or is being interrupted: so it must run no
    # Python code. The `append` of a deque will do.
    reference = PersistedWeakRef(persisted, when_gone)
    reference.graph, reference.chunk = persisted.graph, persisted.chunk
    return reference


def value_of(chunk: Any) -> Any:
    """Return the value of a persisted chunk or a future; other values unchanged."""
    return resolved(chunk.result()) if type(chunk) is PersistedChunk or issubclass(type(chunk), TaskRef) else chunk


def as_node(key: Hashable, value: Any) -> Any:
    """Return a node, or a plain value, for the graph of a persisted collection."""
    # Any scheduler can compute with it. As under Dask's threads it is the value itself, unless Dask would take
    # that for a task or a key.
    if issubclass(type(value), TaskRef) and value.key == key:
        # distributed puts its futures into graphs in the same way.
        return value
    if type(value) is PersistedChunk:
        return (PersistedData if _has_array_expressions() else PersistedNode)(key, value)
    return _Value(key, value) if isinstance(value, _READ_BY_DASK) or is_dask_future(value) else value


def _has_array_expressions() -> bool:
    """Return whether Dask's arrays are expressions, which Dask decides once."""
    return bool(getattr(sys.modules.get("dask.array"), "ARRAY_EXPR_ENABLED", False))


def as_data(key: Hashable, node: Any) -> Any:
    """Return a node that only reads a persisted chunk as the chunk itself; other nodes unchanged."""
    return DataNode(key, node.value) if type(node) is PersistedNode else node


def persisted_exist() -> bool:
    """Return whether any chunk was ever persisted."""
    return _exist


def holds_persisted(value: Any) -> bool:
    """Return whether a list, tuple, set or dict contains persisted chunks, at any depth."""
    if not _exist:
        return False
    stack, seen = [value], set()
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is PersistedChunk:
            return True
        if kind in _CONTAINERS and id(item) not in seen:
            seen.add(id(item))
            stack += item.values() if kind is dict else item
    return False


_CONTAINERS = frozenset({list, tuple, set, dict})
#: Types that Dask searches for keys and tasks.
_READ_BY_DASK = (str, tuple, list, set, frozenset, dict, GraphNode, TaskRef)
