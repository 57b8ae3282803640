"""Methods of a client that compute in the agents' engines, and go Dask's way where there are no agents.

Collections find them too: Dask computes by the `get` and persists by the `persist` of the current client.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MethodType
from typing import Any

import dask
from distributed import Client, Future

from dask_mars.client.request import Options, Request, checkpoint_settings
from dask_mars.cluster.backend import ClusterBackend, is_in_task
from dask_mars.cluster.reconnection import latest
from dask_mars.dask_api.core import Alias, DataNode
from dask_mars.errors import NoAgents
from dask_mars.graph.chunks import ChunkGraph, Key, Operand, flatten
from dask_mars.optimize.client_only import assembles_result

#: Arguments that annotate all tasks of a call.
_ANNOTATIONS = ("workers", "allow_other_workers", "resources", "priority")
#: Other arguments that our way honours, or does not need. A call with more of them goes Dask's way.
_KNOWN = {*_ANNOTATIONS, "self", "collections", "dsk", "keys", "sync", "optimize_graph", "traverse", "retries"}
_KNOWN |= {"fifo_timeout", "direct"}
#: Types of arguments in which `Client.compute` looks for collections, and of those that are several ones.
_SEARCHED, _SEVERAL = (list, set, tuple, dict, Iterator), (list, tuple, set, frozenset)


def switch(client: Client) -> None:
    """Let `compute`, `persist` and `get` of a client use the agents' engines, while its cluster has agents."""
    for name, ours in _METHODS.items():
        setattr(client, name, _method(client, name, ours))


def switch_back(client: Client) -> None:
    """Let them go Dask's way again."""
    for name in _METHODS:
        vars(client).pop(name, None)


def _method(client: Client, name: str, ours: Callable[..., Any]) -> MethodType:
    """Return a method with the arguments of Dask's."""
    dasks = getattr(type(client), name)
    signature = inspect.signature(dasks)
    # Further ones of `Client.compute` are for Dask's own optimization; the others ignore them.
    known = _KNOWN if name == "compute" else _KNOWN | {"kwargs"}

    @functools.wraps(dasks)
    def method(client: Client, *args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(client, *args, **kwargs)
        except TypeError:
            # Dask's own message names its method.
            return dasks(client, *args, **kwargs)
        is_known = all(kind in known or not value for kind, value in given.arguments.items())
        backend = _backend(client) if is_known else None
        if backend is None:
            return dasks(client, *args, **kwargs)
        given.apply_defaults()
        told = given.arguments
        annotations = {kind: value for kind in _ANNOTATIONS if (value := told[kind])}
        if not isinstance(annotations.get("workers", []), _SEVERAL):
            annotations["workers"] = [annotations["workers"]]
        with dask.annotate(**annotations):
            return ours(backend, client, told, Options(retries=told["retries"] or None))

    return MethodType(method, client)


def _backend(client: Client) -> ClusterBackend | None:
    """Return the backend for a client's cluster; None if a call goes Dask's way."""
    if client.asynchronous or latest(client).status not in ("running", "connecting") or is_in_task():
        return None
    try:
        # The records of this process are in a module above this package.
        found: ClusterBackend = pkgutil.resolve_name("dask_mars.runtimes:cluster_for")(client)
    except NoAgents:
        return None
    return found


def _get(backend: ClusterBackend, client: Client, told: Mapping[str, Any], options: Options) -> Any:
    keys, dsk = told["keys"], told["dsk"]
    flat = list(flatten([keys]))
    if told["sync"]:
        found = backend.compute(Request(dsk, flat, options, checkpoint=checkpoint_settings()))
    else:
        found = _futures(backend, client, options, dsk, flat)
    return _replaced(keys, dict(zip(flat, found, strict=True)))


def _compute(backend: ClusterBackend, client: Client, told: Mapping[str, Any], options: Options) -> Any:
    given = told["collections"]
    collections = list(given) if isinstance(given, _SEVERAL) else [given]
    if told["traverse"]:
        collections = [dask.delayed(each) if isinstance(each, _SEARCHED) else each for each in collections]
    found = _called(dask.compute, collections, backend, client, told, options)
    results = client.gather(found) if told["sync"] else found
    return results if isinstance(given, _SEVERAL) else results[0]


def _persist(backend: ClusterBackend, client: Client, told: Mapping[str, Any], options: Options) -> Any:
    given = told["collections"]
    collections = given if isinstance(given, _SEVERAL) else [given]
    found = _called(dask.persist, collections, backend, client, told, options)
    return found if isinstance(given, _SEVERAL) else found[0]


def _called(
    function: Callable[..., Any],
    collections: Iterable[Any],
    backend: ClusterBackend,
    client: Client,
    told: Mapping[str, Any],
    options: Options,
) -> list[Any]:
    """Call `dask.compute` or `dask.persist` for futures."""
    scheduler = partial(_futures, backend, client, options)
    optimize = told["optimize_graph"]
    return list(function(*collections, traverse=False, optimize_graph=optimize, scheduler=scheduler))


_METHODS = {"compute": _compute, "persist": _persist, "get": _get}


def _futures(
    backend: ClusterBackend, client: Client, options: Options, dsk: Any, keys: Sequence[Key], **others: Any
) -> list[Future]:
    """Return futures of keys in a graph; Dask's scheduler gets values of this process as tasks."""
    request = Request(dsk, list(keys), options, persist=True, on_graph=_assemble_there)
    found = dict(zip(keys, backend.compute(request), strict=True))
    tasks = {key: _task(key, node) for key, node in found.items() if not isinstance(node, Future)}
    if tasks:
        futures = type(client).get(latest(client), tasks, list(tasks), sync=False)
        found.update(zip(tasks, futures, strict=True))
    return [found[key] for key in keys]


def _task(key: Key, node: Any) -> Any:
    value = node.value if isinstance(node, DataNode) else node
    return Alias(key, value.key) if isinstance(value, Future) else DataNode(key, value)


def _assemble_there(graph: ChunkGraph) -> None:
    """Let the cluster assemble results, which stay there."""
    for chunk in graph.outputs:
        operand = graph.operands[graph.operand_of[chunk]]
        if graph.operand_of[chunk] >= 0 and operand.in_client and assembles_result(graph.keys[chunk]):
            graph.operands[graph.operand_of[chunk]] = Operand(
                operand.name, operand.functions, operand.steps, operand.input_count, operand.literal_count
            )


def _replaced(keys: Any, found: Mapping[Key, Any]) -> Any:
    """Return values as `Client.get` does, which gives lists for lists of keys."""
    return [_replaced(key, found) for key in keys] if isinstance(keys, list) else found[keys]
