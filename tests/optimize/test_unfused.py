"""Graphs made without Dask's fusion: the setting is for all threads, and is put back."""

from __future__ import annotations

import os
import threading
from typing import Any

import dask
import dask.array as da
import pytest

from dask_mars.optimize.fronts.tasks import _unfused, unfused_graph


def expression(collection: Any) -> Any:
    return dask.base.collections_to_expr([collection], optimize_graph=True).optimize()


def fusion() -> tuple[Any, Any]:
    return dask.config.get("optimization.fuse.active"), dask.config.get("optimization.annotations.fuse")


class Graph:
    """Has its graph when it is told to go on."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def __dask_graph__(self) -> dict[Any, Any]:
        self.begun.set()
        assert self.goes_on.wait(100)
        return {}


def test_each_task_has_its_own_key() -> None:
    y = da.arange(8, chunks=4)[::2] + 1
    fused = expression(y).__dask_graph__()
    assert len(unfused_graph(expression(y))) > len(fused)


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_the_setting_is_put_back_when_the_last_of_several_ends(first_to_end: int) -> None:
    before = fusion()
    graphs = [Graph(), Graph()]
    threads = [threading.Thread(target=_unfused, args=(graph,)) for graph in graphs]
    for thread, graph in zip(threads, graphs, strict=True):
        thread.start()
        assert graph.begun.wait(100)
    for number in (first_to_end, 1 - first_to_end):
        assert fusion() == (False, False)
        graphs[number].goes_on.set()
        threads[number].join(100)
    assert fusion() == before


def test_a_forked_process_finds_the_setting_as_it_was() -> None:
    before = fusion()
    graph = Graph()
    thread = threading.Thread(target=_unfused, args=(graph,))
    thread.start()
    assert graph.begun.wait(100)
    child = os.fork()
    if not child:
        os._exit(fusion() != before or not unfused_graph(expression(da.ones(4, chunks=2))))
    _, status = os.waitpid(child, 0)
    graph.goes_on.set()
    thread.join(100)
    assert status == 0
    assert fusion() == before


def test_an_error_puts_it_back() -> None:
    class Broken:
        def __dask_graph__(self) -> None:
            raise ValueError("broken")

    before = fusion()
    with pytest.raises(ValueError, match="broken"):
        unfused_graph(Broken())
    assert fusion() == before
