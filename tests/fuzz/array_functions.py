"""Arrays and functions of the user: blocks mapped, overlapping or not; arrays made of delayed values, and back."""

from __future__ import annotations

from tests.fuzz.arrays import Text, known, numeric, real
from tests.fuzz.maker import Maker
from tests.fuzz.operations import Variable, operation


@operation("array", 8, fits=numeric)
def mapped(make: Maker, a: Variable) -> Text:
    number = make.integer(2, 5)
    options = [
        f"{a}.map_blocks(lambda block: block + {number})",
        f"{a}.map_blocks(lambda block, by: block * by, by={number}, dtype={a.dtype.str!r})",
        f"{a}.map_blocks(material.located, dtype={a.dtype.str!r})",
        f"{a}.map_blocks(material.numbered, dtype={a.dtype.str!r})",
        f"{a}.map_blocks(material.changed_in_place)",
        f"{a}.map_blocks(lambda x, y: x - y, {a} * 2, dtype={a.dtype.str!r})",
        f"da.map_blocks(np.add, {a}, {number})",
        f"{a}.map_blocks(lambda block: np.asfortranarray(block))",
        f"{a}.map_blocks(lambda block: block[...])",
        f"{a}.map_blocks(material.written_to, dtype={a.dtype.str!r})",
        f"{a}.map_blocks(lambda block: block.astype('f4'), dtype='f4')",
        f"{a}.map_blocks(lambda block: block, meta=np.empty({(0,) * a.ndim}, {a.dtype.str!r}))",
    ]
    if a.ndim and known(a):
        axis = make.integer(0, a.ndim - 1)
        options += [
            f"{a}.rechunk({{{axis}: -1}}).map_blocks(lambda block: block.sum(axis={axis}, dtype='f8'), "
            f"drop_axis={axis}, dtype='f8')"
            if a.dtype.kind in "biu"
            else f"{a}.rechunk({{{axis}: -1}}).map_blocks(lambda block: block[(slice(None),) * {axis} + (0,)], "
            f"drop_axis={axis}, dtype={a.dtype.str!r})",
            f"{a}.map_blocks(lambda block: block[None], new_axis=0, dtype={a.dtype.str!r})",
            f"{a}.map_blocks(lambda block: np.repeat(block, 2, axis=0), dtype={a.dtype.str!r}, "
            f"chunks=({tuple(2 * cut for cut in a.chunks[0])}, *{a}.chunks[1:]))",
        ]
    return options


@operation("array", 3, fits=lambda a: numeric(a) and a.ndim > 0 and known(a) and a.size > 0, rounds=True)
def overlapping(make: Maker, a: Variable) -> Text:
    depth = make.choice(["1", "{0: 1}", "2", "(1,) * " + str(a.ndim)])
    boundary = make.choice(["reflect", "periodic", "none", "nearest", "0"])
    options = f"depth={depth}, dtype={a.dtype.str!r}"
    if boundary == "0":
        return f"{a}.map_overlap(material.smooth, {options}, boundary=0, allow_rechunk=True)"
    return f"da.map_overlap(material.smooth, {a}, {options}, boundary={boundary!r})"


@operation("array", 1.5, fits=lambda a: real(a) and a.ndim > 0 and known(a) and a.size > 0)
def windows(make: Maker, a: Variable) -> Text:
    return [
        f"da.lib.stride_tricks.sliding_window_view({a}, 2, axis=0).max(axis=-1)"
        if a.shape[0] > 3
        else f"da.overlap.overlap({a}, depth={{0: 0}}, boundary='none')",
        f"da.push({a}, 2, axis=0)" if a.dtype.kind == "f" else f"da.diff({a}, axis=0)",
        f"da.gradient({a}.astype('f8'), axis=0)" if a.shape[0] > 12 else f"da.diff({a}, n=2, axis=0)",
    ]


@operation("array", 3, fits=lambda a: numeric(a) and a.ndim == 2 and known(a))
def blockwise(make: Maker, a: Variable) -> Text:
    number = make.integer(2, 5)
    return [
        f"da.blockwise(lambda x: x + {number}, 'ij', {a}, 'ij', dtype={a.dtype.str!r})",
        f"da.blockwise(np.transpose, 'ji', {a}, 'ij', dtype={a.dtype.str!r})",
        f"da.blockwise(lambda x, y: x + y, 'ij', {a}, 'ij', {number}, None, dtype={a.dtype.str!r})",
        f"da.blockwise(operator.mul, 'ij', {a}, 'ij', {a}, 'ij', dtype={a.dtype.str!r})",
        f"da.blockwise(lambda x, y: x[:, None] * y, 'ij', {a}[:, 0], 'i', {a}[0], 'j', dtype={a.dtype.str!r})",
        f"da.blockwise(lambda x: x[:, None], 'ikj', {a}, 'ij', new_axes={{'k': 1}}, dtype={a.dtype.str!r})",
    ]


@operation("array", 2, fits=lambda a: real(a) and a.ndim > 0 and known(a) and a.size > 0)
def generalised(make: Maker, a: Variable) -> Text:
    whole = f"{a}.rechunk({{-1: -1}})"
    kind = a.dtype.str
    return [
        f"da.apply_gufunc(material.spread, '(i)->()', {whole}, output_dtypes={kind!r})",
        f"da.apply_gufunc(lambda x: (x.min(axis=-1), x * 2), '(i)->(),(i)', {whole}, "
        f"output_dtypes=({kind!r}, {kind!r}))[1]",
        f"da.apply_gufunc(material.spread, '(i)->()', {a}, output_dtypes={kind!r}, allow_rechunk=True, axis=0)",
        f"da.apply_along_axis(material.first_and_last, -1, {a}, dtype={kind!r}, shape=(2,))",
        f"da.as_gufunc(signature='()->()', output_dtypes={kind!r}, vectorize=True)(lambda x: x + 1)({a})"
        if a.size < 200
        else f"da.apply_over_axes(np.max, {a}, [0])",
    ]


@operation("array", 2)
def to_delayed_and_back(make: Maker, a: Variable) -> Text:
    if not known(a):
        return f"{a}.compute_chunk_sizes()"
    shape = tuple(map(int, a.shape))
    return [
        f"da.from_delayed(delayed(np.asarray)({a}), {shape}, {a.dtype.str!r})",
        f"da.from_delayed({a}.rechunk(-1).to_delayed().ravel()[0], {shape}, {a.dtype.str!r})",
        f"da.from_delayed(delayed(lambda x, y: x)({a}, [{a}, 3]), {shape}, {a.dtype.str!r})",
    ]


@operation("array", 2)
def to_delayed(make: Maker, a: Variable) -> Text:
    return [
        f"delayed(material.describe)({a})",
        f"delayed(material.describe)([{a}, {{'k': {a}}}])",
        f"delayed(np.shape)({a})",
        f"delayed({a})",
        f"{a}.to_delayed().ravel()[-1]",
        f"delayed(lambda x: x.tolist())({a}[:2])" if a.ndim else f"delayed(float)({a})",
    ]


@operation("array", 0.4, fits=numeric, decides=True)
def failing(make: Maker, a: Variable) -> Text:
    shape = tuple(map(int, a.shape)) if known(a) else (1,)
    return [
        f"{a}.map_blocks(lambda block: material.fail('block'), dtype={a.dtype.str!r})",
        f"{a}.map_blocks(lambda block: block.no_such_attribute, dtype={a.dtype.str!r})",
        f"da.from_delayed(delayed(material.fail_if)(3, {a}), {shape}, {a.dtype.str!r})",
    ]


@operation("array", 0.7, fits=lambda a: a.ndim == 2 and known(a) and numeric(a) and a.shape[1] < 12)
def to_frame(make: Maker, a: Variable) -> Text:
    return f"dd.from_dask_array({a}.rechunk({{1: -1}}), columns={[f'c{n}' for n in range(a.shape[1])]})"


@operation("array", 0.7, fits=lambda a: a.ndim in (1, 2, 3) and known(a) and a.dtype.kind in "biufMm")
def to_xarray(make: Maker, a: Variable) -> Text:
    dims = ["time", "lat", "lon"][: a.ndim]
    return f"xr.DataArray({a}, dims={dims}, coords={{'time': np.arange({a.shape[0]})}}, name='made')"
