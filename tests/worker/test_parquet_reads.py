"""Files of Parquet that Arrow opens itself: the same frames, and the same errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dask_mars.worker.parquet_reads import native_reads

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
dd = pytest.importorskip("dask.dataframe")


def table() -> Any:
    frame = pd.DataFrame({"a": np.arange(30) % 7, "b": np.linspace(0, 1, 30), "c": list("xyz") * 10})
    return frame.astype({"c": "category"}).assign(d=pd.Timestamp("2000"), e=["word", None] * 15)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    table().to_parquet(tmp_path / "x.parquet")
    return tmp_path / "x.parquet"


def reader_of(collection: Any) -> tuple[Any, Any]:
    """Return Dask's reader of a collection, and its argument for the first partition."""
    expression = collection.optimize(fuse=False).expr
    return expression._io_func, expression._plan["parts"][0]


def outcome(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    "options",
    [{}, {"columns": ["e", "a"]}, {"index": "d"}, {"dtype_backend": "pyarrow"}, {"split_row_groups": True}],
)
def test_frames_are_dasks_and_nothing_is_opened_in_python(options, file, monkeypatch):
    reader, part = reader_of(dd.read_parquet(file, **options))
    expected = reader(part)
    made = native_reads(reader)
    assert made is not reader

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("opened in Python")

    monkeypatch.setattr(type(reader.fs), "open", refuse)
    pd.testing.assert_frame_equal(made(part), expected, check_freq=True)


def test_filtered_rows_are_dasks(file):
    reader, part = reader_of(dd.read_parquet(file, filters=[("a", ">", 3)]))
    pd.testing.assert_frame_equal(native_reads(reader)(part), reader(part))


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"PAR1 and no more")])
def test_errors_are_dasks(damage, file):
    reader, part = reader_of(dd.read_parquet(file))
    damage(file)
    found = outcome(native_reads(reader), part)
    assert found == outcome(reader, part)
    assert isinstance(found, tuple)


def test_other_readers_stay_as_they_are(file):
    import fsspec

    fsspec.filesystem("memory").pipe("/x.parquet", file.read_bytes())
    own = {"open_file_options": {"open_file_func": open}}
    for collection in (dd.read_parquet("memory://x.parquet"), dd.read_parquet(file, **own)):
        reader, _ = reader_of(collection)
        assert native_reads(reader) is reader
    assert native_reads(len) is len
