"""Shuffles that Dask would have its workers do among themselves ("p2p"): those of threads, through the store."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import dask
import pytest

from dask_mars.dask_api.core import Task, TaskRef
from dask_mars.optimize.prepare import PrepareOptions, prepare
from dask_mars.optimize.shuffle import Shuffles
from dask_mars.worker.shuffle import map_frame, reduce_frame
from studies.graphs import handed_over
from tests.engine.test_shuffle import ROWS, frame

pd = pytest.importorskip("pandas")
dd = pytest.importorskip("dask.dataframe")
pytest.importorskip("distributed")

#: Parts of the names of operands that only Dask's workers run.
DASKS = ("_transfer", "unpack", "call_node", "barrier")


def rows() -> Any:
    return dd.from_pandas(frame().assign(order=range(ROWS)), npartitions=4)


def others(*columns: str) -> Any:
    chosen = frame()[:150].assign(other=lambda known: known.small * 1.0)
    return dd.from_pandas(chosen[[*columns]], npartitions=2).clear_divisions()


def joined(how: str, **options: Any) -> Any:
    return rows().merge(others("key", "other"), how=how, broadcast=False, **(options or {"on": "key"}))


SHUFFLES: dict[str, Callable[[], Any]] = {
    "shuffle": lambda: rows().shuffle("key"),
    "by several": lambda: rows().shuffle(["small", "category"], npartitions=2),
    "by the index": lambda: rows().shuffle(on_index=True),
    "set_index of moments": lambda: rows().set_index("moment", npartitions=3),
    "set_index of text": lambda: rows().set_index("text"),
    "apply": lambda: (
        rows().groupby("key").apply(lambda group: group.x.max(), include_groups=False, meta=("x", "f8"))
    ),
    "some partitions": lambda: rows().shuffle("key", npartitions=6).partitions[1:3],
    "nothing left": lambda: rows()[rows().x < 0].shuffle("key"),
    "twice": lambda: rows().shuffle("small").assign(new=1).shuffle("key"),
    "joins in a row": lambda: joined("inner").merge(others("text", "other"), on="text", broadcast=False),
    "join of categories": lambda: rows()[["category", "x"]].merge(
        others("category"), on="category", broadcast=False
    ),
    "join of indices": lambda: (
        rows().clear_divisions().merge(others("other"), left_index=True, right_index=True, broadcast=False)
    ),
    "join with an index": lambda: rows().merge(
        others("other"), left_on="order", right_index=True, how="left", broadcast=False
    ),
    "join of nothing": lambda: rows()[rows().x < 0].merge(others("key", "text"), how="right", broadcast=False),
    "first partitions of a join": lambda: joined("left").partitions[:2],
    "others of a join": lambda: joined("inner").partitions[[3, 1]],
    "indicator": lambda: joined("outer", on="key", indicator=True, suffixes=("_l", "_r")),
    **{f"{how} join": lambda how=how: joined(how) for how in ("inner", "leftsemi")},
}


def made(name: str, method: str) -> Any:
    with dask.config.set({"dataframe.shuffle.method": method}):
        return SHUFFLES[name]().optimize()


def names_of(*handed: Any, **options: Any) -> set[str]:
    graph = prepare(*handed, PrepareOptions(**options))
    return {graph.operands[operand].name for operand in graph.operand_of if operand >= 0}


def are_dasks(names: set[str]) -> bool:
    return any(part in name for name in names for part in DASKS)


def in_order(found: Any) -> Any:
    found = found.to_frame() if found.ndim == 1 else found
    # The index of joins numbers the rows of each partition.
    found = found.reset_index(drop=found.index.name is None)
    return found.sort_values(list(found.columns), key=lambda column: column.astype(str), ignore_index=True)


@pytest.mark.parametrize("name", SHUFFLES)
def test_results_are_those_of_threads(get, name):
    assert not are_dasks(names_of(*handed_over(made(name, "p2p"))))
    ours = made(name, "p2p").compute(scheduler=get)
    theirs = made(name, "disk").compute(scheduler="threads")
    assert type(ours) is type(theirs)
    assert ours.attrs == theirs.attrs
    pd.testing.assert_index_equal(ours.index[:0], theirs.index[:0])
    pd.testing.assert_frame_equal(in_order(ours), in_order(theirs))


def test_graphs_of_tasks(get):
    collection = made("shuffle", "p2p")
    parts = get(dict(collection.dask), collection.__dask_keys__())
    theirs = made("shuffle", "disk").compute(scheduler="threads")
    pd.testing.assert_frame_equal(in_order(pd.concat(parts)), in_order(theirs))


def graph_of(name: str) -> tuple[dict[Any, Any], list[Any], str]:
    """Return the tasks of a shuffle, their wanted keys and the key of a barrier."""
    collection = made(name, "p2p")
    tasks = dict(collection.dask)
    barrier = next(key for key in tasks if isinstance(key, str) and key.startswith("shuffle-barrier"))
    return tasks, collection.__dask_keys__(), barrier


@pytest.mark.parametrize("name", ["shuffle", "inner join"])
def test_other_forms_stay_as_they_are(name):
    tasks, wanted, barrier = graph_of(name)
    node = tasks[barrier]
    assert not are_dasks(names_of(tasks, wanted))
    assert are_dasks(names_of(tasks, wanted, keep_shuffles=True))

    def changed(**specified: Any) -> Any:
        spec = dataclasses.replace(node.spec, **specified)
        return type(node)(barrier, node.func, *node.args, spec=spec)

    transfer = node.args[1].target
    others: list[Any] = [
        {barrier: changed(drop_column=False)},
        {barrier: changed(parts_out=[node.spec.npartitions])},
        {barrier: Task(barrier, node.func, *node.args)},
        {transfer: Task(transfer, max, 1, 2)},
    ]
    for other in others:
        assert are_dasks(names_of({**tasks, **other}, wanted))
    # The user wants to know what Dask's tasks return.
    for key in (transfer, barrier):
        assert are_dasks(names_of(tasks, [*wanted, key]))
        assert are_dasks(names_of(tasks, [key, *wanted]))
        assert are_dasks(names_of({**tasks, "read": Task("read", repr, TaskRef(key))}, [*wanted, "read"]))


def test_only_after_the_graph_of_such_a_shuffle_others_are_searched(monkeypatch):
    assert graph_of("shuffle")
    count = len(Shuffles().replacements)
    monkeypatch.delitem(sys.modules, "distributed.shuffle._shuffle")
    assert len(Shuffles().replacements) == count - 2


def test_the_column_goes_no_further_than_the_map():
    numbered = pd.DataFrame({"to": [1, 0, 1], "x": [5, 6, 7]})
    output = map_frame(numbered, "to", range(2), True)
    assert [output.part(number)[0].x.tolist() for number in range(2)] == [[6], [5, 7]]
    assert list(output.part(0)[0].columns) == ["x"]


def test_empty_partitions_are_copies():
    meta = pd.DataFrame({"x": [1.0]})[:0]
    empty = reduce_frame(0, meta)
    assert empty is not meta
    pd.testing.assert_frame_equal(empty, meta)
