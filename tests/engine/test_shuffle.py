"""Shuffles of dataframes and bags through the store: results, kills, and less memory than data."""

from __future__ import annotations

from typing import Any

import dask
import dask.bag as db
import numpy as np
import pytest
from dask.callbacks import Callback

from dask_mars import Runtime
from dask_mars.diagnostics import Listener, add_listener, remove_listener
from dask_mars.optimize.prepare import PrepareOptions, prepare
from dask_mars.scheduler.events import ChunksFinished, ChunksRestored, MemoryMeasured, ObjectSpilled, Run, Spill
from dask_mars.worker.shuffle import map_bag, map_frame, reduce_bag, reduce_frame
from studies.graphs import handed_over
from tests.conftest import limit_with_room
from tests.machines import CheckedMachine
from tests.tasks import die_first, notes

pd = pytest.importorskip("pandas")
dd = pytest.importorskip("dask.dataframe")

MIB = 1 << 20
ROWS = 600


def frame() -> Any:
    """Return a dataframe with columns of many kinds."""
    rng = np.random.default_rng(1)
    letters = rng.choice(list("abcdefg"), ROWS)
    return pd.DataFrame(
        {
            "key": rng.integers(0, 40, ROWS),
            "x": rng.random(ROWS),
            "small": rng.integers(0, 9, ROWS).astype("i1"),
            "text": letters,
            "object": pd.Series([(letter, number) for number, letter in enumerate(letters)], dtype=object),
            "category": pd.Categorical(letters),
            "moment": pd.date_range("2020", periods=ROWS, freq="h"),
            "zoned": pd.date_range("2020", periods=ROWS, freq="h", tz="Europe/Berlin"),
            "maybe": pd.array(np.where(rng.random(ROWS) > 0.5, 1, 2), dtype="Int64"),
            "nan": np.where(rng.random(ROWS) > 0.7, np.nan, 1.5),
        },
        index=pd.Index(rng.permutation(ROWS), name="row"),
    )


def operands_of(collection: Any, **options: Any) -> list[str]:
    graph = prepare(*handed_over(collection), PrepareOptions(**options))
    return [graph.operands[operand].name for operand in graph.operand_of if operand >= 0]


# -- the graph ------------------------------------------------------------------------------------------------


def test_there_are_as_many_operands_as_partitions_before_and_after():
    names = operands_of(dd.from_pandas(frame(), npartitions=5).shuffle("key", npartitions=7))
    assert sum("map_frame" in name for name in names) == 5
    assert sum("reduce_frame" in name for name in names) == 7
    assert not any("barrier" in name or "partd" in name for name in names)


def test_bags_too():
    names = operands_of(db.from_sequence(range(20), npartitions=4).groupby(lambda item: item % 3, npartitions=2))
    assert names.count("map_bag") == 4
    assert sum("reduce_bag" in name for name in names) == 2


def test_shuffles_by_tasks_keep_groups_in_the_store():
    shuffled = dd.from_pandas(frame(), npartitions=5).shuffle("key", shuffle_method="tasks")
    names = operands_of(shuffled)
    assert len(names) == 11
    assert sum("split_frame" in name for name in names) == sum("pieces" in name for name in names) == 5
    # The user wants to know what Dask's tasks return.
    tasks, wanted = dict(shuffled.optimize().dask), shuffled.optimize().__dask_keys__()
    for key in tasks:
        if str(key[0]).startswith(("group", "split")):
            graph = prepare(tasks, [*wanted, key], PrepareOptions())
            assert any("_shuffle_group" in operand.name for operand in graph.operands)


def test_the_user_may_keep_files():
    on_files = operands_of(dd.from_pandas(frame(), npartitions=5).shuffle("key"), keep_shuffles=True)
    assert sum("collect" in name for name in on_files) == 5


def test_whoever_says_how_to_compress_files_gets_files():
    with dask.config.set({"dataframe.shuffle.compression": "Snappy"}):
        names = operands_of(dd.from_pandas(frame(), npartitions=3).shuffle("key"))
    assert sum("collect" in name for name in names) == 3


def test_several_in_one_graph():
    left = dd.from_pandas(frame(), npartitions=4)
    right = dd.from_pandas(frame()[["key", "x"]].rename(columns={"x": "y"}), npartitions=3)
    names = operands_of(left.merge(right, on="key").shuffle("small"))
    assert sum("map_frame" in name for name in names) > 7
    assert not any("collect" in name or "_shuffle_group" in name for name in names)


# -- results --------------------------------------------------------------------------------------------------


def test_rows_come_in_the_order_of_the_partitions(get):
    collection = dd.from_pandas(frame().reset_index(drop=True), npartitions=5).shuffle("key", npartitions=3)
    expected = dask.compute(*collection.to_delayed(), scheduler="threads")
    for part, theirs in zip(dask.compute(*collection.to_delayed(), scheduler=get), expected, strict=True):
        assert part.index.is_monotonic_increasing
        pd.testing.assert_frame_equal(part, theirs.sort_index())


BY_TASKS = {
    "shuffle": lambda rows: rows.shuffle("key", npartitions=3, shuffle_method="tasks"),
    "more partitions": lambda rows: rows.shuffle("key", npartitions=9, shuffle_method="tasks"),
    "without an index": lambda rows: rows.shuffle("key", shuffle_method="tasks", ignore_index=True),
    "by the index": lambda rows: rows.shuffle(on_index=True, shuffle_method="tasks"),
    "some partitions": lambda rows: rows.shuffle("key", shuffle_method="tasks").partitions[1:3],
    "in stages": lambda rows: rows.repartition(npartitions=34).shuffle(
        "key", npartitions=35, shuffle_method="tasks"
    ),
    "mapped": lambda rows: rows.shuffle("key", shuffle_method="tasks").map_partitions(
        lambda part: part.assign(x=part.x.to_numpy() + 1)
    ),
    "written into": lambda rows: rows.partitions[:1].shuffle("key", shuffle_method="tasks").map_partitions(marked),
    "drop_duplicates": lambda rows: rows[["small", "text"]].drop_duplicates(),
    "nunique": lambda rows: rows.key.nunique(),
    "groupby": lambda rows: rows.groupby("key").agg({"x": "sum"}, split_out=3, shuffle_method="tasks"),
    "nothing left": lambda rows: rows[rows.x < 0].shuffle("key", shuffle_method="tasks"),
}


def marked(part: Any) -> Any:
    """Write into a frame's memory."""
    if len(part):
        part["x"].array._ndarray[:1] = -1
    return part


@pytest.mark.parametrize("name", BY_TASKS)
def test_shuffles_by_tasks_return_what_threads_do(get, name):
    collection = BY_TASKS[name](dd.from_pandas(frame(), npartitions=5))
    theirs, ours = collection.compute(scheduler="threads"), collection.compute(scheduler=get)
    assert type(ours) is type(theirs)
    if isinstance(theirs, pd.DataFrame):
        pd.testing.assert_frame_equal(ours, theirs)
        assert ours.attrs == theirs.attrs
    else:
        assert ours == theirs


def test_groups_of_bags_are_those_of_threads(get):
    bag = db.from_sequence(range(300), npartitions=5).map(lambda item: (item, str(item)))
    groups = bag.groupby(lambda pair: pair[0] % 7, npartitions=4)
    found = groups.compute(scheduler=get)
    assert {key: [number for number, _ in items] for key, items in found} == {
        key: list(range(key, 300, 7)) for key in range(7)
    }
    assert sorted(key for key, _ in found) == sorted(key for key, _ in groups.compute(scheduler="threads"))


def test_callbacks_see_a_whole_computation(get):
    seen: dict[str, int] = {}

    class Count(Callback):
        def _start_state(self, dsk: Any, state: Any) -> None:
            seen["before"] = sum(len(state[kind]) for kind in ("ready", "waiting"))

        def _posttask(self, *_: Any) -> None:
            seen["done"] = seen.get("done", 0) + 1

        def _finish(self, dsk: Any, state: Any, failed: bool) -> None:
            seen["after"] = sum(len(state[kind]) for kind in ("ready", "waiting", "running"))

    with Count():
        dd.from_pandas(frame(), npartitions=3).shuffle("key").compute(scheduler=get)
    assert seen["done"] >= seen["before"] > 0
    assert seen["after"] == 0


# -- kinds of parts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["i1", "u2", "f8", "Int64", object])
def test_rows_go_by_a_column_of_any_kind(kind):
    numbered = pd.DataFrame({"to": pd.array([3, 1, 3, 0, 7], dtype=kind), "x": range(5)})
    output = map_frame(numbered, "to", range(4))
    assert output.reducers == [0, 1, 3]
    assert reduce_frame(2, numbered[:0], output).equals(numbered[:0])
    assert reduce_frame(3, None, output, output).x.tolist() == [0, 2, 0, 2]


def test_rows_without_a_reducer_are_left_out():
    output = map_frame(pd.DataFrame({"to": [1.0, np.nan, 0.5, 2.0]}), "to", [2, 1])
    assert output.reducers == [1, 2]
    assert [len(output.part(reducer)[0]) for reducer in (1, 2)] == [1, 1]


@pytest.mark.parametrize("numbers", [[0, 255], [0, 256], [3, 65_535], [3, 65_536], [-1, 2]])
def test_rows_keep_their_order_whatever_the_numbers(numbers):
    few, many = numbers
    rows = pd.DataFrame({"to": [many, few, 1, many, few], "x": range(5)})
    output = map_frame(rows, "to", [few, many])
    assert output.reducers == numbers
    assert [output.part(number)[0].x.tolist() for number in numbers] == [[1, 4], [0, 3]]


def test_large_parts_are_those_of_small_ones():
    rng = np.random.default_rng(0)
    large = pd.DataFrame({"to": rng.integers(0, 3, 20_000), "x": rng.random(20_000)})
    for reducer in range(3):
        found = reduce_frame(reducer, None, map_frame(large, "to", range(3)))
        pd.testing.assert_frame_equal(found, large[large.to == reducer])


def test_items_keep_their_types():
    output = map_bag(lambda item: item[0], [(1, "a"), (2, None), (1, {"b"})], 1, 2)
    assert dict(reduce_bag(lambda item: item[0], 0, output)) == {1: [(1, "a"), (1, {"b"})], 2: [(2, None)]}


# -- trouble --------------------------------------------------------------------------------------------------


def test_a_shuffle_survives_the_death_of_workers(tmp_path):
    def grouper(item: int) -> int:
        if item == 5:
            die_first(tmp_path / "deaths", 1, item)
        return item % 2

    bag = db.from_sequence(range(8), npartitions=2)
    with Runtime(num_workers=2) as runtime:
        groups = dict(bag.groupby(grouper).compute(scheduler=runtime.get))
    assert {key: sorted(items) for key, items in groups.items()} == {0: [0, 2, 4, 6], 1: [1, 3, 5, 7]}
    # The one that died, the map that was tried again, and the reducer.
    assert len(notes(tmp_path / "deaths")) == 3


class Heard(Listener):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_event(self, engine: Any, event: Any) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def made(number: int, rows: int) -> Any:
    rng = np.random.default_rng(number)
    return pd.DataFrame({"key": rng.integers(0, 1000, rows), "x": rng.random(rows), "y": rng.random(rows)})


@pytest.mark.slow
def test_more_than_the_store_holds(tmp_path):
    rows = MIB // 24
    collection = dd.from_map(made, range(12), rows=rows, meta=made(0, 1)).shuffle("key")
    sums = collection.map_partitions(lambda part: part[["x", "y"]].sum().to_frame().T, meta={"x": "f8", "y": "f8"})
    listener = Heard()
    limits = {"dask-mars.spill-directory": str(tmp_path), "dask-mars.store-limit": 8 * MIB}
    with dask.config.set(limits), Runtime(num_workers=2, memory_limit=limit_with_room(768 * MIB, 2)) as runtime:
        add_listener(listener)
        try:
            found = sums.compute(scheduler=runtime.get)
        finally:
            remove_listener(listener)
        engine = runtime.engine()
        engine._commands.call(engine._loop.machine.validate)
        assert not engine._blocks._files
    expected = sum(made(number, rows)[["x", "y"]].sum() for number in range(12))
    np.testing.assert_allclose(found.sum(), expected)
    maps = {chunk for event in listener.of(ChunksFinished) for chunk in event.map_outputs}
    assert len(maps) == 12
    assert len({event.object for event in listener.of(ObjectSpilled)}) > 2
    restored = {chunk for event in listener.of(ChunksRestored) for chunk in event.chunks}
    assert not restored & maps


def test_what_is_read_in_parts_is_never_restored():
    machine = CheckedMachine(store_limit=100, memory_limit=1000)
    seen = machine.submit((), (), (0, 1), (0, 1), outputs=[2, 3], run_ahead=False)
    for chunk in (0, 1):
        machine.post(MemoryMeasured(60, 100))
        seen += machine.post(ChunksFinished(0, 1, [chunk], [1.0], {chunk: 60}, {chunk: 60}, map_outputs=[chunk]))
        seen += machine.post(ObjectSpilled((1, chunk), 60))
    # Both are on disk, of more bytes than the store holds, and the reducers run.
    for chunk in (2, 3):
        seen += machine.post(ChunksFinished(0, 1, [chunk], [1.0]))
    assert [each.objects for each in seen if isinstance(each, Spill)] == [[(1, 0)], [(1, 1)]]
    runs = [each for each in seen if isinstance(each, Run)]
    assert [chunk for run in runs for chunk in run.chunks] == [0, 1, 2, 3]
    assert not any(run.restores for run in runs)


def test_map_outputs_leave_room_before_reducers_need_it():
    machine = CheckedMachine(store_limit=1000, memory_limit=1000)
    machine.submit(*[()] * 8, tuple(range(8)), outputs=[8], run_ahead=False)
    spilled: list[Any] = []

    def post(event: Any) -> None:
        for instruction in machine.post(event):
            for id in instruction.objects if isinstance(instruction, Spill) else ():
                spilled.append(id)
                post(ObjectSpilled(id, 200))

    for chunk in range(8):
        machine.post(MemoryMeasured(200 * (chunk + 1 - len(spilled)), 1000))
        post(ChunksFinished(0, 1, [chunk], [1.0], {chunk: 200}, {chunk: 200}, map_outputs=[chunk]))
    # The first one that did not fit has had others written; from then on a quarter is kept free.
    assert 200 * (8 - len(spilled)) <= 750
    assert len(spilled) == len(set(spilled)) < 8
