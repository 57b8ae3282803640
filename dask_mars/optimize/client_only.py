"""Finds tasks that must run in the user's process, because their objects live there.

Elsewhere a task that stores into the user's array or in-memory store would write into a copy, and the data would
be lost silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dask.utils import SerializableLock

from dask_mars.dask_api.core import Alias, DataNode, Task, TaskRef, original_of
from dask_mars.dask_api.loaded import arrays
from dask_mars.graph.callables import package_of
from dask_mars.optimize.known import FILE_SYSTEM_STORES, LOCAL_STORES, OBJECT_STORES, unfolded

#: Names of the tasks by which Dask and dask-array assemble a collection's result from its chunks.
_FINALIZE = ("finalize-hlgfinalizecompute", "finalizecomputearray-", "compositefinalizecompute-")


def is_shared_target(target: Any) -> bool:
    """Return whether writes from another process reach the user's store."""
    # Only targets addressed by a path or a URL qualify: a Zarr array that is not held in memory.
    if package_of(type(target)) != "zarr":
        return False
    store = getattr(target, "store", None)
    known = LOCAL_STORES | FILE_SYSTEM_STORES | OBJECT_STORES
    return type(store).__name__ in known and not _is_memory_filesystem(store)


def _is_memory_filesystem(store: Any) -> bool:
    filesystem = getattr(store, "fs", None)
    protocol = getattr(filesystem, "protocol", ())
    protocols = (protocol,) if isinstance(protocol, str) else tuple(protocol or ())
    return "memory" in protocols or "MemoryStore" in type(getattr(store, "store", None)).__name__


def is_client_store(task: Any, inner: Mapping[Any, Any], outer: Mapping[Any, Any], dsk: Mapping[Any, Any]) -> bool:
    """Return whether a task of a fused inner graph stores a chunk into an object of the user's process."""
    if not (isinstance(task, Task) and original_of(task.func) is arrays.load_store_chunk and len(task.args) > 1):
        return False
    target = _resolve(task.args[1], inner, outer, dsk)
    return not is_shared_target(target.value if isinstance(target, DataNode) else target)


def is_locked_store(task: Any) -> bool:
    """Return whether a task of a fused inner graph stores a chunk under one of Dask's locks."""
    if not (isinstance(task, Task) and original_of(task.func) is arrays.load_store_chunk):
        return False
    given = [*task.args, *task.kwargs.values()]
    return any(isinstance(getattr(value, "value", value), SerializableLock) for value in given)


def target_key(task: Task, inner: Mapping[Any, Any], outer: Mapping[Any, Any]) -> Any:
    """Return the key of the task that makes the target of a storing task, or None if the target is given."""
    # The maker has to run where the stores do, as they must write into its result and not into copies.
    target = _resolve(task.args[1], inner, outer)
    return target.key if isinstance(target, TaskRef) else getattr(target, "target", None)


def _resolve(target: Any, *scopes: Mapping[Any, Any]) -> Any:
    """Follow a reference through graphs, each nested in the next."""
    for scope in scopes:
        if isinstance(target, TaskRef):
            target = scope.get(target.key, target)
        elif isinstance(target, Alias):
            target = scope.get(target.target, target)
    return target


def assembles_result(key: Any) -> bool:
    """Return whether a key belongs to the task by which Dask assembles a collection's result."""
    # Such a task runs in the user's process; elsewhere its result would be copied twice more.
    return type(key) is str and key.startswith(_FINALIZE)


def stores_chunk(functions: Iterable[Callable[..., Any]]) -> bool:
    """Return whether a program writes into, or reads from, the target of a `da.store`."""
    return any(value is arrays.load_store_chunk or value is arrays.load_chunk for value in unfolded(functions))


def stores_in_client(
    functions: Iterable[Callable[..., Any]],
    literals: Sequence[Any],
    input_keys: Sequence[Any],
    dsk: Mapping[Any, Any],
) -> bool:
    """Return whether a program for which `stores_chunk` holds has to run in the user's process."""
    given = (node.value for name in input_keys if isinstance(node := dsk.get(name), DataNode))
    return not any(is_shared_target(target) for target in (*literals, *unfolded(functions), *given))
