"""Which tasks must run in the user's own process, because the objects they touch live there.

A task that writes into an array, or into an in-memory store, of the user would write into a copy if it ran
anywhere else, and nobody would notice that the data are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask._task_spec import Alias, DataNode, Task, TaskRef
from dask.array.core import load_chunk, load_store_chunk

#: Name of the task by which Dask assembles a collection's result from its chunks.
_FINALIZE = "finalize-hlgfinalizecompute"


def is_shared_target(target: Any) -> bool:
    """Say whether writes to a store from another process reach the store that the user has.

    Only targets known to be addressed by a path or a URL qualify: a Zarr array that is not held in memory.
    """
    store = getattr(target, "store", None)
    if store is None or type(target).__module__.partition(".")[0] != "zarr":
        return False
    if isinstance(store, dict):
        return False
    name = type(store).__name__
    return name in {
        "LocalStore",
        "FsspecStore",
        "ObjectStore",
        "DirectoryStore",
        "NestedDirectoryStore",
        "FSStore",
    } and not _is_memory_filesystem(store)


def _is_memory_filesystem(store: Any) -> bool:
    filesystem = getattr(store, "fs", None)
    protocol = getattr(filesystem, "protocol", ())
    protocols = (protocol,) if isinstance(protocol, str) else tuple(protocol or ())
    return "memory" in protocols or "MemoryStore" in type(getattr(store, "store", None)).__name__


def is_client_store(task: Any, inner: Mapping[Any, Any], outer: Mapping[Any, Any], dsk: Mapping[Any, Any]) -> bool:
    """Say whether a task of a fused inner graph stores a chunk into an object of the user's process."""
    if not (isinstance(task, Task) and task.func is load_store_chunk and len(task.args) > 1):
        return False
    target = task.args[1]
    for scope in (inner, outer, dsk):
        if isinstance(target, TaskRef):
            target = scope.get(target.key, target)
        elif isinstance(target, Alias):
            target = scope.get(target.target, target)
    return not is_shared_target(target.value if isinstance(target, DataNode) else target)


def must_run_in_client(
    key: Any,
    functions: Sequence[Callable[..., Any]],
    literals: Sequence[Any],
    input_keys: Sequence[Any],
    dsk: Mapping[Any, Any],
) -> bool:
    """Say whether a task has to run in the user's process.

    True for the task that assembles a collection's result, which would otherwise be copied twice more on its way,
    and for stores into what is not known to be shared between processes.
    """
    if type(key) is str and key.startswith(_FINALIZE):
        return True
    for function in functions:
        if function is load_store_chunk or function is load_chunk:
            targets = [
                *literals,
                *(node.value for name in input_keys if isinstance(node := dsk.get(name), DataNode)),
            ]
            return not any(is_shared_target(target) for target in targets)
    return False
