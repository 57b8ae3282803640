"""Arrays on expressions (`dask_array`): records of chunks instead of tasks, with the values of threads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import dask
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from dask_mars.dask_api import arrays
from dask_mars.graph.callables import called_by
from dask_mars.graph.chunks import layer_of
from dask_mars.optimize.convert import convert
from dask_mars.optimize.fronts import ReadOptions, symbolic_graph
from dask_mars.optimize.library_code import is_library_code
from dask_mars.optimize.passes import Limits
from dask_mars.optimize.passes.compose import compose
from dask_mars.optimize.prepare import PrepareOptions, prepare
from tests.array_expressions import dask_array
from tests.graphs import handed_over, symbolic
from tests.symbolic import evaluate, passed

da = dask_array()

HELD = np.random.default_rng(3).random((24, 18))


def held() -> Any:
    return da.from_array(HELD, chunks=(7, 5))


class Readable:
    """An object that is read by parts, such as a file."""

    shape, dtype, ndim = HELD.shape, HELD.dtype, HELD.ndim

    def __getitem__(self, index: Any) -> Any:
        return HELD[index]


def drawn() -> Any:
    return da.random.default_rng(5).random((24, 18), chunks=(7, 5))


SOURCES = (held, drawn)


def _made(value: int, by: float) -> Any:
    return np.full(((7, 5)[value > 2], 6), value * by)


def _with_block_info(block: Any, block_info: Any = None) -> Any:
    return block + block_info[0]["chunk-location"][0]


#: Kinds of expressions.
KINDS: dict[str, Any] = {
    "elementwise": lambda x: np.sqrt(x * 2 + 1) - x / 3,
    "of several shapes": lambda x: x + x[0] - x[:, :1],
    "transposed": lambda x: x.T + 1,
    "with its transpose": lambda x: x[:15, :15] + x[:15, :15].T,
    "where": lambda x: da.where(x > 0.5, x, -x),
    "masked": lambda x: np.add(x, 1, where=x > 0.5, out=da.zeros_like(x)),
    "cast": lambda x: x.astype("f4").round(2),
    "creation": lambda x: da.ones_like(x) + da.full(x.shape, 3, chunks=x.chunks) + da.zeros(18, chunks=5),
    "arange": lambda x: da.arange(18, chunks=5) * x,
    "linspace": lambda x: da.linspace(0, 1, 18, chunks=5) * x,
    "sum": lambda x: (x + 1).sum(),
    "mean": lambda x: x.mean(axis=0),
    "mean of more rows than columns": lambda x: (x[:, :9] + 1).mean(),
    "std": lambda x: x.std(axis=1, ddof=1, keepdims=True),
    "nanmean": lambda x: da.nanmean(da.where(x > 0.9, np.nan, x), axis=0),
    "nanstd": lambda x: da.nanstd(da.where(x > 0.9, np.nan, x)),
    "minmax": lambda x: x.max(axis=0) - x.min(axis=0),
    "argmax": lambda x: x.argmax(axis=1),
    "standardise": lambda x: (x - x.mean(axis=0)) / x.std(axis=0),
    "rechunk": lambda x: x.rechunk((24, 3)) * 2,
    "slices": lambda x: x[1:20:3, -4:2:-1] + 1,
    "shifted": lambda x: x[1:, 1:] - x[:-1, :-1],
    "integer": lambda x: x[3] + x[:, 2][0],
    "new axis": lambda x: x[:, None] + x[None],
    "fancy": lambda x: x[[4, 9, 20, 1]][:, [3, 1, 3]],
    "mask": lambda x: x[x > 0.5],
    "concatenate": lambda x: da.concatenate([x, x + 1], axis=1),
    "stack": lambda x: da.stack([x, x * 2]).sum(axis=0),
    "squeezed": lambda x: da.squeeze(x.rechunk(24)[:, :1].map_blocks(np.sqrt), axis=1),
    "broadcast": lambda x: da.broadcast_to(x[:1] + 1, (3, 24, 18), chunks=(2, 9, x.chunks[1])),
    "from_map": lambda x: da.from_map(_made, [[1, 2], [3, 4]], chunks=((7, 5), (6, 6)), by=2.5) * 2,
    "reshape": lambda x: x.reshape(4, 6, 18),
    "overlap": lambda x: x.map_overlap(lambda b: b + b.sum() * 0, depth=1, boundary="reflect"),
    "no boundary": lambda x: x.map_overlap(lambda b: b * 2, depth={0: (1, 2), 1: 0}, boundary="none"),
    "map_blocks": lambda x: x.map_blocks(lambda b, by: b * by, 3, dtype=float),
    "block_info": lambda x: x.map_blocks(_with_block_info, dtype=float),
    "block_id": lambda x: x.map_blocks(lambda b, block_id=None: b + block_id[1], dtype=float),
    "new axes": lambda x: x.map_blocks(lambda b: b[..., None], new_axis=2, dtype=float),
    "dropped axis": lambda x: x.map_blocks(lambda b: b.sum(axis=1), drop_axis=1, dtype=float),
    "cumsum": lambda x: x.cumsum(axis=0),
    "cumulative with a dtype": lambda x: da.nancumprod(da.where(x > 0.5, np.nan, x), axis=1, dtype="f4"),
    "cumulative along all axes": lambda x: da.cumsum(x),
    "cumulative of masked": lambda x: x.map_blocks(np.ma.masked_greater, 0.5).cumsum(axis=0),
    "cumulative of an empty block": lambda x: x[x[:, 0] > 0.9].cumsum(axis=0),
    "cumulative mean": lambda x: x.cumsum(axis=0).mean(),
    "blelloch": lambda x: da.cumsum(x, axis=1, method="blelloch"),
    "matmul": lambda x: x @ x.T,
    "tensordot": lambda x: da.tensordot(x, x, axes=([0], [0])),
    "einsum": lambda x: da.einsum("ij,kj->ik", x, x),
    "gufunc": lambda x: da.apply_gufunc(lambda a: a.mean(-1), "(i)->()", x.rechunk({1: -1}), output_dtypes=float),
    "roll": lambda x: da.roll(x, 5, axis=0),
    "pad": lambda x: da.pad(x, 2, mode="edge"),
    "topk": lambda x: da.topk(x, 3, axis=0),
    "histogram": lambda x: da.histogram(x, bins=8, range=(0, 1))[0],
    "histogram with weights": lambda x: da.histogram(x, bins=[0, 0.2, 0.7, 1], weights=x, density=True)[0],
    "histogram of a range to compute": lambda x: da.histogram(x, bins=8, range=(x.min(), 1))[0],
    "histogram of many bins": lambda x: da.histogram(x, bins=9000, range=(0, 1))[0],
    "percentile": lambda x: da.percentile(x.ravel(), [20, 70]),
    "unique": lambda x: da.unique((x * 5).astype(int)),
    "svd": lambda x: da.linalg.svd(x.rechunk({1: -1}))[1],
    "random": lambda x: da.random.default_rng(1).normal(2, 3, (24, 18), chunks=(7, 5)) + x,
    "legacy random": lambda x: da.random.RandomState(1).uniform(size=(24, 18), chunks=(7, 5)) + x,
    "random of arrays": lambda x: da.random.default_rng(1).poisson(x, chunks=x.chunks),
    "masked array": lambda x: x.map_blocks(np.ma.masked_greater, 0.5).sum(axis=0),
    "scalars of NumPy": lambda x: np.float32(2) * x + np.int64(1),
    "delayed": lambda x: x.map_blocks(lambda b, by: b * by, dask.delayed(int)(3), dtype=float),
    "persisted": lambda x: (x + 1).persist(scheduler="sync").sum(axis=0),
    "setitem": lambda x: _assigned(x + 0),
    "of no dimension": lambda x: x.sum() * 2 - x.mean(),
    "empty": lambda x: (x[:0] + 1).sum(axis=0),
}


def _assigned(x: Any) -> Any:
    x[3:5] = -1
    x[x > 0.8] = 0
    return x


#: Steps of random chains, each an array of two dimensions of another one, with a number to vary it.
STEPS: tuple[Any, ...] = (
    lambda x, n: x * 2 + n,
    lambda x, n: x - x.mean(axis=n % 2, keepdims=True),
    lambda x, n: (da.cumsum, da.nancumsum)[n // 2](x, axis=n % 2),
    lambda x, n: x[n % 3 :: 1 + n % 2, ::-1],
    lambda x, n: da.take(x, [(5 * at + n) % x.shape[n % 2] for at in range(x.shape[n % 2])], axis=n % 2),
    lambda x, n: x.rechunk((4 + n, 5)),
    lambda x, n: da.pad(x, 1 + n, mode=("edge", "constant", "reflect", "wrap")[n]),
    lambda x, n: da.concatenate([x, x + 1], axis=n % 2),
    lambda x, n: x.T + n,
    lambda x, n: da.squeeze(da.stack([x, x]).max(axis=0, keepdims=True), axis=0) + n,
    lambda x, n: da.broadcast_to(x[n : n + 1], x.shape) + x,
    lambda x, n: x + da.histogram(x, bins=3 + n, range=(0, 2))[0].sum(),
)


@hypothesis.given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), min_size=2, max_size=4),
    source=st.sampled_from(SOURCES),
)
def test_random_chains(steps, source):
    x = source()
    for step, number in steps:
        x = step(x, number)
    dsk, wanted = handed_over(x)
    graph = prepare(dsk, wanted, PrepareOptions(Limits(2, lambda: 1 << 40)))
    assert_equal(evaluate(graph)[wanted[0]], x.compute(scheduler="sync"))


def assert_equal(value: Any, expected: Any) -> None:
    assert type(value) is type(expected)
    assert value.dtype == expected.dtype
    np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_threads(kind, runtime, given_up):
    source = SOURCES[list(KINDS).index(kind) % len(SOURCES)]
    expected = KINDS[kind](source()).compute(scheduler="sync")
    assert_equal(KINDS[kind](source()).compute(scheduler=runtime.get), expected)
    assert given_up() == []


#: Kinds whose own tasks are made, and the beginnings of these tasks' names.
WITH_TASKS = {
    "arange": ("arange",),
    "linspace": ("linspace",),
    "fancy": ("shuffle-", "getitem-"),
    "blelloch": ("cumsum",),
    "cumulative of an empty block": ("getitem-", "cumsum"),
    "histogram of a range to compute": ("histogram", "linspace"),
    "histogram of many bins": ("histogram",),
    "percentile": ("reshape", "percentile"),
    "unique": ("unique-",),
    "svd": ("qr-", "stack-r", "svd-"),
    "random of arrays": ("poisson",),
    "delayed": ("int-", "lambda-"),
    "persisted": ("add-",),
    "setitem": ("setitem-",),
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_sources_and_assembly_are_tasks(kind):
    graph, tasks = symbolic(KINDS[kind](held()))
    made = {str(layer_of(key)) for key in graph.keys if key in tasks}
    # Rechunks are in one step only where there is room for that, as another test says.
    allowed = ("array-", "finalizecomputearray-", "rechunk-", *WITH_TASKS.get(kind, ()))
    assert [name for name in made if not name.startswith(allowed)] == []


#: Kinds with functions of the user's, which are not passed to threads of the user's process.
WITH_USERS_FUNCTIONS = {"overlap", "no boundary", "map_blocks", "block_info", "block_id", "new axes"}
WITH_USERS_FUNCTIONS |= {"dropped axis", "gufunc", "delayed", "from_map"}


def test_functions_of_the_package_are_library_code():
    graphs = {kind: prepare(*handed_over(make(held()))) for kind, make in KINDS.items()}
    assert {kind for kind, graph in graphs.items() if not is_library_code(graph)} == WITH_USERS_FUNCTIONS


def test_reads_of_an_object_are_records(runtime):
    source = Readable()
    x = da.from_array(source, chunks=(7, 5))
    for part, inputs in (x, 16), (x[2:, 1:], 16), (da.from_array(source, chunks=(7, 5), inline_array=True), 16):
        graph, tasks = symbolic((part * 2).sum())
        assert len(tasks) <= 2
        assert sum(len(sources) for sources in graph.inputs) <= 2 * inputs + 1
        expected = (part * 2).sum().compute(scheduler="sync")
        assert (part * 2).sum().compute(scheduler=runtime.get) == expected


@pytest.mark.parametrize("room", [0, 1 << 20])
@pytest.mark.parametrize(
    ("make", "blocks"), [(lambda x: x.rechunk((24, 3)), 16 + 6), (lambda x: x[[4, 9, 20, 1]], 12 + 4)]
)
def test_rechunk_and_shuffle_are_one_step_where_there_is_room(room, make, blocks):
    x = make(drawn())
    dsk, wanted = handed_over(x)
    tasks, lazy, *_ = symbolic_graph(dsk, ReadOptions(resident_bytes=lambda: room))
    graph = convert(tasks, wanted, lazy)
    # The blocks before and after, the assembly, and pieces between them where there is no room.
    assert (len(graph) == blocks + 1) == bool(room)
    values = evaluate(graph)
    np.testing.assert_array_equal(values[wanted[0]], x.compute(scheduler="sync"))


def test_copies_of_functions_are_replaced():
    graph, _ = symbolic(drawn().std(axis=0), da.nanmean(drawn()), drawn() @ drawn().T, drawn().max())
    functions = {called_by(function) for operand in graph.operands for function in operand.functions}
    assert functions > {
        arrays.moment_chunk,
        arrays.mean_chunk,
        arrays._matmul,
        arrays._chunk_sum,
        arrays.chunk_max,
    }
    partials = [
        function for operand in graph.operands for function in operand.functions if type(function) is partial
    ]
    assert arrays.nannumel in [function.keywords.get("numel") for function in partials]


def test_blocks_that_a_slice_takes_whole_are_no_chunks_of_their_own():
    graph, _ = symbolic((drawn() + 1).persist(scheduler="sync")[7:])
    assert len(graph) == 12 + 1


def test_step_that_contracts_gets_what_it_gets_in_a_fused_task(runtime):
    x = da.from_array(HELD, chunks=(24, 5))
    totals = da.blockwise(lambda block: block.sum(axis=0), "j", x + 1, "ij", dtype=float)
    assert_equal((totals * 2).compute(scheduler=runtime.get), (totals * 2).compute(scheduler="sync"))


def test_chain_is_one_chunk_for_each_block():
    graph, _ = symbolic(((drawn() + 1) * 2 - 0.5).sum())
    composed = passed(graph, compose)
    # The blocks, the sum of their sums, and the assembly.
    assert len(composed) == 16 + 1 + 1
    assert [operand.in_client for operand in composed.operands].count(True) == 1


class Target:
    """Its blocks stay in the process that wrote them."""

    def __init__(self) -> None:
        self.blocks: list[Any] = []

    def __setitem__(self, index: Any, block: Any) -> None:
        self.blocks.append((index, block.copy()))


def test_stores_reach_the_users_object(runtime):
    target = Target()
    da.store(held() + 1, target, scheduler=runtime.get)
    assert len(target.blocks) == 16
    for index, block in target.blocks:
        np.testing.assert_array_equal(block, HELD[index] + 1)


@pytest.mark.filterwarnings("ignore:Computing mixed collections")
def test_several_results_and_those_of_other_kinds(runtime):
    x = held()
    y = x + 1
    results = dask.compute(y.sum(), y, x.max(axis=0), scheduler=runtime.get)
    assert results[0] == y.sum().compute(scheduler="sync")
    np.testing.assert_array_equal(results[1], HELD + 1)
    np.testing.assert_array_equal(results[2], HELD.max(axis=0))
    assert dask.compute(y.sum(), dask.delayed(abs)(-2), scheduler=runtime.get) == (results[0], 2)


def test_persisted_arrays_keep_their_names(runtime):
    x = (drawn() * 3).persist(scheduler=runtime.get)
    (again,) = dask.persist(x + 1, scheduler=runtime.get)
    np.testing.assert_array_equal(again.sum(axis=0), ((drawn() * 3) + 1).sum(axis=0).compute(scheduler="sync"))


def test_exceptions_are_those_of_threads(runtime):
    def fail(block: Any) -> Any:
        raise LookupError("no such block")

    for get in ("sync", runtime.get):
        with pytest.raises(LookupError, match="no such block"):
            (held() + 1).map_blocks(fail, dtype=float).sum().compute(scheduler=get)


@pytest.fixture
def xarray() -> Iterator[Any]:
    """Xarray whose arrays in chunks are expressions."""
    found = pytest.importorskip("xarray")
    managers = pytest.importorskip("xarray.namedarray.parallelcompat").list_chunkmanagers()
    before = dict(managers)
    pytest.importorskip("dask_array.xarray").register()
    yield found
    managers.update(before)


XARRAY: dict[str, Any] = {
    "mean": lambda data: data.mean("t"),
    "anomaly": lambda data: (data - data.mean("t")) / data.std("t"),
    "where": lambda data: data.where(data.a > 0.5).sum("x"),
    "rolling": lambda data: data.rolling(t=3).mean(),
    "coarsen": lambda data: data.coarsen(t=4).max(),
    "isel": lambda data: data.isel(t=slice(3, 20), x=[4, 1]),
    "cumsum": lambda data: data.cumsum("t"),
}


@pytest.mark.parametrize("kind", XARRAY)
def test_xarray(kind, xarray, runtime):
    a = xarray.DataArray(HELD, dims=("t", "x"), coords={"t": np.arange(24)}).chunk(t=7, x=5)
    assert type(a.data) is da.Array
    data = xarray.Dataset({"a": a, "b": a * 2})
    assert symbolic(*[variable.data for variable in XARRAY[kind](data).values()])
    expected = XARRAY[kind](data).compute(scheduler="sync")
    xarray.testing.assert_identical(XARRAY[kind](data).compute(scheduler=runtime.get), expected)


def test_datasets_that_dask_itself_computes(xarray, runtime):
    a = xarray.DataArray(HELD, dims=("t", "x")).chunk(t=7, x=5)
    data = xarray.Dataset({"a": a - a.mean("t"), "b": a * 2})
    graph, tasks = symbolic(data, a.data.sum())
    assert len(tasks) <= len(a.data.dask) + 3 < len(graph)
    expected = data.compute(scheduler="sync"), a.data.sum().compute(scheduler="sync")
    found = dask.compute(data, a.data.sum(), scheduler=runtime.get)
    xarray.testing.assert_identical(found[0], expected[0])
    assert found[1] == expected[1]
    (persisted,) = dask.persist(data, scheduler=runtime.get)
    xarray.testing.assert_identical(persisted.compute(scheduler="sync"), expected[0])
