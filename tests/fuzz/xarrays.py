"""Xarray's arrays and datasets over Dask's."""

from __future__ import annotations

from typing import Any

from tests.fuzz.arrays import Text
from tests.fuzz.drawing import Unfit
from tests.fuzz.maker import Maker
from tests.fuzz.operations import Variable, operation, source


def _numeric(x: Any) -> bool:
    return x.dtype.kind in "iufb" and x.chunks is not None


def _timed(x: Any) -> bool:
    """Return whether there is a time axis with real times."""
    return _numeric(x) and "time" in x.indexes and x.indexes["time"].dtype.kind == "M" and x.sizes["time"] > 3


def _with_lat(x: Any) -> bool:
    return _numeric(x) and x.sizes.get("lat", 0) > 2 and "lat" in x.coords


@source("xarray", 3)
def climate(make: Maker) -> Text:
    times = make.integer(5, 40) if make.size == "small" else make.integer(100, 300)
    rows, columns = (make.integer(3, 6), make.integer(1, 4)) if make.size == "small" else (60, 20)
    if make.size == "large":
        rows, columns = 100, 50
    shape = (times, rows, columns)
    dtype = make.choice(["f8", "f8", "f4", "i4"])
    missing = f", {0.2}" if make.chance(0.3) else ""
    data = f"da.from_array(values({make.seed()}, {shape}, {dtype!r}{missing}), chunks={make.chunks(shape)})"
    freq = make.choice(["D", "12h", "7D"])
    return (
        f"xr.DataArray({data}, dims=['time', 'lat', 'lon'], coords={{'time': pd.date_range('2001-01-05', "
        f"periods={times}, freq={freq!r}), 'lat': np.linspace(-60, 60, {rows}), "
        f"'kind': ('lat', np.arange({rows}) % 2)}}, name='t', attrs={{'units': 'K'}})"
    )


@source("dataset", 1)
def dataset(make: Maker) -> Text:
    n, m = make.integer(4, 12), make.integer(2, 6)
    p = f"da.from_array(values({make.seed()}, {(n, m)}), chunks={make.chunks((n, m))})"
    q = f"da.from_array(values({make.seed()}, {n}, 'i8'), chunks={make.chunks((n,))})"
    return (
        f"xr.Dataset({{'p': (('time', 'lat'), {p}), 'q': ('time', {q})}}, "
        f"coords={{'time': pd.date_range('2001-01-05', periods={n}), 'lat': np.arange({m}) * 10.0}}, "
        "attrs={'a': 1})"
    )


# -- element by element, and parts --------------------------------------------------------------------------------


@operation("xarray", 5, fits=_numeric)
def arithmetic(make: Maker, x: Variable) -> Text:
    return make.choice(
        [f"{x} * 2 + 1", f"{x} - {x}.isel({x.dims[0]}=0)" if x.dims and 0 not in x.shape else f"-{x}", f"abs({x})"]
        + [
            f"np.sin({x})",
            f"{x} + {x}",
            f"{x}.fillna(3)",
            f"{x}.astype('f4')",
            f"{x}.transpose()",
            f"{x}.notnull()",
        ]
    )


@operation("xarray", 3, fits=_numeric, decides=True)
def chosen(make: Maker, x: Variable) -> Text:
    return [
        f"{x}.where({x} > {make.integer(-2, 2)})",
        f"{x}.where({x} > 0, -1)",
        f"{x}.clip(-2, 3)",
        f"xr.where({x} > 1, {x}, 0)",
        f"{x}.isin([1, 2])",
        f"{x} / 3",
        f"{x}.round(1)",
    ]


@operation("xarray", 4, fits=lambda x: _numeric(x) and len(x.dims) > 0 and 0 not in x.shape)
def selected(make: Maker, x: Variable) -> Text:
    dim = make.choice(x.dims)
    length = x.sizes[dim]
    options = [
        f"{x}.isel({{{dim!r}: slice({make.integer(0, length - 1)}, None)}})",
        f"{x}.isel({{{dim!r}: {make.integer(-length, length - 1)}}})",
        f"{x}.isel({{{dim!r}: {[make.integer(0, length - 1) for _ in range(3)]}}})",
        f"{x}.thin({{{dim!r}: 2}})",
        f"{x}.shift({{{dim!r}: 1}})",
        f"{x}.roll({{{dim!r}: 2}}, roll_coords=True)",
        f"{x}.diff({dim!r})",
        f"{x}.pad({{{dim!r}: 1}}, mode='edge')",
        f"{x}.chunk({{{dim!r}: {max(1, length // 2)}}})",
        f"{x}.expand_dims('extra')" if "extra" not in x.dims else f"{x}.squeeze()",
        f"{x}.drop_vars(list({x}.coords)[:1])" if len(x.coords) else f"{x}.rename('other')",
        f"{x}.assign_attrs(a=3)",
    ]
    if "lat" in x.indexes and x.sizes["lat"] > 1:
        options += [
            f"{x}.sel(lat=3.0, method='nearest')",
            f"{x}.reindex(lat=[-60.0, 5.0, 60.0])",
            f"{x}.sortby('lat')",
        ]
        if x.dtype.kind == "f":
            options.append(f"{x}.interp(lat=[0.5, 7.0])")
    return options


@operation("xarray", 2, fits=lambda x: _numeric(x) and len(x.dims) > 0)
def concatenated(make: Maker, x: Variable) -> Text:
    dim = make.choice(x.dims)
    return [
        f"xr.concat([{x}, {x} * 2], {dim!r})",
        f"xr.concat([{x}, {x} + 1], 'member')" if "member" not in x.dims else f"{x}.isel(member=0)",
        f"xr.Dataset({{'p': {x}, 'q': {x} * 2}})",
        f"{x}.to_dataset(name='p')",
        f"{x}.stack(both={list(x.dims[:2])})" if len(x.dims) > 1 else f"{x}.copy()",
    ]


# -- reductions ---------------------------------------------------------------------------------------------------


@operation("xarray", 5, fits=lambda x: _numeric(x) and 0 not in x.shape, rounds=True)
def reduced(make: Maker, x: Variable) -> Text:
    function = make.choice(["sum", "mean", "min", "max", "count"])
    dims = make.choice(["", *(repr(dim) for dim in x.dims), repr(list(x.dims[:2]))])
    return f"{x}.{function}({dims})"


@operation(
    "xarray", 4, fits=lambda x: _numeric(x) and len(x.dims) > 0 and 0 not in x.shape, rounds=True, decides=True
)
def measured(make: Maker, x: Variable) -> Text:
    dim = make.choice(x.dims)
    length = x.sizes[dim]
    options = [
        f"{x}.std({dim!r})",
        f"{x}.rolling({{{dim!r}: {min(3, length)}}}, center=True).mean()",
        f"{x}.rolling({{{dim!r}: {min(2, length)}}}, min_periods=1).max()",
        f"{x}.coarsen({{{dim!r}: 2}}, boundary='trim').mean()" if length > 1 else f"{x}.max()",
        f"{x}.cumsum({dim!r})",
        f"{x}.argmax({dim!r})" if x.dtype.kind in "iu" else f"{x}.fillna(0).argmin({dim!r})",
        f"{x}.chunk({{{dim!r}: -1}}).quantile(0.3, {dim!r})",
        f"{x}.weighted(xr.DataArray(np.arange({length}) + 1.0, dims={dim!r})).mean({dim!r})",
        f"{x}.dot({x}, dim={dim!r})",
        f"({x} - {x}.mean({dim!r}))",
        f"{x}.chunk({{{dim!r}: -1}}).median({dim!r})",
    ]
    if x.dtype.kind == "f" and length > 4:
        options.append(f"{x}.chunk({{{dim!r}: -1}}).polyfit({dim!r}, 1).polyfit_coefficients")
        options.append(f"{x}.chunk({{{dim!r}: -1}}).interpolate_na({dim!r})")
    return options


@operation("xarray", 5, fits=_timed, rounds=True)
def by_time(make: Maker, x: Variable) -> Text:
    group = make.choice(["'time.month'", "'time.dayofweek'", "'time.season'"])
    function = make.choice(["mean", "sum", "max", "count", "first"])
    return [
        f"{x}.groupby({group}).{function}()",
        f"{x}.groupby({group}) - {x}.groupby({group}).mean()",
        f"{x}.groupby({group}).map(lambda group: group - group.min())",
        f"{x}.resample(time='7D').{function}()",
        f"{x}.resample(time='14D').mean()",
        f"{x}.groupby_bins('time.dayofyear', [0, 20, 100, 366]).mean()",
    ]


@operation("xarray", 2, fits=lambda x: _with_lat(x) and "kind" in x.coords, rounds=True)
def by_kind(make: Maker, x: Variable) -> Text:
    return f"{x}.groupby('kind').{make.choice(['mean', 'sum', 'max'])}()"


# -- functions of the user ----------------------------------------------------------------------------------------


@operation("xarray", 3, fits=lambda x: _numeric(x) and len(x.dims) > 0 and 0 not in x.shape)
def applied(make: Maker, x: Variable) -> Text:
    dim = x.dims[-1]
    return [
        f"xr.apply_ufunc(np.square, {x}, dask='parallelized', output_dtypes=[{x.dtype.str!r}])",
        f"xr.apply_ufunc(material.spread, {x}.chunk({{{dim!r}: -1}}), input_core_dims=[[{dim!r}]], "
        f"dask='parallelized', output_dtypes=[{x.dtype.str!r}])",
        f"xr.apply_ufunc(lambda a, b: a - b, {x}, {x}, dask='allowed')",
        f"{x}.map_blocks(lambda block: block * 2, template={x})",
        f"{x}.map_blocks(lambda block: block + 1)",
        f"xr.map_blocks(lambda block, by: block * by, {x}, args=[3], template={x})",
    ]


@operation("xarray", 2, fits=_numeric)
def to_data(make: Maker, x: Variable) -> Text:
    return [f"{x}.data", f"delayed(lambda x: x.dims)({x})", f"delayed(material.describe)({x}.data)"]


# -- datasets -----------------------------------------------------------------------------------------------------


@operation("dataset", 5, rounds=True)
def of_dataset(make: Maker, y: Variable) -> Text:
    names, dims = list(y.data_vars), list(y.sizes)
    if not names or not dims:
        raise Unfit
    dim = make.choice(dims)
    return [
        f"{y}[{make.choice(names)!r}]",
        f"{y}[{make.choice(names)!r}]",
        f"{y}.mean({dim!r})",
        f"{y}.max()",
        f"{y} * 2",
        f"{y}.isel({{{dim!r}: slice(1, None)}})",
        f"{y}.to_dataarray()",
        f"{y}.map(lambda x: x + 1)",
        f"{y}.assign(z={y}[{names[0]!r}] * 3)",
        f"{y}.merge({y}.rename({{name: name + '2' for name in {names}}}))",
        f"{y}.chunk({{{dim!r}: 2}})" if make.size == "small" else f"{y}.unify_chunks()",
        f"{y}.map_blocks(lambda part: part * 2, template={y})",
    ]
