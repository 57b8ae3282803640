"""Frames of data are pickled without checks of their parts, with the values and attributes of other pickles."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest

from dask_mars.protocol.frames import is_data_frame
from dask_mars.protocol.pickling import dumps, frozen, loads

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")


def table() -> Any:
    times = pd.date_range("2020", periods=6, unit="s")
    return pd.DataFrame({"x": np.arange(6), "y": np.arange(6.0), "text": pd.array(list("abcdef")), "when": times})


def without_duplicates() -> Any:
    return table().set_flags(allows_duplicate_labels=False)


DATA = {
    "frame": table,
    "rows": lambda: table()[::2],
    "column": lambda: table().y,
    "column of text": lambda: table().text.rename(None),
    "index of text": lambda: table().set_index("text"),
    "index of numbers": lambda: table().set_index("x").rename_axis(columns="names"),
    "no rows": lambda: table().iloc[:0],
    "no columns": lambda: table()[[]],
    "flags": without_duplicates,
    "durations": lambda: table().when - table().when[0],
}


class Kind(pd.DataFrame):
    """A subclass of the user's."""


def with_attributes() -> Any:
    frame = table()
    frame.attrs["unit"] = object
    return frame


OTHERS = {
    "objects": lambda: table().astype({"x": object}),
    "attributes": with_attributes,
    "zone": lambda: table().assign(when=table().when.dt.tz_localize(datetime.UTC)),
    "levels": lambda: table().set_index(["x", "y"]),
    "name": lambda: table().y.rename(("a", Kind)),
    "name of an axis": lambda: table().rename_axis((Kind,)),
    "labels": lambda: table().set_axis([1, "b", Kind, None], axis=1),
    "subclass": lambda: Kind(table()),
    "no frame": lambda: 3,
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("thaw", [None, frozen])
def test_data_are_pickled_as_ever(name: str, thaw: Any) -> None:
    frame = DATA[name]()
    assert is_data_frame(frame)
    buffers: list[Any] = []
    for keep in (None, lambda buffer: buffers.append(buffer)):
        found = loads(dumps(frame, keep, thaw), buffers=buffers)
        test = pd.testing.assert_frame_equal if frame.ndim == 2 else pd.testing.assert_series_equal
        test(found, frame, check_exact=True, check_flags=True, check_freq=True)
        assert all(type(one) is type(other) for one, other in zip(found.axes, frame.axes, strict=True))


def test_arrays_of_the_user_are_read_only_elsewhere() -> None:
    for thaw, is_writeable in ((None, True), (frozen, False)):
        found = loads(dumps(table().y, None, thaw))
        assert found.array.to_numpy().base.flags.writeable is is_writeable


@pytest.mark.parametrize("name", OTHERS)
def test_what_may_hold_objects_is_checked(name: str) -> None:
    assert not is_data_frame(OTHERS[name]())
