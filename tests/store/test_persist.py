"""Persisted collections: their chunks stay in the store, are read there, and go with the last reference."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest
from dask.array.utils import assert_eq
from dask.diagnostics import Profiler, ProgressBar
from dask.graph_manipulation import clone

import dask_mars
from dask_mars import Runtime
from dask_mars.errors import PersistedLost
from dask_mars.graph.chunks import DATA, flatten
from dask_mars.observe.drawing.picture import KNOWN, make_picture
from dask_mars.optimize.prepare import prepare
from dask_mars.store.persisted import PersistedChunk, value_of
from tests.background import in_background
from tests.conftest import eventually, shared, start_workers
from tests.constants import constants
from tests.tasks import large_array, linger

pytestmark = pytest.mark.usefixtures("by_value")
MIB = 1 << 20


def numbers(side: int = 400, chunk: int = 100) -> da.Array:
    """Return an array whose chunks, of 80 KB, are in the store."""
    return da.random.default_rng(3).random((side, side), chunks=chunk)


def kept_by(collection: Any) -> list[PersistedChunk]:
    """Return the stand-ins in a collection's graph."""
    nodes = dict(collection.__dask_graph__()).values()
    return [node.value for node in nodes if type(getattr(node, "value", None)) is PersistedChunk]


def on_disk(collection: Any) -> int:
    return sum(repr(chunk).endswith(" on disk>") for chunk in kept_by(collection))


def blocks(runtime: Runtime) -> dict[tuple[int, int], list[int]]:
    return runtime.engine()._blocks.counts


def is_empty(runtime: Runtime) -> bool:
    engine = runtime.engine()
    return eventually(lambda: not (engine._blocks.counts or engine._runs or engine._loop.machine.graphs))


@pytest.fixture(scope="module")
def known() -> np.ndarray:
    return numbers().compute(scheduler="threads")


# -- what is handed out, and when it goes -------------------------------------------------------------------------


def test_chunks_stay_in_the_store_until_the_last_reference_goes(runtime, known):
    x = numbers()
    persisted = x.persist(scheduler=runtime.get)
    assert (persisted.name, persisted.chunks, persisted.dtype) == (x.name, x.chunks, x.dtype)
    assert len(kept_by(persisted)) == 16
    assert len(blocks(runtime)) == 16
    part = persisted[:100]
    del persisted
    np.testing.assert_array_equal(part.compute(scheduler=runtime.get), known[:100])
    del part
    assert is_empty(runtime)


def test_nothing_is_computed_twice_or_sealed_again(runtime, tmp_path):
    def count(block: np.ndarray) -> np.ndarray:
        with open(tmp_path / "calls", "a") as file:
            file.write("x")
        return block * 1.0

    persisted = da.zeros((400, 400), chunks=100).map_blocks(count, dtype=float).persist(scheduler=runtime.get)
    calls = (tmp_path / "calls").read_text()
    before = {position: entry[1] for position, entry in blocks(runtime).items()}
    assert persisted.sum().compute(scheduler=runtime.get) == 0
    assert eventually(lambda: {position: entry[1] for position, entry in blocks(runtime).items()} == before)
    assert (tmp_path / "calls").read_text() == calls


@pytest.mark.parametrize(
    "how",
    [
        lambda x, runtime: x.persist(scheduler=runtime.get),
        lambda x, runtime: x.persist(scheduler="mars"),
        lambda x, runtime: x.persist(scheduler="mars", optimize_graph=False, num_workers=1),
        lambda x, runtime: dask.persist({"x": [x]}, scheduler=dask_mars.get)[0]["x"][0],
        lambda x, runtime: runtime.persist([x])[0],
    ],
)
def test_the_ways_to_ask_for_it(how, runtime, known):
    persisted = how(numbers(), runtime)
    assert len(kept_by(persisted)) == 16
    np.testing.assert_array_equal(persisted.compute(scheduler=runtime.get), known)


def test_it_is_explained(runtime):
    persisted = numbers().persist(scheduler=runtime.get)
    assert repr(kept_by(persisted)[0]) == f"<Persisted {(persisted.name, 0, 0)!r} 80,000 bytes in shared memory>"
    assert eventually(lambda: "16 chunks are persisted" in runtime.explain())
    assert "nothing is being computed" in runtime.explain()
    del persisted


# -- kinds of collections -----------------------------------------------------------------------------------------


def test_several_collections_at_once(runtime, known):
    array, bag, large, small = dask.persist(
        numbers(),
        db.range(40_000, npartitions=4).map(lambda number: number + 1),
        dask.delayed(np.arange)(100_000),
        dask.delayed(len)("abc"),
        scheduler=runtime.get,
    )
    assert len(kept_by(array)) == 16
    assert len(kept_by(bag)) == 4
    assert len(kept_by(large)) == 1
    # What is small is in the graph itself.
    assert not kept_by(small)
    assert np.isclose(array.sum().compute(scheduler=runtime.get), known.sum())
    assert bag.sum().compute(scheduler=runtime.get) == 40_000 * 40_001 // 2
    assert large.sum().compute(scheduler=runtime.get) == 99_999 * 50_000
    assert small.compute(scheduler=runtime.get) == 3
    del array, bag, large
    assert is_empty(runtime)


def test_values_of_the_users_process_stay_there(runtime):
    lock = threading.Lock()
    here = dask.delayed(lambda: (lock, np.ones(10_000)))().persist(scheduler=runtime.get)
    assert not blocks(runtime)
    assert here[0].compute(scheduler=runtime.get) is lock


# -- what others find in the graph --------------------------------------------------------------------------------


def test_dasks_own_helper_compares_kept_and_small_chunks(runtime, known):
    assert_eq(numbers(), known, scheduler=runtime.get)
    assert_eq(da.ones(6, chunks=3) + 1, np.ones(6) + 1, scheduler=dask_mars.get)
    assert_eq(numbers().persist(scheduler=runtime.get), known)


def test_small_values_are_in_the_graph_as_they_are(runtime):
    array = da.arange(6, chunks=3).persist(scheduler=runtime.get)
    assert type(array.dask[(array.name, 1)]) is np.ndarray
    number = dask.delayed(int)(7).persist(scheduler=runtime.get)
    assert number.dask[number.key] == 7


@pytest.mark.parametrize("value", [(len, "abc"), "other", ["other"], {"other": "other"}, ("other", 0), {"other"}])
def test_what_dask_would_take_for_a_task_or_a_key_is_data(value, runtime):
    made = dask.delayed(lambda: value, pure=False)().persist(scheduler=runtime.get)
    assert made.compute(scheduler="threads") == value
    graph = {**made.dask, "other": 1, ("other", 0): 2}
    for get in (runtime.get, dask.get):
        assert get(graph, made.key) == value


def test_a_kept_chunk_looks_like_a_future_and_like_an_array(runtime, known):
    persisted = numbers().persist(scheduler=runtime.get)
    chunk = persisted.dask[(persisted.name, 1, 2)]
    assert (chunk.dtype, chunk.shape) == (np.dtype(float), (100, 100))
    np.testing.assert_array_equal(chunk.result(), known[100:200, 200:300])
    np.testing.assert_array_equal(chunk, known[100:200, 200:300])
    assert repr(chunk).startswith("<Persisted")
    masked = da.ma.masked_less(numbers(), 0.5).persist(scheduler=runtime.get)
    first = masked.dask[(masked.name, 0, 0)]
    assert (first.dtype, first.shape, type(first.result())) == (np.dtype(float), (100, 100), np.ma.MaskedArray)
    large = dask.delayed(bytes)(1_000_000).persist(scheduler=runtime.get)
    assert not hasattr(large.dask[large.key], "shape")


def test_what_is_on_disk_keeps_its_dtype_and_shape(small):
    persisted = numbers(1240, 155).persist(scheduler=small.get)
    assert eventually(lambda: on_disk(persisted), 10)
    for key in flatten(persisted.__dask_keys__()):
        chunk = persisted.dask[key]
        assert (chunk.dtype, chunk.shape) == (np.dtype(float), (155, 155))


def test_kept_chunks_that_dask_fuses_are_read_in_place(runtime, known):
    persisted = numbers().persist(scheduler=runtime.get)
    (optimised,) = dask.optimize((persisted + 1)[:150])
    graph = prepare(dask.base.collections_to_expr([optimised]), flatten(optimised.__dask_keys__()))
    assert sum(type(value) is PersistedChunk for value in graph.values.values()) == 8
    np.testing.assert_array_equal(optimised.compute(scheduler=runtime.get), known[:150] + 1)


# -- what is done with them ---------------------------------------------------------------------------------------

USES: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "slices": lambda x: x[5:250:3, ::-1],
    "rechunked": lambda x: x.rechunk((400, 50)) + 1 if isinstance(x, da.Array) else x + 1,
    "lambda": lambda x: x.map_blocks(lambda block: block * 2) if isinstance(x, da.Array) else x * 2,
    "product": lambda x: x @ x.T,
    "moments": lambda x: (x - x.mean(axis=0)).std(),
    "index": lambda x: x[[3, 1, 399], 7],
}


@pytest.mark.parametrize("optimized", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_results_are_those_of_the_collection_itself(optimized, runtime, known):
    persisted = numbers().persist(scheduler=runtime.get)
    for use in USES.values():
        result = use(persisted).compute(scheduler=runtime.get, optimize_graph=optimized)
        np.testing.assert_allclose(result, use(known))


def test_pickles_hold_the_values(runtime, known):
    copy = pickle.loads(pickle.dumps(numbers().persist(scheduler=runtime.get)))
    assert is_empty(runtime)
    np.testing.assert_array_equal((copy + 1).compute(scheduler=runtime.get), known + 1)
    np.testing.assert_array_equal((copy + 1).compute(scheduler="threads"), known + 1)


def test_persisting_again_keeps_the_same_chunks(runtime):
    first = numbers().persist(scheduler=runtime.get)
    second = first.persist(scheduler=runtime.get)
    assert set(kept_by(first)) == set(kept_by(second))
    third = (first + 1).persist(scheduler=runtime.get)
    del first, second
    assert eventually(lambda: len(blocks(runtime)) == 16)
    assert third.min().compute(scheduler=runtime.get) > 1


def test_results_belong_to_the_user(runtime):
    whole = numbers(100).persist(scheduler=runtime.get)
    for result in (whole.compute(scheduler=runtime.get), kept_by(whole)[0].result()):
        assert result.max() < 5
        result[:] = 5
    assert whole.max().compute(scheduler=runtime.get) < 5


def test_tasks_write_into_copies(runtime, known):
    def halve(block: np.ndarray) -> np.ndarray:
        block /= 2
        return block

    persisted = numbers().persist(scheduler=runtime.get)
    halved = persisted.map_blocks(halve, dtype=float)
    np.testing.assert_array_equal(halved.compute(scheduler=runtime.get), known / 2)
    np.testing.assert_array_equal(persisted.compute(scheduler=runtime.get), known)


def test_chunks_within_arguments(runtime):
    def total(items: list[Any], extra: dict[str, Any]) -> float:
        return float(sum(item.sum() for item in items) + extra["more"][0].sum())

    (chunk,) = kept_by(dask.delayed(np.ones)(10_000).persist(scheduler=runtime.get))
    call = dask.delayed(total)
    assert call([chunk, chunk], {"more": (chunk,)}).compute(scheduler=runtime.get) == 30_000
    lock = threading.Lock()
    here = dask.delayed(lambda items: (lock, items[0].sum())[1])([chunk])
    assert here.compute(scheduler=runtime.get) == 10_000


class Box:
    def __init__(self, content: Any) -> None:
        self.content = content


def test_chunks_within_objects_travel_as_copies(runtime):
    (chunk,) = kept_by(dask.delayed(np.ones)(10_000).persist(scheduler=runtime.get))
    opened = dask.delayed(lambda box: float(box.content.sum()))(Box(chunk))
    assert opened.compute(scheduler=runtime.get) == 10_000


def test_graphs_with_nothing_to_run(runtime, known):
    persisted = numbers().persist(scheduler=runtime.get)
    key = (persisted.name, 1, 2)
    np.testing.assert_array_equal(runtime.get(persisted.dask, key), known[100:200, 200:300])
    values = runtime.get({**persisted.dask, "one": (len, "a")}, [key, "one"])
    np.testing.assert_array_equal(values[0], known[100:200, 200:300])


def test_callbacks_see_no_tasks_for_them(runtime, known, capsys):
    persisted = numbers().persist(scheduler=runtime.get)
    with Profiler() as profiler:
        persisted.sum().compute(scheduler=runtime.get)
    names = {result.key[0] for result in profiler.results if isinstance(result.key, tuple)}
    assert names
    assert persisted.name not in names
    profiler.clear()
    with ProgressBar():
        (persisted + 1).persist(scheduler=runtime.get)
    assert "100% Completed" in capsys.readouterr().out
    total = persisted.sum()
    cached = {(persisted.name, 0, 0): np.zeros((100, 100))}
    result = runtime.get(total.dask, total.__dask_keys__()[0], cache=cached)
    assert np.isclose(result, known.sum() - known[:100, :100].sum())


def test_in_pictures_they_are_known_values(runtime):
    total = numbers().persist(scheduler=runtime.get).sum()
    expression = dask.base.collections_to_expr([total]).optimize()
    for composed in (True, False):
        graph = prepare(expression, flatten(list(expression.__dask_keys__())), composed=composed)
        picture = make_picture("", graph, graph, 2, dask.utils.key_split)
        assert [node.kind for node in picture.nodes].count(KNOWN) == graph.operand_of.count(DATA) == 16


def test_in_a_task_it_is_as_with_dasks_own_schedulers(runtime, known):
    def nested() -> float:
        return float(numbers().persist(scheduler="mars").sum().compute(scheduler="mars"))

    assert np.isclose(dask.delayed(nested)().compute(scheduler=runtime.get), known.sum())


# -- what goes wrong ----------------------------------------------------------------------------------------------


def test_a_failing_task(runtime):
    def fail(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        if block_info[0]["chunk-location"] == (3, 3):
            raise ValueError("the last")
        return block + 1

    with pytest.raises(ValueError, match="the last"):
        numbers().map_blocks(fail, dtype=float).persist(scheduler=runtime.get)
    assert is_empty(runtime)


def test_interrupts_at_any_moment(runtime):
    array = numbers()
    interrupted = 0
    before = signal.getsignal(signal.SIGALRM)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    # In a callback of the collector, such as hypothesis has, an interrupt would be swallowed, and pytest would
    # keep it with all of its frames.
    gc.disable()
    try:
        for attempt in range(30):
            try:
                # NumPy may be interrupted while it has changed how it treats errors.
                with np.errstate():
                    signal.setitimer(signal.ITIMER_REAL, 0.001 * (1 + attempt % 30))
                    array.persist(scheduler=runtime.get)
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    assert interrupted
    assert is_empty(runtime)


def test_other_engines_read_copies_and_a_closed_runtime_has_lost_them(runtime, known):
    with Runtime(num_workers=1) as other:
        persisted = numbers().persist(scheduler=runtime.get)
        np.testing.assert_array_equal((persisted + 1).compute(scheduler=other.get), known + 1)
        assert is_empty(other)
        persisted = numbers().persist(scheduler=other.get)
    (first, *_) = kept_by(persisted)
    assert repr(first).endswith("bytes lost>")
    for scheduler in (runtime.get, "threads"):
        with pytest.raises(PersistedLost, match=r"the Runtime is closed.*persist the original collection again"):
            persisted.sum().compute(scheduler=scheduler)
    with pytest.raises(PersistedLost):
        first.result()


def test_a_forked_process_cannot_read_them(runtime):
    persisted = numbers().persist(scheduler=runtime.get)
    pid = os.fork()
    if not pid:
        status = 1
        try:
            kept_by(persisted)[0].result()
        except PersistedLost as error:
            status = 0 if "forked" in str(error) else 2
        finally:
            persisted = None
            gc.collect()
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(blocks(runtime)) == 16


def test_more_workers_do_not_cost_what_is_kept(monkeypatch):
    class Fake:
        def __init__(self, num_workers: int = 1) -> None:
            self.settings = self
            self.num_workers = num_workers
            self.has_persisted = num_workers == 2
            self.closed = False

        def engine(self) -> Fake:
            return self

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(dask_mars.runtimes, "Runtime", Fake)
    default = dask_mars.runtimes._Default()
    two, three = default.engine(2), default.engine(3)
    assert not two.closed
    two.has_persisted = False
    four = default.engine(4)
    assert two.closed
    assert three.closed
    assert default.engine(None).num_workers == 1
    four.has_persisted = True
    default.engine(5)
    default.close()
    assert four.closed


# -- garbage and threads ------------------------------------------------------------------------------------------


def test_references_go_in_any_thread_and_while_others_compute(runtime, known):
    persisted = [numbers().persist(scheduler=runtime.get) for _ in range(8)]
    kept = [kept_by(each) for each in persisted]
    del persisted

    def drop(chunks: list[PersistedChunk]) -> None:
        # A circle, which only the garbage collector finds, wherever it happens to run.
        chunks.append(chunks)  # type: ignore[arg-type]

    threads = [threading.Thread(target=drop, args=(kept.pop(),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert np.isclose((numbers() + 1).sum().compute(scheduler=runtime.get), (known + 1).sum())
    for thread in threads:
        thread.join()
    del threads, thread
    gc.collect()
    assert is_empty(runtime)


# -- memory -------------------------------------------------------------------------------------------------------


def test_values_that_are_put_into_the_store_count_there(small, spilled):
    engine = small.engine()
    arrays = [np.full(1 << 17, number, float) for number in range(12)]
    stored = [engine.put("given", [array, number]) for number, array in enumerate(arrays)]
    # Twelve MiB where there is room for eight.
    assert eventually(lambda: engine._blocks.stored_bytes <= 8 * MIB)
    for (kept, small_one), array, number in zip(stored, arrays, range(12), strict=True):
        assert type(kept) is PersistedChunk
        np.testing.assert_array_equal(value_of(kept), array)
        assert small_one == number
    engine._loop.machine.validate()
    with pytest.raises(TypeError, match="pickle"):
        engine.put("given", [arrays[0], (number for number in range(3))])
    del stored, kept
    assert is_empty(small)


def test_what_was_read_back_stays_as_long_as_somebody_reads_it(small, tmp_path):
    (kept,) = dask.persist(dask.delayed(large_array)(2, 7.0), scheduler=small.get)
    others = dask.persist(*[dask.delayed(large_array)(2) for _ in range(4)], scheduler=small.get)
    assert eventually(partial(on_disk, kept))
    del others
    # That it is needed more than once has it put back into the store.
    end = dask.delayed("{}/{}".format)(tmp_path, dask.delayed(np.size)(kept))
    alias = dask.delayed(linger)(str(tmp_path / "begun"), end, kept)
    zeros = dask.delayed(np.multiply)(alias, 0.0)
    reading = in_background(dask.compute, alias, zeros, scheduler=small.get)
    assert eventually((tmp_path / "begun").exists)
    others = dask.persist(*[dask.delayed(large_array)(2) for _ in range(6)], scheduler=small.get)
    assert eventually(lambda: sum(map(on_disk, others)) >= 3)
    (tmp_path / str(2 * MIB // 8)).touch()
    assert [set(array) for array in reading.result(100)] == [{7.0}, {0.0}]
    small.engine()._loop.machine.validate()


def test_what_was_read_back_is_not_written_again(small, written):
    begun, gate = threading.Event(), threading.Event()

    def take_most_of_the_store() -> None:
        dask.delayed(large_array)(7).compute(scheduler=small.get)
        assert eventually(lambda: not small.engine()._blocks.stored_bytes)

    def wait_here(size: int) -> float:
        begun.set()
        return float(gate.wait(100))

    (kept,) = dask.persist(dask.delayed(large_array)(2, 7.0), scheduler=small.get)
    take_most_of_the_store()
    # It cannot be pickled, so that no worker has anything of it meanwhile.
    last = dask.delayed(np.add)(kept, dask.delayed(wait_here)(dask.delayed(np.size)(kept)))
    reading = in_background(last.compute, scheduler=small.get)
    assert begun.wait(100)
    # What is in a worker's queue pins its inputs: the sum is given back a moment after its input was.
    machine = small.engine()._loop.machine
    assert eventually(lambda: not any(map(machine.dispatched_to, range(2))))
    assert small.engine()._blocks.stored_bytes == 2 * MIB
    take_most_of_the_store()
    gate.set()
    assert set(reading.result(100)) == {8.0}
    assert len(written) == 1


def test_one_and_a_half_times_the_store_summed_twice(small, spilled, monkeypatch):
    x = numbers(1240, 155)
    assert x.nbytes > 1.4 * 8 * MIB
    known = x.compute(scheduler="threads")
    engine = small.engine()
    peak = 0
    handle = engine._loop.machine.handle

    def watched(*arguments: Any) -> Any:
        nonlocal peak
        peak = max(peak, engine._blocks.stored_bytes)
        return handle(*arguments)

    monkeypatch.setattr(engine._loop.machine, "handle", watched)
    persisted = x.persist(scheduler=small.get)
    assert eventually(partial(on_disk, persisted))
    assert on_disk(persisted) < 64
    assert eventually(lambda: engine._blocks.stored_bytes <= 8 * MIB)
    for _ in range(2):
        assert np.isclose(persisted.sum().compute(scheduler=small.get), known.sum())
    np.testing.assert_allclose((persisted + persisted.T).compute(scheduler=small.get), known + known.T)
    np.testing.assert_array_equal(persisted.compute(scheduler=small.get), known)
    np.testing.assert_array_equal(persisted.compute(scheduler="threads"), known)
    # What workers report in one message may come to a few chunks more.
    assert peak <= 8 * MIB * 1.1
    engine._loop.machine.validate()
    del persisted
    assert is_empty(small)
    assert eventually(lambda: not engine._blocks._files)
    # A thread of its own removes them.
    assert eventually(lambda: not [path for path in spilled.rglob("*") if path.is_file()])


@pytest.fixture(scope="module")
def storing() -> Iterator[Runtime]:
    """Yield a runtime that stores all values, however small."""
    with constants(inline_bytes=0):
        runtime = Runtime(num_workers=1)
        with runtime:
            start_workers(runtime)
            with shared(runtime):
                yield runtime


@pytest.mark.slow
def test_kept_chunks_of_the_same_key_are_the_same_to_dask(storing):
    pandas = pytest.importorskip("pandas")
    frames = pytest.importorskip("dask.dataframe")
    frame = frames.from_pandas(pandas.DataFrame({"a": range(6)}), npartitions=2) + 1
    array = da.arange(6, chunks=3)
    first, one = dask.persist(frame, array, scheduler=storing.get)
    second, other = dask.persist(frame, array + 1, scheduler=storing.get, optimize_graph=False)
    assert first._name == second._name
    results = dask.compute(first, one, second, other, scheduler=storing.get)
    assert [type(result).__name__ for result in results] == ["DataFrame", "ndarray"] * 2


@pytest.mark.parametrize("inlines", [False, True])
def test_clones_have_other_keys(storing, runtime, inlines):
    ours = runtime.get if inlines else storing.get
    array = clone(da.arange(12, chunks=4).persist(scheduler=ours))
    bag = clone(db.range(6, 2).map(lambda number: [number]).persist(scheduler=ours))
    # The optimiser of bags makes tasks anew before `from_delayed` optimises a second time.
    kept = clone(db.range(6, 2).persist(scheduler=ours))
    halves = db.from_delayed([kept.map(lambda number: 2 * number).to_delayed()[0]])
    for get in (ours, "threads"):
        assert (array + 1).sum().compute(scheduler=get) == 78
        assert dask.optimize(array[2:3] + 1)[0].compute(scheduler=get) == [3]
        assert bag.map(sum).compute(scheduler=get) == [*range(6)]
        assert bag.max().to_delayed().compute(scheduler=get) == [5]
        assert dask.compute(kept, halves, scheduler=get) == ([*range(6)], [0, 2, 4])


def test_what_stands_for_a_kept_chunk_can_be_copied_renamed_and_pickled(storing):
    kept = da.arange(4, chunks=4).persist(scheduler=storing.get)
    (node,) = kept.dask.values()
    for same in (node.copy(), node.substitute({}, key=("other", 0)), pickle.loads(pickle.dumps(node))):
        assert (same.block_fusion, same.dependencies, same.shape) == (True, frozenset(), (4,))
        np.testing.assert_array_equal(same({}), np.arange(4))
    assert node.substitute({}) is node


WITH_ARRAY_EXPRESSIONS = """
import sys
import dask
dask.config.set({"array.query-planning": True})
import dask.array as da, numpy as np
import dask_mars
from dask_mars.store.store import Store

assert "_array_expr" in da.Array.__module__
x = da.from_array(np.arange(90_000.0).reshape(300, 300), chunks=150) + 1
x.sum().compute(scheduler=dask_mars.get)
# One machine does without it.
assert "distributed" not in sys.modules
known = x.persist(scheduler="threads")
persisted = x.persist(scheduler=dask_mars.get)
load_copy, loaded = Store.load_copy, []
Store.load_copy = lambda store, ref: loaded.append(ref) or load_copy(store, ref)
graph, blocks = persisted.dask, dict(persisted.__dask_graph__())
assert [key[1:] for key in blocks] == [key[1:] for key in dict(known.__dask_graph__())]
assert {key[0] for key in blocks} == {persisted.name}
for key, block in blocks.items():
    assert (np.shape(graph[key]), block.dtype) == ((150, 150), np.dtype(float))
assert not loaded
for key, other in dict(known.__dask_graph__()).items():
    np.testing.assert_array_equal(graph[(persisted.name, *key[1:])], other)
assert len(loaded) == 4
total = float(known.sum().compute(scheduler="threads"))
for scheduler in (dask_mars.get, "threads", "sync", dask_mars.get):
    assert float(persisted.sum().compute(scheduler=scheduler)) == total
    assert float((persisted + 1)[:10].sum().compute(scheduler=scheduler)) == float((x + 1)[:10].sum().compute())
again = persisted.persist(scheduler=dask_mars.get)
np.testing.assert_array_equal(again.compute(scheduler=dask_mars.get), known.compute())
print("equal")
# It lives until the interpreter ends, of which nothing is said.
da.kept = persisted
"""


@pytest.mark.slow
def test_blocks_in_graphs_of_array_expressions_are_data_until_the_interpreter_ends(scripts):
    done = scripts.run(str(scripts.write("expressions.py", WITH_ARRAY_EXPRESSIONS)))
    assert (done.stderr, done.stdout, done.returncode) == ("", "equal\n", 0)
