"""Chunks of zarr arrays that are read and written without zarr: the same values, files and errors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_mars import Runtime
from dask_mars.worker.zarr_chunks import DirectArray, direct, direct_zarr
from tests.conftest import eventually, shared

zarr = pytest.importorskip("zarr", minversion="3")
numcodecs = pytest.importorskip("numcodecs")

# Its thread stays, with three descriptors.
zarr.create_array(zarr.storage.MemoryStore(), shape=(1,), dtype="f8")

DTYPES = ["f8", "f4", "i2", "u1", "?", "c16", "M8[ns]", "m8[s]"]


def numbers(shape: tuple[int, ...], dtype: str = "f8") -> np.ndarray[Any, Any]:
    made = np.random.default_rng(5).integers(0, 2 if dtype == "?" else 100, shape)
    return made.astype(dtype)


def plain(folder: Path, values: np.ndarray[Any, Any], chunks: tuple[int, ...], **options: Any) -> Any:
    array = zarr.create_array(folder / "x.zarr", shape=values.shape, chunks=chunks, dtype=values.dtype, **options)
    array[...] = values
    return array


def only_files(array: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what reads in place of a zarr array, with zarr's own reading gone."""
    made = direct(array)
    assert type(made) is DirectArray

    def refuse(*_: Any) -> None:
        raise AssertionError("zarr was asked")

    monkeypatch.setattr(type(array), "__getitem__", refuse)
    return made


CODECS: dict[str, dict[str, Callable[[], Any]]] = {
    "3": {
        "none": lambda: None,
        "zstd": lambda: zarr.codecs.ZstdCodec(level=3),
        "zstd-checksum": lambda: zarr.codecs.ZstdCodec(level=1, checksum=True),
        "blosc": lambda: zarr.codecs.BloscCodec(cname="lz4"),
        "gzip": lambda: zarr.codecs.GzipCodec(level=1),
    },
    "2": {
        "none": lambda: None,
        "zstd": lambda: numcodecs.Zstd(1),
        "blosc": lambda: numcodecs.Blosc("zstd", 1, numcodecs.Blosc.BITSHUFFLE),
        "gzip": lambda: numcodecs.GZip(1),
        "zlib": lambda: numcodecs.Zlib(1),
        "lz4": lambda: numcodecs.LZ4(),
    },
}


@pytest.mark.parametrize(
    ("version", "codec", "dtype"),
    [*[(version, name, "f8") for version, names in CODECS.items() for name in names]]
    + [(version, "zstd", dtype) for version in CODECS for dtype in DTYPES[1:]],
)
def test_all_codecs_and_dtypes(tmp_path, monkeypatch, version, codec, dtype):
    values = numbers((20, 33), dtype)
    array = plain(tmp_path, values, (7, 10), zarr_format=int(version), compressors=CODECS[version][codec]())
    made = only_files(array, monkeypatch)
    for index in [(slice(7, 14), slice(10, 20)), (slice(None), slice(None)), (slice(3, 19), slice(-9, 100))]:
        found = made[index]
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, values[index])
        assert found.flags.c_contiguous
        assert found.flags.writeable


slices = st.builds(
    slice, st.none() | st.integers(-25, 25), st.none() | st.integers(-25, 25), st.none() | st.just(1)
)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return plain(tmp_path_factory.mktemp("three"), numbers((20, 7, 11)), (6, 7, 2))


@given(st.tuples(slices, slices, slices))
def test_all_slices(three, index):
    np.testing.assert_array_equal(direct(three)[index], three[index])


@pytest.mark.parametrize(
    "index",
    [3, slice(2, 5), (slice(2, 5),), (2, slice(None), slice(None)), (..., slice(1, 2)), ..., ()]
    + [(slice(0, 9, 2), slice(None), slice(None)), ([1, 3], slice(None), slice(None))],
)
def test_other_indices_are_zarrs(three, index):
    made = direct(three)
    np.testing.assert_array_equal(made[index], three[index])
    assert type(made[index]) is type(three[index])


def test_in_all_else_it_is_the_array(three):
    made = direct(three)
    assert (made.shape, made.dtype, made.chunks, made.ndim) == (three.shape, three.dtype, three.chunks, 3)
    assert made.attrs is not None
    np.testing.assert_array_equal(made.oindex[[1, 2], :, [3]], three.oindex[[1, 2], :, [3]])
    with pytest.raises(AttributeError, match="nothing"):
        _ = made.nothing


def whole(array: Any) -> Any:
    return array[tuple([slice(None)] * array.ndim)]


def test_chunks_that_are_not_there_have_the_fill_value(tmp_path):
    array = zarr.create_array(tmp_path / "x.zarr", shape=(10, 10), chunks=(5, 5), dtype="f8", fill_value=7.5)
    array[:5, :5] = 1.0
    np.testing.assert_array_equal(whole(direct(array)), whole(array))
    assert direct(array)[5:10, 5:10].tolist() == [[7.5] * 5] * 5


def test_an_array_that_grows(tmp_path):
    values = numbers((10, 10))
    array = plain(tmp_path, values, (5, 5))
    made = direct(array)
    np.testing.assert_array_equal(whole(made), values)
    array.append(values)
    np.testing.assert_array_equal(whole(made), np.concatenate([values, values]))


@pytest.mark.parametrize("codec", ["none", "zstd", "blosc", "gzip"])
@pytest.mark.parametrize("harm", ["cut", "empty", "longer", "noise", "other", "no file"])
def test_spoilt_chunks_are_zarrs(tmp_path, codec, harm):
    values = numbers((10, 10))
    array = plain(tmp_path, values, (10, 10), compressors=CODECS["3"][codec]())
    file = tmp_path / "x.zarr" / "c" / "0" / "0"
    good = file.read_bytes()
    if harm == "other":
        # Of another size, and sound.
        (tmp_path / "other").mkdir()
        plain(tmp_path / "other", values[:5], (5, 10), compressors=CODECS["3"][codec]())
        file.write_bytes((tmp_path / "other" / "x.zarr" / "c" / "0" / "0").read_bytes())
    elif harm == "no file":
        file.unlink()
        file.mkdir()
    else:
        spoilt = {
            "cut": good[:-9],
            "empty": b"",
            "longer": good + good,
            "noise": np.random.default_rng(1).bytes(len(good)),
        }
        file.write_bytes(spoilt[harm])
    assert outcome(direct(array)) == outcome(array)


def outcome(array: Any) -> Any:
    try:
        return whole(array).tobytes()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    "options",
    [
        {"shards": (10, 10)},
        {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
        {"serializer": zarr.codecs.BytesCodec(endian="big")},
        {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]},
        {"zarr_format": 2, "order": "F"},
        {"zarr_format": 2, "filters": [numcodecs.Delta("f8")]},
        {"config": {"order": "F"}},
    ],
    ids=lambda options: "-".join(options),
)
def test_what_is_not_plain_is_zarrs(tmp_path, options):
    array = plain(tmp_path, numbers((10, 10)), (5, 5), **options)
    assert direct(array) is array


def test_other_stores_and_values_are_left_alone(tmp_path):
    in_memory = zarr.create_array(zarr.storage.MemoryStore(), shape=(4,), chunks=(2,), dtype="f8")
    scalar = zarr.create_array(tmp_path / "s.zarr", shape=(), dtype="f8")
    none = zarr.create_array(tmp_path / "n.zarr", shape=(0, 3), chunks=(1, 1), dtype="f8")
    text = zarr.create_array(tmp_path / "t.zarr", shape=(3,), chunks=(3,), dtype="U3")
    for source in (in_memory, scalar, none, text, np.ones(3), [1], "x", None):
        assert direct(source) is source


def test_another_pipeline_is_left_alone(tmp_path, monkeypatch):
    class Pipeline(zarr.core.codec_pipeline.BatchedCodecPipeline):
        pass

    array = plain(tmp_path, numbers((10, 10)), (5, 5))
    monkeypatch.setitem(array.async_array.__dict__, "codec_pipeline", Pipeline((), None, (), 1))
    assert direct(array) is array


# -- getters ------------------------------------------------------------------------------------------------------


def test_getters_keep_nothing_but_zarrs_arrays(tmp_path):
    getter = direct_zarr(da.core.getter)
    assert getter.__name__ == "getter"
    assert direct_zarr(np.add) is np.add
    chunk = np.arange(5)
    gone = weakref.ref(chunk)
    assert getter(chunk, (slice(1, 3),)).tolist() == [1, 2]
    del chunk
    assert gone() is None
    array = plain(tmp_path, numbers((10,)), (5,))
    gone = weakref.ref(array)
    getter(array, (slice(1, 3),))
    del array
    # It is looked at once.
    assert gone() is not None


@pytest.fixture(scope="module")
def in_threads(private_tmp: Path) -> Iterator[Runtime]:
    """Yield an engine whose threads compute."""
    with Runtime(2, memory_limit="4 GiB") as runtime, shared(runtime):
        # Its threads are there before the first test begins.
        runtime.get(dict.fromkeys(range(4), (int,)), list(range(4)))
        yield runtime


@pytest.mark.parametrize("threads", [True, False])
def test_of_arrays_from_zarr(tmp_path, threads, in_threads, runtime):
    values = numbers((20, 30))
    plain(tmp_path, values, (10, 10))
    scheduler = (in_threads if threads else runtime).get
    x = da.from_zarr(tmp_path / "x.zarr", chunks=(20, 25))
    np.testing.assert_array_equal((x + 1)[5:33, ::3].compute(scheduler=scheduler), values[5:33, ::3] + 1)
    opened = zarr.open_array(tmp_path / "x.zarr")
    for options in ({"lock": True}, {"asarray": False}, {"inline_array": True}):
        x = da.from_array(opened, chunks=10, **options)
        np.testing.assert_array_equal((x * 2).compute(scheduler=scheduler), values * 2)


@pytest.mark.slow
def test_of_xarray(tmp_path, in_threads):
    xarray = pytest.importorskip("xarray")
    values = np.where(numbers((20, 30)) > 80, np.nan, numbers((20, 30)))
    data = xarray.Dataset({"a": (("x", "y"), values), "t": ("x", np.arange(20).astype("M8[D]").astype("M8[ns]"))})
    encoding = {"a": {"chunks": (5, 10), "dtype": "i2", "scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -1}}
    data.to_zarr(tmp_path / "d.zarr", encoding=encoding, consolidated=False)
    opened = xarray.open_zarr(tmp_path / "d.zarr", consolidated=False)
    expected = opened.compute(scheduler="synchronous")
    xarray.testing.assert_identical(opened.compute(scheduler=in_threads.get), expected)
    picked = opened.isel(x=[3, 1, 7], y=slice(2, 25, 3)).compute(scheduler=in_threads.get)
    xarray.testing.assert_identical(picked, expected.isel(x=[3, 1, 7], y=slice(2, 25, 3)))


def test_xarrays_around_plain_arrays_are_read_directly(tmp_path, monkeypatch):
    xarray = pytest.importorskip("xarray")
    data = xarray.Dataset({"a": (("x", "y"), numbers((20, 30)))})
    data.to_zarr(tmp_path / "d.zarr", encoding={"a": {"chunks": (5, 10)}}, consolidated=False)
    opened = xarray.open_zarr(tmp_path / "d.zarr", consolidated=False)
    (source,) = [value for key, value in dict(opened["a"].data.dask).items() if str(key).startswith("original")]
    made = direct(source)
    assert made is not source
    assert type(made) is type(source)
    monkeypatch.setattr(zarr.Array, "__getitem__", None)
    np.testing.assert_array_equal(np.asarray(made[2:7, 5:25]), data["a"].values[2:7, 5:25])


# -- writing ------------------------------------------------------------------------------------------------------


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def written(
    folder: Path, values: np.ndarray[Any, Any], chunks: tuple[int, ...], index: Any, **options: Any
) -> tuple[dict[str, bytes], dict[str, bytes], bool]:
    """Return the files that zarr writes, and those of a direct array, and whether that asked zarr."""
    arrays = [
        zarr.create_array(folder / name, shape=(20, 30), chunks=chunks, dtype=values.dtype, **options)
        for name in ("zarr", "direct")
    ]
    arrays[0][index] = values
    asked, set_item = [], zarr.Array.__setitem__

    def set_and_note(*arguments: Any) -> None:
        asked.append(1)
        set_item(*arguments)

    made = direct(arrays[1])
    assert type(made) is DirectArray
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zarr.Array, "__setitem__", set_and_note)
        made[index] = values
    return files_of(folder / "zarr"), files_of(folder / "direct"), bool(asked)


WHOLE = (slice(0, 20), slice(0, 30))


@pytest.mark.parametrize(
    ("version", "codec", "dtype"),
    [*[(version, name, "f8") for version, names in CODECS.items() for name in names]]
    + [(version, "zstd", dtype) for version in CODECS for dtype in DTYPES[1:]],
)
def test_files_are_those_that_zarr_writes(tmp_path, version, codec, dtype):
    values = numbers((20, 30), dtype)
    values[::7, ::10] = 1
    options = {"zarr_format": int(version), "compressors": CODECS[version][codec]()}
    by_zarr, by_us, asked = written(tmp_path, values, (5, 10), WHOLE, **options)
    assert not asked
    if codec == "gzip":
        # The time is in the header.
        assert by_zarr.keys() == by_us.keys()
        np.testing.assert_array_equal(whole(zarr.open_array(tmp_path / "direct", mode="r")), values)
    else:
        assert by_us == by_zarr


@pytest.mark.parametrize(
    ("index", "value"),
    [
        # Parts of chunks, steps, and values that are cast.
        ((slice(0, 7), slice(0, 30)), numbers((7, 30))),
        ((slice(0, 20, 2), slice(0, 30)), numbers((10, 30))),
        (WHOLE, numbers((20, 30), "i4")),
        (WHOLE, np.ma.masked_greater(numbers((20, 30)), 50)),
        ((slice(0, 5), slice(0, 10)), 3.0),
        ((slice(5, 10), slice(10, 20)), np.zeros((5, 10))),
    ],
    ids=["part", "steps", "cast", "masked", "scalar", "empty"],
)
def test_what_is_not_whole_chunks_of_numbers_is_written_by_zarr(tmp_path, index, value):
    folder, made = tmp_path / "x", {}
    for name in ("zarr", "direct"):
        array = zarr.create_array(folder / name, shape=(20, 30), chunks=(5, 10), dtype="f8")
        array[...] = 7.0
        (direct(array) if name == "direct" else array)[index] = value
        made[name] = files_of(folder / name)
    assert made["direct"] == made["zarr"]


@pytest.mark.parametrize("fill_value", [0.0, -0.0, np.nan, 7.0])
@pytest.mark.parametrize("value", [0.0, -0.0, np.nan, 7.0])
@pytest.mark.parametrize("writes_empty", [True, False])
def test_chunks_of_the_fill_value_alone_have_no_file(tmp_path, fill_value, value, writes_empty):
    values = numbers((20, 30))
    values[:5] = value
    options = {"fill_value": fill_value, "config": {"write_empty_chunks": writes_empty}}
    by_zarr, by_us, _ = written(tmp_path, values, (5, 10), WHOLE, **options)
    assert by_us == by_zarr


def test_errors_of_writing_are_zarrs(tmp_path):
    array = plain(tmp_path, numbers((10, 10)), (5, 5))
    whole_array = (slice(0, 10), slice(0, 10))
    opened = zarr.open_array(tmp_path / "x.zarr", mode="r")
    with pytest.raises(ValueError, match="read-only"):
        direct(opened)[whole_array] = numbers((10, 10))
    for shape in ((10, 9), (1, 10)):
        with pytest.raises(ValueError, match="shape"):
            direct(array)[whole_array] = numbers(shape)
    # A chunk's file cannot take the place of a directory. Zarr's threads may still write to the other array.
    array = zarr.create_array(tmp_path / "y.zarr", shape=(10, 10), chunks=(5, 5), dtype="f8")
    (tmp_path / "y.zarr" / "c" / "0" / "0").mkdir(parents=True)
    with pytest.raises(OSError, match="irectory"):
        direct(array)[whole_array] = numbers((10, 10))
    # Zarr's threads may be writing the other chunks.
    assert eventually(lambda: not [*tmp_path.rglob("*.partial")])


@pytest.mark.parametrize("threads", [True, False])
def test_of_arrays_to_zarr(tmp_path, threads, in_threads, runtime):
    scheduler = (in_threads if threads else runtime).get
    x = da.from_array(numbers((20, 33)), chunks=(10, 11)) * 2
    for name, get in (("ours", scheduler), ("theirs", "threads")):
        target = zarr.create_array(tmp_path / name, shape=(40, 33), chunks=(5, 11), dtype=x.dtype)
        with dask.config.set(scheduler=get):
            da.to_zarr(x, target, region=(slice(10, 30), slice(None)))
            stored = da.store(x, target, regions=(slice(0, 20), slice(None)), return_stored=True, lock=False)
        np.testing.assert_array_equal(stored.compute(scheduler=get), x.compute(scheduler="synchronous"))
    assert files_of(tmp_path / "ours") == files_of(tmp_path / "theirs")
