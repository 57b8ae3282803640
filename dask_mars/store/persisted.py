"""What `dask.persist` hands out: stand-ins for chunks that an engine keeps in its store."""

from __future__ import annotations

import contextlib
import itertools
import os
import uuid
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol

import numpy as np
from dask._task_spec import DataNode, GraphNode, Task, TaskRef, _is_dask_future

from dask_mars.errors import PersistedLost
from dask_mars.protocol.deferred import resolved
from dask_mars.protocol.object_ref import ARRAY, SPILLED, ObjectRef
from dask_mars.store.store import Store

# Two runs of a program must not give the same name to what they keep.
_program = uuid.uuid4().hex
_numbers = itertools.count()
#: Whether there has been one: before that nobody needs to look for them within arguments.
_exist = False


class Keeper(Protocol):
    """An engine, as far as kept chunks are concerned."""

    pid: int

    store: Store

    @property
    def alive(self) -> bool:
        """Whether the engine is there."""

    def borrow(self, graph: int, chunk: int) -> ObjectRef:
        """Return the location of a kept chunk, which stays there until it is given back."""

    def give_back(self, ref: ObjectRef) -> None:
        """Let go of a location that was borrowed."""

    def ref_of(self, graph: int, chunk: int) -> ObjectRef | None:
        """Return where a kept chunk is at the moment, None if that is not known."""


class Persisted:
    """One chunk that is kept in the store of an engine.

    `dask.persist` puts such objects into the graphs of the collections that it returns. A later computation on
    the same engine reads the chunk where it is. Everywhere else it stands for a copy of its value, in Dask's own
    schedulers and in pickles too. When the last reference to the object goes, the chunk is freed.

    Parameters
    ----------
    engine : Keeper
        Keeps the chunk.
    graph, chunk : int
        What the engine calls it.
    key : hashable
        Dask's key of the chunk.
    nbytes : int
        Bytes of its value, roughly.

    Attributes
    ----------
    key : hashable
        Dask's key of the chunk.
    nbytes : int
        Bytes of its value, roughly.
    """

    __slots__ = ("__weakref__", "_number", "chunk", "engine", "graph", "key", "nbytes")

    def __init__(self, engine: Keeper, graph: int, chunk: int, key: Hashable, nbytes: int) -> None:
        self.engine = engine
        self.graph = graph
        self.chunk = chunk
        self.key = key
        self.nbytes = nbytes
        self._number = next(_numbers)
        global _exist
        _exist = True

    def result(self) -> Any:
        """Return the value: a copy, which may be written to.

        Raises
        ------
        PersistedLost
            The engine has ended, or belongs to another process.
        """
        with self.lent() as (store, ref):
            return store.load_copy(ref)

    @contextlib.contextmanager
    def lent(self) -> Iterator[tuple[Store, ObjectRef]]:
        """Return the store and the location of the chunk, which stays there meanwhile."""
        if self.engine.pid != os.getpid():
            raise PersistedLost(str(self.key), "it is in a process that this one was forked from")
        try:
            ref = self.engine.borrow(self.graph, self.chunk)
        except PersistedLost:
            raise
        except Exception as error:
            raise PersistedLost(str(self.key), str(error)) from error
        try:
            yield self.engine.store, ref
        finally:
            with contextlib.suppress(Exception):
                self.engine.give_back(ref)

    @property
    def ref(self) -> ObjectRef | None:
        """Where the chunk is at the moment; None if that is not known."""
        return self.engine.ref_of(self.graph, self.chunk)

    def attribute(self, name: str) -> Any:
        """Return an attribute of the value: an array's dtype or shape without a copy of its elements.

        Raises
        ------
        AttributeError
            The value has none of that name.
        PersistedLost
            As `result`.
        """
        ref = self.ref
        if ref is not None and ref[0] == SPILLED:
            ref = ref[3]
        if ref is not None and ref[0] == ARRAY:
            _, _, dtype, shape, *_ = ref
            return np.dtype(dtype) if name == "dtype" else tuple(shape)
        return getattr(self.result(), name)

    def __repr__(self) -> str:
        ref = self.ref
        on_disk = ref is not None and ref[0] == SPILLED
        where = "on disk" if on_disk else "in shared memory" if self.engine.alive else "lost"
        return f"<Persisted {self.key!r} {self.nbytes:,} bytes {where}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return value_of, (self.result(),)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return type(self).__name__, _program, os.getpid(), self._number


class PersistedNode(Task):  # type: ignore[misc]
    """The node of Dask's graph that stands for a kept chunk: all schedulers can run it.

    Whoever looks into the graph of a persisted collection finds an array there under Dask's threads, and a future
    under `distributed`. What reads both (``chunk.result() if hasattr(chunk, "result") else chunk``, as Dask's own
    helpers have it) can read this, and so can NumPy.
    """

    __slots__ = ()

    @property
    def block_fusion(self) -> bool:
        """Dask leaves the node as it is: `clone` puts it under other keys, which its fusion cannot know."""
        return True

    @property
    def persisted(self) -> Persisted:
        """The kept chunk."""
        persisted: Persisted = self.args[0]
        return persisted

    def result(self) -> Any:
        """Return the value: a copy, which may be written to.

        Raises
        ------
        PersistedLost
            The engine has ended, or belongs to another process.
        """
        return value_of(self.args[0])

    @property
    def dtype(self) -> Any:
        """The value's dtype; AttributeError if it has none."""
        return _attribute(self.args[0], "dtype")

    @property
    def shape(self) -> Any:
        """The value's shape; AttributeError if it has none."""
        return _attribute(self.args[0], "shape")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.result(), dtype)

    def __dask_tokenize__(self) -> Any:
        # As with a future: what has the same key is the same, however often it was computed.
        return type(self).__name__, self.key

    def __repr__(self) -> str:
        return repr(self.args[0])


class _Value(DataNode):  # type: ignore[misc]
    """The node of a value in which Dask would look for keys and tasks."""

    __slots__ = ()

    @property
    def block_fusion(self) -> bool:
        """As with `PersistedNode`."""
        return True


def _attribute(value: Any, name: str) -> Any:
    # The node of a pickle holds the value itself.
    return value.attribute(name) if type(value) is Persisted else getattr(value, name)


class Reference(weakref.ref[Persisted]):
    """A weak reference that knows which chunk of which graph it is about."""

    __slots__ = ("chunk", "graph")

    graph: int
    chunk: int


def watch(persisted: Persisted, when_gone: Callable[[Any], None]) -> Reference:
    """Have a function told when nobody refers to a kept chunk any more.

    Parameters
    ----------
    persisted : Persisted
        The chunk.
    when_gone : callable
        Is given the reference that is returned here. It may be called by any thread at any moment, even by one
        that holds a lock or is being interrupted, and so must run no Python code: the `append` of a deque will do.
    """
    reference = Reference(persisted, when_gone)
    reference.graph, reference.chunk = persisted.graph, persisted.chunk
    return reference


def value_of(chunk: Any) -> Any:
    """Return what a kept chunk or a future stands for; any other value as it is."""
    return resolved(chunk.result()) if type(chunk) is Persisted or isinstance(chunk, TaskRef) else chunk


def as_node(key: Hashable, value: Any) -> Any:
    """Return what stands for a value, or for a kept chunk, in the graph of a persisted collection.

    Any scheduler can compute with it. As under Dask's threads that is the value itself, where Dask would not take
    it for a task or a key.
    """
    if isinstance(value, TaskRef) and value.key == key:
        # So does distributed put its futures into graphs.
        return value
    if type(value) is Persisted:
        return PersistedNode(key, value_of, value)
    return _Value(key, value) if isinstance(value, _READ_BY_DASK) or _is_dask_future(value) else value


def as_data(key: Hashable, node: Any) -> Any:
    """Return a node that merely reads a kept chunk as the chunk itself; any other as it is."""
    return DataNode(key, node.args[0]) if type(node) is PersistedNode else node


def holds_persisted(value: Any) -> bool:
    """Say whether a list, tuple, set or dict has kept chunks in it, however deep."""
    if not _exist:
        return False
    stack, seen = [value], set()
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is Persisted:
            return True
        if kind in _CONTAINERS and id(item) not in seen:
            seen.add(id(item))
            stack += item.values() if kind is dict else item
    return False


_CONTAINERS = frozenset({list, tuple, set, dict})
#: In these Dask looks for keys and tasks.
_READ_BY_DASK = (str, tuple, list, set, frozenset, dict, GraphNode, TaskRef)

__all__ = [
    "Keeper",
    "Persisted",
    "PersistedNode",
    "Reference",
    "as_data",
    "as_node",
    "holds_persisted",
    "value_of",
    "watch",
]
