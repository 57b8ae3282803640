"""Settings of the process and context variables of the calling thread, read by tasks."""

from __future__ import annotations

import contextlib
import contextvars
import decimal
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import matplotlib as mpl
import numpy as np
import pandas as pd
import xarray as xr

from tests.cases import variable_of_a_module
from tests.cases.comparing import case, main


@contextlib.contextmanager
def setting(read: Callable[[], Any], change: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = read()
    change(value)
    try:
        yield
    finally:
        change(before)


def in_task(function: Callable[..., Any], *arguments: Any) -> Any:
    return dask.delayed(function, pure=False)(*arguments).compute()


def summed(first: xr.DataArray, second: xr.DataArray) -> tuple[tuple[int, ...], dict[str, Any]]:
    total = first + second
    return total.shape, total.attrs


class Strayed(UserWarning):
    def __init__(self, where: str, distance: int) -> None:
        super().__init__(where)
        self.distance = distance


def warn(message: Any = "something") -> int:
    warnings.warn(message, stacklevel=1)
    return 1


@case
def warnings_with_constructors_of_their_own() -> Any:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        value = dask.delayed(lambda: warn(Strayed("north", 2)))().compute()
    return value, [(type(each.message).__name__, each.message.args, each.message.distance) for each in heard]


@case
def filters_by_module() -> Any:
    counts = []
    for module in (__name__, "elsewhere"):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("ignore")
            warnings.filterwarnings("always", module=module)
            dask.delayed(warn)().compute()
        counts.append(len(heard))
    return counts


@case
def options_of_xarray() -> Any:
    first = xr.DataArray([1, 2, 3], dims="x", coords={"x": [0, 1, 2]}, attrs={"units": "K"})
    second = first.assign_coords(x=[1, 2, 3])
    found = [in_task(summed, first, second)]
    for join in ("outer", "left", "inner"):
        with xr.set_options(arithmetic_join=join, keep_attrs=join == "left"):
            found.append(in_task(summed, first, second))
    return [*found, in_task(summed, first, second)]


@case
def options_of_pandas() -> Any:
    def kinds() -> list[str]:
        return [str(kind) for kind in pd.DataFrame({"text": ["a", "b"], "number": [1, 2]}).dtypes]

    found = [in_task(kinds)]
    with pd.option_context("future.infer_string", False):
        found.append(in_task(kinds))
    with pd.option_context("mode.string_storage", "python", "display.float_format", lambda value: f"<{value}>"):
        found += [in_task(pd.array, ["a"], "string").dtype.storage, in_task(str, pd.Series([0.5]))]
    return [*found, in_task(kinds)]


@case
def settings_of_matplotlib() -> Any:
    def resolution() -> tuple[Any, Any]:
        # Whether this imports it or finds it there.
        import matplotlib as found

        return found.rcParams["figure.dpi"], found.rcParams["axes.prop_cycle"].by_key()["color"][0]

    with mpl.rc_context({"figure.dpi": 33, "axes.prop_cycle": mpl.cycler(color=["#102030"])}):
        found = in_task(resolution)
    return found, in_task(resolution)


@case
def decimals() -> Any:
    def third() -> str:
        return str(decimal.Decimal(1) / 3)

    with decimal.localcontext() as context:
        context.prec = 41
        found = in_task(third)
        context.prec = 3
        found += in_task(third)
    return found, in_task(third)


@case
def deep_recursion() -> Any:
    def deep(levels: int) -> int:
        return levels and 1 + deep(levels - 1)

    with setting(sys.getrecursionlimit, sys.setrecursionlimit, 9_000):
        return in_task(deep, 4_000)


@case
def too_deep_recursion() -> Any:
    def deep(levels: int) -> int:
        return levels and 1 + deep(levels - 1)

    return in_task(deep, 30_000)


@case
def numpys_errors_by_a_call() -> Any:
    def called(kind: str, flag: int) -> None:
        print("called for", kind)

    def divided() -> Any:
        return np.ones(2) / 0

    before = np.seterrcall(called)
    try:
        with np.errstate(divide="call"):
            found = in_task(divided)
    finally:
        np.seterrcall(before)
    with np.errstate(divide="ignore"):
        return found, in_task(divided), dask.compute(*[1 / da.zeros(4, chunks=2) for _ in range(2)])


@case
def numpys_text() -> Any:
    value = np.array([1 / 3, 1e10])
    found = [in_task(np.array2string, value)]
    with np.printoptions(precision=2, suppress=True, formatter={"float": lambda number: f"<{number:.1f}>"}):
        found.append(in_task(np.array2string, value))
    with np.printoptions(legacy="1.25"):
        found.append(in_task(repr, np.float64(2.5)))
    return [*found, in_task(np.array2string, value)]


@case
def time_zone() -> Any:
    def hour() -> tuple[int, str]:
        return time.localtime(0).tm_hour, time.strftime("%Z", time.localtime(0))

    def change(zone: str | None) -> None:
        os.environ.pop("TZ", None)
        if zone is not None:
            os.environ["TZ"] = zone
        time.tzset()

    with setting(lambda: os.environ.get("TZ"), change, "XYZ-9"):
        found = in_task(hour)
    return found, in_task(hour)


@case
def mode_of_new_files() -> Any:
    def mode() -> str:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "new")
            path.touch()
            return oct(path.stat().st_mode)

    before = os.umask(0o027)
    try:
        found = in_task(mode)
    finally:
        os.umask(before)
    return found, in_task(mode)


@case
def variable_of_a_library() -> Any:
    read = variable_of_a_module.read_unit
    found = [in_task(read)]
    token = variable_of_a_module.unit.set("km")
    try:
        found += [in_task(read), in_task(lambda: variable_of_a_module.unit.get())]
    finally:
        variable_of_a_module.unit.reset(token)
    return [*found, in_task(read)]


own: contextvars.ContextVar[int] = contextvars.ContextVar("own", default=0)


@case
def variables_of_tasks_of_the_users_process() -> Any:
    lock = threading.Lock()

    def third(_: Any) -> tuple[str, str]:
        return str(decimal.Decimal(1) / 3), variable_of_a_module.unit.get()

    with decimal.localcontext() as context:
        context.prec = 5
        return in_task(third, lock)


@case
def what_a_task_of_the_users_process_changes_ends_with_it() -> Any:
    lock = threading.Lock()

    def change() -> int:
        with lock:
            own.set(7)
        return own.get()

    token = own.set(1)
    try:
        return in_task(change), own.get()
    finally:
        own.reset(token)


@case
def what_tasks_change_ends_with_them() -> Any:
    def change() -> dict[str, str]:
        np.set_printoptions(precision=1)
        variable_of_a_module.unit.set("mile")
        return np.seterr(all="raise")

    def found() -> tuple[str, str, dict[str, str]]:
        return np.array2string(np.array([1 / 3])), variable_of_a_module.unit.get(), np.geterr()

    return in_task(change), in_task(found)


if __name__ == "__main__":
    main()
