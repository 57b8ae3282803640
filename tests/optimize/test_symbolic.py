"""Random expressions over arrays: their symbolic graphs come to what Dask's own scheduler makes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.utils import SerializableLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.array_calls import CALLS, Arrays
from tests.symbolic import Here, assert_identical, dependencies, dependencies_of_dask

DTYPES = ["?", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "c8", "c16", "M8[s]", "m8[s]"]
#: What makes floats hard.
ODD_VALUES = [np.nan, np.inf, -np.inf, -0.0, 1e300]


# -- sources ------------------------------------------------------------------------------------------------------


def values_of(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Return an array of any dtype; floats have NaN, infinities and negative zeros among them."""
    random = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    if kind in "iu":
        return random.integers(0 if kind == "u" else -9, 10, shape).astype(dtype)
    if kind in "mM":
        return random.integers(0, 10**6, shape).astype("i8").astype(dtype)
    values = random.normal(size=shape)
    odd = random.integers(0, 4 * len(ODD_VALUES), shape)
    for number, value in enumerate(ODD_VALUES):
        values = np.where(odd == number, value, values)
    with np.errstate(over="ignore"):
        return (
            values.astype(dtype)
            if kind == "f"
            else (values + 1j * values[::-1] if shape else values).astype(dtype)
        )


class Source:
    """Something to read arrays from that is no array, as files are."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape, self.dtype, self.ndim = values, values.shape, values.dtype, values.ndim

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.values[index]


class SourceWithoutFancy(Source):
    """A source that refuses lists and arrays as indices."""

    def __getitem__(self, index: Any) -> np.ndarray:
        assert not any(
            isinstance(part, list | np.ndarray) for part in (index if type(index) is tuple else [index])
        )
        return self.values[index]


SOURCES: dict[str, Callable[[np.ndarray, Any], da.Array]] = {
    "numpy": lambda values, chunks: da.from_array(values, chunks=chunks),
    "inline": lambda values, chunks: da.from_array(values, chunks=chunks, inline_array=True),
    "as it is": lambda values, chunks: da.from_array(values, chunks=chunks, asarray=False),
    "source": lambda values, chunks: da.from_array(Source(values), chunks=chunks),
    "inline source": lambda values, chunks: da.from_array(Source(values), chunks=chunks, inline_array=True),
    "locked source": lambda values, chunks: da.from_array(Source(values), chunks=chunks, lock=SerializableLock()),
    "source as it is": lambda values, chunks: da.from_array(
        Source(values), chunks=chunks, asarray=False, inline_array=True, meta=values[(slice(0),) * values.ndim]
    ),
    "source without fancy": lambda values, chunks: da.from_array(
        SourceWithoutFancy(values), chunks=chunks, fancy=False
    ),
    "delayed": lambda values, chunks: da.from_delayed(
        dask.delayed(values.copy, pure=False)(), values.shape, values.dtype
    ).rechunk(chunks),
    "masked": lambda values, chunks: da.from_array(
        np.ma.masked_array(values, values == values.ravel()[0] if values.size else False), chunks=chunks
    ),
    "random": lambda values, chunks: da.random.default_rng(3).integers(0, 9, values.shape, chunks=chunks),
    "full": lambda values, chunks: da.full(values.shape, values.ravel()[0] if values.size else 0, chunks=chunks),
    "blocks of numpy": lambda values, chunks: da.block([da.from_array(values, chunks=chunks)]),
}


@st.composite
def chunks_of(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Draw how an array of a shape is cut, evenly or not, with empty chunks at times."""
    chunks = []
    for size in shape:
        cuts = draw(st.lists(st.integers(0, size), max_size=3))
        edges = [0, *sorted(cuts), size]
        if draw(st.integers(0, 5)) != 0:
            edges = sorted(set(edges)) if size else [0, 0]
        chunks.append(tuple(int(n) for n in np.diff(edges)))
    return tuple(chunks)


SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7]), max_size=3).map(tuple)


@st.composite
def sources(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> da.Array:
    if shape is None:
        shape = draw(SHAPES)
    values = values_of(shape, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 99)))
    return SOURCES[draw(st.sampled_from(sorted(SOURCES)))](values, draw(chunks_of(shape)))


# -- operations ---------------------------------------------------------------------------------------------------

Operation = Callable[[st.DrawFn, da.Array], da.Array]
OPERATIONS: dict[str, Operation] = {}


def operation(function: Operation) -> Operation:
    OPERATIONS[function.__name__] = function
    return function


@operation
def elementwise(draw: st.DrawFn, x: da.Array) -> da.Array:
    ways: list[Callable[[da.Array], da.Array]] = [
        lambda x: -x,
        lambda x: x + 1,
        lambda x: 2.5 * x,
        lambda x: x * x,
        lambda x: (x + x) * x,
        lambda x: x == x,
        lambda x: x > 0,
        lambda x: ~x,
        np.abs,
        np.isnan,
        da.sqrt,
        da.exp,
        da.nan_to_num,
        lambda x: x.real + x.imag,
        lambda x: x.astype(draw(st.sampled_from(DTYPES))),
        lambda x: da.where(x == x, x, 0),
        lambda x: x % 3,
        lambda x: da.clip(x, -1, 1),
        lambda x: divmod(x, 2)[1],
        lambda x: np.modf(x)[0],
        lambda x: x.view("u1"),
        lambda x: x - x.min(),
    ]
    return draw(st.sampled_from(ways))(x)


@operation
def broadcast(draw: st.DrawFn, x: da.Array) -> da.Array:
    """Combine with another array, some of whose axes are missing, or of length one."""
    shape = [size if draw(st.booleans()) else 1 for size in x.shape]
    shape = shape[draw(st.integers(0, len(shape))) :]
    if draw(st.integers(0, 4)) == 0:
        shape = [draw(st.integers(1, 3)), *[1] * (x.ndim - len(shape)), *shape]
    other: Any = draw(sources(tuple(shape)))
    if draw(st.integers(0, 4)) == 0:
        other = np.ones(tuple(shape), dtype="f4")
    return draw(st.sampled_from([np.add, np.multiply, np.maximum, np.less]))(x, other)


@operation
def transpose(draw: st.DrawFn, x: da.Array) -> da.Array:
    ways: list[Callable[[], da.Array]] = [
        lambda: x.transpose(draw(st.permutations(range(x.ndim)))),
        lambda: x + x.T,
        lambda: (x + x[::-1]).T,
        lambda: x.ravel(),
        lambda: x.reshape(-1, 1),
        lambda: da.flip(x, -1),
        lambda: da.roll(x, 1, 0),
        lambda: da.squeeze(x),
        lambda: da.expand_dims(x, 0),
        lambda: da.broadcast_to(x, (2, *x.shape)),
        lambda: da.tril(x),
    ]
    return draw(st.sampled_from(ways))()


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Draw an index with at most one list or mask, as Dask wants it."""
    bounds = st.one_of(st.none(), st.integers(-8, 8))
    steps = st.sampled_from([None, 1, 2, 3, -1, -2])
    index: list[Any] = []
    fancy = draw(st.booleans())
    for size in shape[: draw(st.integers(0, len(shape)))]:
        kind = draw(st.sampled_from(["slice", "slice", "position", "fancy", "new"]))
        if kind == "new":
            index.append(None)
        if kind == "position" and size:
            index.append(draw(st.integers(-size, size - 1)))
        elif kind == "fancy" and fancy and size:
            fancy = False
            positions = draw(st.lists(st.integers(-size, size - 1), max_size=5))
            mask = np.isin(np.arange(size), positions)
            index.append(draw(st.sampled_from([positions, np.array(positions, dtype=int), mask, mask.tolist()])))
        else:
            index.append(slice(draw(bounds), draw(bounds), draw(steps)))
    if len(index) < len(shape) and draw(st.booleans()):
        index.append(Ellipsis)
    return tuple(index)


@operation
def slicing(draw: st.DrawFn, x: da.Array) -> da.Array:
    return x[draw(indices(x.shape))]


@operation
def unknown_chunks(draw: st.DrawFn, x: da.Array) -> da.Array:
    """Index with a mask that is not known yet: so are the chunks of the result."""
    mask = x == x
    return x[mask if draw(st.booleans()) else mask.all(axis=tuple(range(1, x.ndim)))]


@operation
def blocks(draw: st.DrawFn, x: da.Array) -> da.Array:
    """Take some blocks only, so that the others are not needed."""
    index = []
    for count in x.numblocks:
        first = draw(st.integers(0, count - 1))
        index.append(draw(st.sampled_from([first, np.int64(first), slice(first, None), [first, 0][: count or 1]])))
    fancy = [number for number, part in enumerate(index) if isinstance(part, list)]
    for number in fancy[1:]:
        index[number] = slice(None)
    return x.blocks[tuple(index)] if index else x


REDUCTIONS = ["sum", "mean", "min", "max", "prod", "any", "all", "std", "var", "nansum", "nanmax"]


@operation
def reduction(draw: st.DrawFn, x: da.Array) -> da.Array:
    axes = st.lists(st.integers(0, max(x.ndim - 1, 0)), unique=True, max_size=x.ndim).map(tuple)
    axis = draw(st.one_of(st.none(), axes)) if x.ndim else None
    keepdims = draw(st.booleans())
    split_every = draw(st.sampled_from([None, 2, 3]))
    name = draw(st.sampled_from(REDUCTIONS))
    return getattr(da, name)(x, axis=axis, keepdims=keepdims, split_every=split_every)


@operation
def reduction_of_one_axis(draw: st.DrawFn, x: da.Array) -> da.Array:
    axis = draw(st.integers(0, x.ndim - 1)) if x.ndim else 0
    ways: list[Callable[[], da.Array]] = [
        lambda: x.argmax(axis=axis, keepdims=True),
        lambda: x.cumsum(axis=axis),
        lambda: da.cumprod(x, axis=axis, method="blelloch"),
        lambda: da.topk(x, 2, axis=axis),
        lambda: da.diff(x, axis=axis),
        lambda: da.median(x, axis=axis),
    ]
    return draw(st.sampled_from(ways))()


@operation
def contraction(draw: st.DrawFn, x: da.Array) -> da.Array:
    x = x.astype(draw(st.sampled_from(["i8", "f8", "c16"]))) if x.dtype.kind in "mM" else x
    if x.ndim == 0:
        return da.einsum(",->", x, x)
    other = draw(sources((x.shape[-1], draw(st.integers(1, 4)))))
    letters = "ijk"[: x.ndim]
    ways: list[Callable[[], da.Array]] = [
        lambda: da.tensordot(x, other, axes=1),
        lambda: da.tensordot(x, x, axes=(tuple(range(x.ndim)), tuple(range(x.ndim)))),
        lambda: x @ other,
        lambda: da.einsum(f"{letters},{letters[-1]}z->z{letters[:-1]}", x, other),
        lambda: da.einsum(f"{letters},{letters}->{letters[0]}", x, x),
        lambda: da.dot(x, other),
        lambda: da.outer(x, other),
        lambda: da.vdot(x, x),
    ]
    return draw(st.sampled_from(ways))()


def add_place(block: np.ndarray, block_info: Any = None) -> np.ndarray:
    given, made = block_info[0], block_info[None]
    assert made["chunk-shape"] == block.shape
    return block.astype(float) + 100 * sum(given["chunk-location"]) + made["num-chunks"][0]


def add_position(block: np.ndarray, factor: Any, block_id: Any = None) -> np.ndarray:
    assert all(type(at) is int for at in block_id)
    return block.astype(float) * factor + sum(block_id)


@operation
def map_blocks(draw: st.DrawFn, x: da.Array) -> da.Array:
    ways: list[Callable[[], da.Array]] = [
        lambda: x.map_blocks(add_place, dtype=float),
        lambda: x.map_blocks(add_position, 2, dtype=float),
        lambda: x.map_blocks(add_position, factor=dask.delayed(3), dtype=float),
        lambda: x.map_blocks(lambda block: block[..., None], new_axis=x.ndim, dtype=x.dtype),
        lambda: x.map_blocks(
            lambda block: np.stack([block, block]), new_axis=0, dtype=x.dtype, chunks=(2, *x.chunks)
        ),
        lambda: x.map_blocks(lambda block: block[0], drop_axis=0, dtype=x.dtype),
        lambda: x.rechunk({0: -1}).map_blocks(lambda block: block.sum(axis=0), drop_axis=0),
        lambda: da.map_blocks(lambda block, other: block == other, x, x, dtype=bool),
        lambda: da.map_blocks(lambda block_id: np.full((1,), block_id[0]), chunks=((1,) * 3,), dtype=int),
        lambda: da.map_blocks(lambda a, b: a + b.sum(), x, x.ravel()[:1], dtype=x.dtype),
        lambda: x.map_overlap(lambda block: block.copy(), depth=1, boundary="none", dtype=x.dtype),
        lambda: x.map_overlap(lambda block: block[::-1], depth={0: (1, 0)}, boundary="none", dtype=x.dtype),
        lambda: x.map_overlap(np.copy, depth=1, boundary="periodic", dtype=x.dtype),
    ]
    return draw(st.sampled_from(ways))()


def listed(blocks: Any) -> Any:
    """Add up blocks, which may come one by one or in nested lists."""
    return sum(map(listed, blocks)) if isinstance(blocks, list) else blocks.sum()


def sum_of(*arguments: Any, scale: Any = 1, offset: Any = 0) -> np.ndarray:
    extra = sum(offset) if isinstance(offset, list | tuple) else offset
    return np.asarray(sum(map(listed, arguments)) * scale + extra).reshape(1)


@operation
def blockwise(draw: st.DrawFn, x: da.Array) -> da.Array:
    x = x.astype("i8") if x.dtype.kind in "mMb" else x
    all_axes = tuple(range(x.ndim))
    other = draw(sources(x.shape)).astype("i4")
    concatenate = draw(st.sampled_from([None, True, False]))
    ways: list[Callable[[], da.Array]] = [
        lambda: da.blockwise(sum_of, "z", x, all_axes, new_axes={"z": 1}, concatenate=concatenate, dtype=x.dtype),
        lambda: da.blockwise(
            sum_of, "z", x, all_axes, x, all_axes, new_axes={"z": (1, 1)}, concatenate=concatenate, dtype=x.dtype
        ),
        lambda: da.blockwise(
            sum_of,
            "z",
            x,
            all_axes,
            other,
            all_axes[::-1],
            new_axes={"z": 1},
            concatenate=concatenate,
            scale=dask.delayed(2),
            offset=[1, dask.delayed(5)],
            dtype=float,
        ),
        lambda: da.blockwise(np.add, all_axes, x, all_axes, dask.delayed(3), None, dtype=x.dtype),
        lambda: da.blockwise(np.add, all_axes, x, all_axes, 7, None, dtype=x.dtype),
        lambda: da.blockwise(np.add, all_axes, x, all_axes, x.sum(), (), dtype=x.dtype),
        lambda: da.blockwise(
            lambda a, b: a, all_axes, x, all_axes, other, all_axes, dtype=x.dtype, align_arrays=True
        ),
        lambda: da.blockwise(
            lambda a, b: a, all_axes, x, all_axes, "name", None, dtype=x.dtype, align_arrays=False
        ),
        lambda: da.blockwise(
            lambda a: np.concatenate([a, a]),
            all_axes,
            x,
            all_axes,
            adjust_chunks={0: lambda n: 2 * n},
            dtype=x.dtype,
        ),
        lambda: da.blockwise(
            lambda a, b: a + np.concatenate(b, axis=0).sum() if isinstance(b, list) else a + b.sum(),
            (0,),
            x.ravel(),
            (0,),
            other.ravel(),
            (1,),
            concatenate=concatenate,
            dtype=x.dtype,
        ),
        lambda: da.blockwise(
            np.add.outer, (0, 1), x.ravel(), (0,), other.ravel(), (1,), dtype=x.dtype, concatenate=concatenate
        ),
    ]
    return draw(st.sampled_from(ways))()


@operation
def several(draw: st.DrawFn, x: da.Array) -> da.Array:
    other = draw(sources(x.shape))
    ways: list[Callable[[], da.Array]] = [
        lambda: da.concatenate([x, other, x + 1], axis=draw(st.integers(0, max(0, x.ndim - 1)))),
        lambda: da.stack([x, other], axis=draw(st.integers(0, x.ndim))),
        lambda: da.stack([x, x, other]).sum(axis=0),
        lambda: x.rechunk(draw(chunks_of(x.shape))),
        lambda: x.rechunk(1) + other,
        lambda: da.where(other == other, x, other),
        lambda: da.pad(x, 1, "constant"),
        lambda: da.take(x, [0, 0], axis=0),
        lambda: da.ma.masked_where(other != other, x),
        lambda: da.ma.filled(da.ma.masked_array(x, other == x), 0),
    ]
    return draw(st.sampled_from(ways))()


@operation
def masked(draw: st.DrawFn, x: da.Array) -> da.Array:
    ways: list[Callable[[], da.Array]] = [
        lambda: da.ma.masked_greater(x, 0),
        lambda: da.ma.masked_invalid(x),
        lambda: da.ma.getdata(x) * 2,
        lambda: da.ma.getmaskarray(x),
        lambda: da.ma.count(x, axis=0),
        lambda: da.ma.filled(x, 1),
    ]
    return draw(st.sampled_from(ways))()


@st.composite
def expressions(draw: st.DrawFn) -> list[da.Array]:
    """Draw arrays to compute together: the last of a row of operations, and some that it is made from."""
    x = draw(sources())
    made = [x]
    for name in draw(st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=5)):
        try:
            result = OPERATIONS[name](draw, x)
        except Exception:
            # Not for arrays of this dtype, shape or with unknown chunks.
            continue
        if result is not NotImplemented:
            x = result
            made.append(x)
    return [*draw(st.lists(st.sampled_from(made), max_size=1)), x]


# -- the same as Dask ---------------------------------------------------------------------------------------------


def outcome(arrays: list[da.Array], scheduler: Any) -> Any:
    """Return values, or the error: some of what is drawn cannot be computed."""
    try:
        values = dask.compute(*arrays, scheduler=scheduler)
    except Exception as error:
        return error
    # An element read in one go, where Dask reads a block and takes it from there, is an array without dimensions.
    return [np.asarray(value) if isinstance(value, np.generic) else value for value in values]


@settings(max_examples=30, derandomize=True, suppress_health_check=list(HealthCheck))
@given(arrays=expressions())
@pytest.mark.filterwarnings("ignore")
def test_any_expression_comes_to_what_dask_makes_of_it(arrays):
    here = Here()
    # Before Dask computes: its way of doing so makes tasks of the very layers.
    ours = outcome(arrays, here)
    theirs = outcome(arrays, "sync")
    if isinstance(theirs, Exception):
        # Which of several errors comes first is no promise, and Dask loses blocks of arrays with empty chunks.
        assert isinstance(ours, Exception) or "Missing dependency" in str(theirs)
        return
    assert_identical(ours, theirs)
    assert dependencies(here.converted) == dependencies_of_dask(here.expression, here.wanted)


#: Of all kinds; what is computed in this process elsewhere is computed by workers here.
SAMPLE = ["ma.average", "linalg.svd", "fft.fft2", "random.choice", "overlap.overlap", *list(CALLS)[::30]]


@pytest.mark.filterwarnings("ignore")
def test_workers_come_to_the_same(get: Callable[..., Any]) -> None:
    made = [CALLS[name](Arrays()) for name in SAMPLE]
    assert_identical(dask.compute(made, scheduler=get), dask.compute(made, scheduler="sync"))


# -- files --------------------------------------------------------------------------------------------------------


def test_zarr(tmp_path: Path, zarr: Any, get: Callable[..., Any]) -> None:
    values = np.arange(600.0).reshape(20, 30)
    for scheduler, name in ((Here(), "here"), (get, "workers")):
        path = str(tmp_path / name)
        with dask.config.set(scheduler=scheduler):
            da.to_zarr(da.from_array(values, chunks=8) + 1, path)
            x = da.from_zarr(path)[3:12, ::4].T * 2
            np.testing.assert_array_equal(x.compute(), (values + 1)[3:12, ::4].T * 2)


def test_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    values = np.arange(600.0).reshape(20, 30)
    with h5py.File(tmp_path / "file.h5", "w") as file:
        source = file.create_dataset("x", data=values)
        x = da.from_array(source, chunks=8, fancy=False, lock=True)
        index = (slice(3, 12), slice(None, None, 4))
        np.testing.assert_array_equal(x[index].sum(axis=1).compute(scheduler=Here()), values[index].sum(axis=1))
        np.testing.assert_array_equal(x[:, [5, 2, 2]].compute(scheduler=Here()), values[:, [5, 2, 2]])


def test_npy_stack(tmp_path: Path) -> None:
    values = np.arange(600.0).reshape(20, 30)
    da.to_npy_stack(str(tmp_path), da.from_array(values, chunks=8))
    np.testing.assert_array_equal(
        da.from_npy_stack(str(tmp_path))[3:12, 4].compute(scheduler=Here()), values[3:12, 4]
    )
