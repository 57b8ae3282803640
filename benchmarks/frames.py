"""Dataframes after the h2o benchmark and TPC-H: from parquet, and of pandas frames in memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.functions import number_of
from benchmarks.workload import Bounds, Setting, Workload, near, numbers, scaled

#: Rows of the tables at full size, and files of each.
_SALES, _ORDERS, _FILES = 4_000_000, 500_000, 16
#: Values of the columns of few groups, and rows to a value of those of many.
_FEW, _ROWS_PER_VALUE = 100, 100
#: Days from the first order to the last, and the day by which most are shipped.
_DAYS, _BY_DAY = 2_400, 2_000
_MODULES = ("pandas", "pyarrow", "dask.dataframe")


def _module(name: str) -> Any:
    return importlib.import_module(name)


# -- data ---------------------------------------------------------------------------------------------------------


def _texts(rng: np.random.Generator, values: int, rows: int) -> Any:
    return _module("pandas").array([f"id{number:06d}" for number in range(values)])[rng.integers(0, values, rows)]


def _sales(rng: np.random.Generator, rows: int, all_rows: int) -> Any:
    many = max(all_rows // _ROWS_PER_VALUE, 1)
    columns = {f"text{count}": _texts(rng, values, rows) for count, values in ((1, _FEW), (2, _FEW), (3, many))}
    columns |= {f"id{count}": rng.integers(0, values, rows) for count, values in ((1, _FEW), (2, _FEW), (3, many))}
    columns |= {"v1": rng.integers(1, 6, rows), "v2": rng.integers(1, 16, rows), "v3": rng.random(rows) * 100}
    return _module("pandas").DataFrame(columns)


def _orders(rng: np.random.Generator, rows: int, first: int) -> tuple[Any, Any]:
    """Return orders and their items, four to an order."""
    pandas = _module("pandas")
    keys = np.arange(first, first + rows)
    days = rng.integers(0, _DAYS, rows)
    start = np.datetime64("1992-01-01", "s")
    orders = {"order": keys, "customer": rng.integers(0, 150_000, rows), "ordered": start + days.astype("m8[D]")}
    items = {
        "order": np.repeat(keys, 4),
        "quantity": rng.integers(1, 51, 4 * rows).astype("f8"),
        "price": rng.random(4 * rows) * 100,
        "discount": rng.integers(0, 11, 4 * rows) / 100,
        "flag": pandas.array(["A", "N", "R"])[rng.integers(0, 3, 4 * rows)],
        "status": pandas.array(["F", "O"])[rng.integers(0, 2, 4 * rows)],
        "shipped": start + (np.repeat(days, 4) + rng.integers(1, 122, 4 * rows)).astype("m8[D]"),
    }
    return pandas.DataFrame(orders), pandas.DataFrame(items)


def _make(scale: float, directory: Path) -> None:
    folder = directory / "frames"
    if folder.exists():
        return
    rng = np.random.default_rng(0)
    sales, orders = (-(-scaled(rows, scale) // _FILES) for rows in (_SALES, _ORDERS))
    for name in ("sales", "orders", "items"):
        (folder / name).mkdir(parents=True)
    for number in range(_FILES):
        tables = _sales(rng, sales, sales * _FILES), *_orders(rng, orders, number * orders)
        for name, table in zip(("sales", "orders", "items"), tables, strict=True):
            table.to_parquet(folder / name / f"{number:02}.parquet")


@cache
def _in_memory(folder: Path) -> Any:
    frame = _module("pandas").read_parquet(folder, columns=["id1", "v1", "v2", "v3"])
    collection = _module("dask.dataframe").from_pandas(frame, _FILES)
    # Dask hashes the frame, and looks for divisions in its index, once.
    collection.divisions  # noqa: B018
    return collection


def _read(name: str, setting: Setting) -> Any:
    return _module("dask.dataframe").read_parquet(setting.directory / "frames" / name)


# -- what is computed ---------------------------------------------------------------------------------------------


def _joined_with_few(sales: Any) -> Any:
    few = sales.drop_duplicates("id1")[["id1", "v2"]].rename(columns={"v2": "weight"})
    joined = sales[["id1", "v3"]].merge(few, on="id1")
    return (joined.v3 * joined.weight / joined.weight).sum()


def _joined(items: Any, orders: Any) -> Any:
    return items[["order", "price"]].merge(orders, on="order").price.sum()


def _pricing(items: Any) -> Any:
    """Return the summary of prices that TPC-H asks for first."""
    items = items[items.shipped <= _day(_BY_DAY)]
    items = items.assign(paid=items.price * (1 - items.discount))
    wanted = {"quantity": ["sum", "mean"], "price": ["sum", "mean"], "paid": "sum", "discount": ["mean", "count"]}
    return items.groupby(["flag", "status"]).agg(wanted)


def _unshipped(items: Any, orders: Any) -> Any:
    """Return the largest orders that are not shipped by a day: the third query of TPC-H."""
    day = _day(_BY_DAY)
    joined = items[items.shipped > day].merge(orders[orders.ordered < day], on="order")
    joined = joined.assign(paid=joined.price * (1 - joined.discount))
    return joined.groupby(["order", "ordered"]).paid.sum().reset_index().nlargest(10, "paid")


def _day(number: int) -> Any:
    return _module("pandas").Timestamp("1992-01-01") + _module("pandas").Timedelta(days=number)


def _of(query: Callable[..., Any], *names: str) -> Callable[[Setting], Callable[[], Any]]:
    # Users also wait for Dask to read the files' metadata and build the graph, so both are timed.
    return lambda setting: lambda: _computed(query(*[_read(name, setting) for name in names]), setting)


def _of_memory(query: Callable[..., Any]) -> Callable[[Setting], Callable[[], Any]]:
    def prepare(setting: Setting) -> Callable[[], Any]:
        frame = _in_memory(setting.directory / "frames" / "sales")
        return lambda: _computed(query(frame), setting)

    return prepare


def _set_index(setting: Setting) -> Callable[[], Any]:
    def call() -> Any:
        # Divisions are computed at once.
        with _module("dask").config.set(scheduler=setting.get):
            return _read("sales", setting)[["id3", "v3"]].set_index("id3").v3.sum().compute()

    return call


def _computed(collection: Any, setting: Setting) -> Any:
    return collection.compute(scheduler=setting.get)


def _totals(result: Any) -> NDArray[np.float64]:
    """Return the number of rows of a frame, and the totals of its columns of numbers; of a number itself."""
    if np.ndim(result) == 0:
        return numbers(result)
    frame = result.to_frame() if result.ndim == 1 else result
    return np.array([len(frame), *frame.select_dtypes("number").sum()], dtype=np.float64)


def _part(share: float, of: int = _SALES, tolerance: float = 0.02) -> Callable[[float], Bounds]:
    """Return the bounds of a number that grows with the rows."""
    return lambda scale: near(share * scaled(of, scale), tolerance * share * scaled(of, scale) + _FILES * share)


def _always(low: float, high: float) -> Callable[[float], Bounds]:
    return lambda scale: (low, high)


def _case(
    name: str, summary: str, prepare: Callable[[Setting], Callable[[], Any]], bounds: Callable[[float], Bounds]
) -> Workload:
    return Workload(f"{name}:frames", "frames", summary, prepare, _totals, bounds, make=_make, modules=_MODULES)


_STD = 100 / 12**0.5 * _FEW**2

FRAME_WORKLOADS = (
    _case(
        "sum-by-text",
        "sum by a column of text with 100 values, of 4,000,000 rows in parquet",
        _of(lambda sales: sales.groupby("text1").v1.sum(), "sales"),
        _part(3),
    ),
    _case(
        "sum-by-texts",
        "sum by two columns of text, 10,000 groups",
        _of(lambda sales: sales.groupby(["text1", "text2"]).v1.sum(), "sales"),
        _part(3),
    ),
    _case(
        "many-groups",
        "sum and mean by a column of text with 40,000 values",
        _of(lambda sales: sales.groupby("text3").agg({"v1": "sum", "v3": "mean"}), "sales"),
        _part(3),
    ),
    _case(
        "std-by-two",
        "standard deviation by two columns of numbers, 10,000 groups",
        _of(lambda sales: sales.groupby(["id1", "id2"]).v3.std(), "sales"),
        _always(0.85 * _STD, 1.01 * _STD),
    ),
    _case(
        "distinct",
        "number of distinct values by text: 2,500,000 pairs",
        _of(lambda sales: sales.groupby("text1").id3.nunique(), "sales"),
        _part(1 - np.exp(-1)),
    ),
    _case(
        "filtered-mean",
        "mean of the rows that a condition leaves",
        _of(lambda sales: sales[sales.v1 > 3].v3.mean(), "sales"),
        _always(49, 51),
    ),
    _case(
        "rows-in-python",
        "mean of what a function of the user's makes of each text",
        _of(lambda sales: sales.text3.map(number_of, meta=("text3", "i8")).mean(), "sales"),
        _part(1 / _ROWS_PER_VALUE / 2),
    ),
    _case("set-index", "sum after rows are sorted by a column, which shuffles", _set_index, _part(50)),
    _case(
        "join-with-few",
        "join with a table of 100 rows made of the same",
        _of(_joined_with_few, "sales"),
        _part(50),
    ),
    _case(
        "join",
        "join of 2,000,000 items with their 500,000 orders, which shuffles",
        _of(
            lambda items, orders: items[["order", "price"]].merge(orders, on="order").price.sum(),
            "items",
            "orders",
        ),
        _part(4 * 50, _ORDERS),
    ),
    _case(
        "pricing", "summary of prices, the first query of TPC-H", _of(_pricing, "items"), _part(140, _ORDERS, 0.5)
    ),
    _case(
        "unshipped",
        "largest orders not shipped by a day, the third query of TPC-H",
        _of(_unshipped, "items", "orders"),
        _always(100, 1e9),
    ),
    _case(
        "sum-in-memory",
        "sum by a column of numbers of a pandas frame of 4,000,000 rows",
        _of_memory(lambda frame: frame.groupby("id1").v1.sum()),
        _part(3),
    ),
    _case(
        "filter-in-memory",
        "mean of the rows that a condition leaves of a pandas frame",
        _of_memory(lambda frame: frame[frame.v1 > 3].v3.mean()),
        _always(49, 51),
    ),
)
