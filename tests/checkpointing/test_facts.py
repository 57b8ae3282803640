"""What must not be saved, and what must not be begun twice."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import fsspec
import numpy as np
import pytest
from dask.callbacks import Callback

import dask_mars
from dask_mars import Runtime
from dask_mars.checkpointing import sources
from dask_mars.checkpointing.facts import facts_of
from dask_mars.checkpointing.identity import form_of, has_lasting_keys, known_by
from dask_mars.checkpointing.journal import Journal
from dask_mars.checkpointing.sources import fingerprint, sources_of
from dask_mars.errors import CheckpointFailed
from dask_mars.graph.chunks import ChunkGraph, flatten
from dask_mars.optimize.passes import Limits
from dask_mars.optimize.prepare import PrepareOptions, prepare
from tests.checkpointing.test_checkpoint import blocks, interrupted_sum


def prepared(compute: Any, **options: Any) -> ChunkGraph:
    """Return the graph that a computation hands its scheduler, prepared as for two workers."""
    found: list[ChunkGraph] = []

    class Seen(Exception):
        pass

    def scheduler(dsk: Any, keys: Any, **_: Any) -> Any:
        found.append(prepare(dsk, flatten(keys), PrepareOptions(Limits(2, lambda: 10**8), **options)))
        raise Seen

    with pytest.raises(Seen), dask.config.set(scheduler=scheduler):
        compute()
    return found[0]


X = da.ones((40, 40), chunks=10)


def test_ordinary_chunks_may_be_saved_and_what_is_stored_in_memory_not() -> None:
    graph = prepared(lambda: (X + 1).sum(axis=0).compute())
    facts = facts_of(graph)
    assert not facts.taints
    assert not facts.forced
    assert [chunk for chunk in range(len(graph)) if facts.exempt[chunk]] == graph.outputs
    graph = prepared(lambda: da.store(X + 1, np.zeros((40, 40))))
    facts = facts_of(graph)
    assert len(facts.taints) >= 16
    assert all(facts.exempt[chunk] for chunk in graph.outputs)


def test_stores_into_zarr_are_saved_with_what_was_written(zarr: Any, tmp_path: Path) -> None:
    target = zarr.open_array(tmp_path / "z", mode="w", shape=(40, 40), chunks=(10, 20), dtype="f8")
    graph = prepared(lambda: da.store(X + 1, target, lock=False))
    facts = facts_of(graph, sources_of(graph))
    assert len(facts.stores) == len(facts.forced) == 16
    assert not facts.unrepeatable
    assert facts.written == {tmp_path / "z"}
    assert sources_of(graph) == set()
    target[:10, :20] = 1
    proofs = [region.proof() for regions in facts.stores.values() for region in regions]
    assert all(proof is not None and len(proof) == 1 for proof in proofs)
    assert len({proof for proof in proofs if proof and proof[0][1] >= 0}) == 1


def test_what_is_read_is_known_and_what_is_read_and_written_is_not_begun_twice(zarr: Any, tmp_path: Path) -> None:
    array = zarr.open_array(tmp_path / "z", mode="w", shape=(40, 40), chunks=(10, 10), dtype="f8")
    graph = prepared(lambda: da.from_zarr(array).sum().compute())
    assert sources_of(graph) == {tmp_path / "z"}
    graph = prepared(lambda: da.store(da.from_zarr(array) + 1, array, lock=False))
    facts = facts_of(graph, sources_of(graph))
    assert facts.unrepeatable == facts.stores.keys()
    before = fingerprint(tmp_path / "z")
    array[:5] = 1
    assert fingerprint(tmp_path / "z") != before


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a small file of each kind."""
    directory = tmp_path_factory.mktemp("files")
    h5py, xr, pd = (pytest.importorskip(name) for name in ("h5py", "xarray", "pandas"))
    pytest.importorskip("h5netcdf")
    values = np.arange(10.0)
    with h5py.File(directory / "a.h5", "w") as file:
        file["x"] = values
    for name in ("b.nc", "c.nc"):
        xr.Dataset({"x": ("i", values)}).to_netcdf(directory / name, engine="h5netcdf")
    pd.DataFrame({"x": values}).to_csv(directory / "t.csv", index=False)
    np.save(directory / "n.npy", values)
    zarr = pytest.importorskip("zarr")
    zarr.open_array(directory / "z.zarr", mode="w", shape=10, chunks=5, dtype="f8")[:] = values
    with zarr.storage.ZipStore(directory / "z.zip", mode="w") as store:
        zarr.create_array(store, shape=10, chunks=5, dtype="f8")[:] = values
    return directory


def netcdf(source: Any) -> Any:
    import xarray as xr

    return xr.open_dataset(source, engine="h5netcdf", chunks={"i": 5})


def several_netcdf(files: Path) -> Any:
    import xarray as xr

    paths = [files / "b.nc", files / "c.nc"]
    return xr.open_mfdataset(paths, engine="h5netcdf", combine="nested", concat_dim="i")


def from_hdf5(files: Path) -> Any:
    import h5py

    # It is closed with the last that refers to it.
    return da.from_array(h5py.File(files / "a.h5")["x"], chunks=5)


def csv(path: str, **options: Any) -> Any:
    import dask.dataframe as dd

    return dd.read_csv(path, storage_options=options)


def delayed(module: str, name: str, path: str | Path) -> Any:
    function = getattr(importlib.import_module(module), name)
    return dask.delayed(function, pure=True)(path)


def zarr_in(make: Any) -> Any:
    """Return an array in a store that is made of Zarr's stores."""
    zarr = pytest.importorskip("zarr")
    return da.from_zarr(zarr.open_array(make(zarr.storage), mode="r"))


def orc(path: Path) -> Any:
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    pytest.importorskip("pyarrow.orc")
    pd.DataFrame({"x": [1.0]}).to_orc(path)
    return dd.read_orc(str(path))


@pytest.mark.parametrize(
    ("read", "names"),
    [
        (lambda files: da.from_zarr(f"{files}/z.zarr"), ["z.zarr"]),
        (
            lambda files: da.from_zarr(
                f"simplecache::file://{files}/z.zarr",
                storage_options={"simplecache": {"cache_storage": f"{files}/copies"}},
            ),
            ["simplecache://{files}/z.zarr"],
        ),
        (lambda files: da.from_zarr(f"zip::file://{files}/z.zip"), ["zip://"]),
        (lambda files: zarr_in(lambda stores: stores.ZipStore(files / "z.zip", mode="r")), ["z.zip"]),
        (
            lambda files: zarr_in(
                lambda stores: stores.WrapperStore(stores.LocalStore(files / "z.zarr", read_only=True))
            ),
            ["z.zarr"],
        ),
        (lambda files: orc(files / "o.orc"), ["o.orc"]),
        (lambda files: delayed("pandas", "read_csv", f"file://{files}/t.csv"), ["t.csv"]),
        (lambda files: db.from_sequence([str(files / "t.csv")]).map(pandas_function("read_csv")), ["t.csv"]),
        (from_hdf5, ["a.h5"]),
        (lambda files: netcdf(files / "b.nc").x.data, ["b.nc"]),
        (lambda files: several_netcdf(files).x.data, ["b.nc", "c.nc"]),
        (lambda files: netcdf(fsspec.open(f"file://{files}/b.nc").open()).x.data, ["b.nc"]),
        (lambda files: csv(f"file://{files}/t.csv"), ["t.csv"]),
        (lambda files: db.read_text(f"file://{files}/t.csv"), ["t.csv"]),
        (lambda files: delayed("numpy", "load", str(files / "n.npy")), ["n.npy"]),
        # What is not read by what is known to read is not known to be read.
        (lambda files: delayed("os.path", "getsize", files / "t.csv"), []),
    ],
)
def test_files_are_known_where_graphs_name_them(files: Path, read: Any, names: list[str]) -> None:
    graph = prepared(lambda: read(files).compute())
    # Copies and archives are not local files.
    expected = [name.replace("{files}", str(files).lstrip("/")) for name in names]
    assert sorted(path.name for path in sources_of(graph)) == expected


def pandas_function(name: str) -> Any:
    return getattr(pytest.importorskip("pandas"), name)


@pytest.mark.parametrize(
    "read",
    [
        lambda files: netcdf(fsspec.open("memory://sources/b.nc").open()).x.data,
        lambda files: da.from_array(np.load(files / "n.npy", mmap_mode="r"), chunks=5),
    ],
)
def test_keys_are_others_where_dask_looks_at_what_lies_elsewhere(files: Path, read: Any) -> None:
    def keys(offset: float) -> set[Any]:
        np.save(files / "n.npy", np.arange(10.0) + offset)
        fsspec.filesystem("memory").pipe("/sources/b.nc", (files / "b.nc").read_bytes())
        graph = prepared(lambda: read(files).compute())
        return {key for key in graph.keys if not str(key).startswith(("finalize", "('finalize"))}

    try:
        assert keys(0.0).isdisjoint(keys(1.0))
    finally:
        fsspec.filesystem("memory").store.clear()


def test_what_writes_files_begins_again_and_what_appends_does_not(tmp_path: Path) -> None:
    bag = db.from_sequence(["a", "b"], npartitions=2)
    facts = facts_of(prepared(lambda: bag.to_textfiles(str(tmp_path / "*.txt"))))
    assert facts.taints
    assert not facts.unrepeatable
    # What appends to files made anew may begin again.
    bag = db.from_sequence(range(8), npartitions=4).groupby(lambda x: x % 2, shuffle="disk")
    facts = facts_of(prepared(lambda: bag.compute(), keep_shuffles=True))
    assert facts.taints
    assert not facts.unrepeatable
    # Through the store, map outputs have a form of their own.
    graph = prepared(lambda: bag.compute())
    shuffled = facts_of(graph)
    assert shuffled.taints <= set(graph.outputs)
    assert sum(shuffled.exempt) > 4
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    if importlib.util.find_spec("tables") is None:
        return
    frame = dd.from_pandas(pd.DataFrame({"a": range(8)}), npartitions=4)
    assert facts_of(prepared(lambda: frame.to_hdf(str(tmp_path / "x.h5"), "/x"))).unrepeatable


def test_joined_chunks_have_a_form_of_their_own() -> None:
    y = da.random.default_rng(1).random((4000, 4000), chunks=250)
    alone = prepared(lambda: y.mean().compute())
    joined = prepared(lambda: dask.compute(y.mean(), y.std(), (y * 2).sum()))
    assert joined.joined_bytes
    forms = {joined.keys[chunk]: form_of(joined, chunk) for chunk in joined.joined_bytes}
    others = {alone.keys[chunk]: form_of(alone, chunk) for chunk in range(len(alone))}
    assert all(others.get(key) != form for key, form in forms.items())


def test_names_of_computations_last_where_keys_do() -> None:
    def identities(compute: Any) -> set[str]:
        return {known_by(prepared(compute))[0] for _ in range(2)}

    def seeded() -> da.Array:
        return da.random.default_rng(1).random((40, 40), chunks=10).map_blocks(lambda block: block + 1)

    assert len(identities(lambda: seeded().compute())) == 1
    assert identities(lambda: seeded().compute()) == identities(lambda: seeded().persist())
    assert identities(lambda: seeded().compute()) != identities(lambda: (seeded() + 1).compute())
    assert len(identities(lambda: dask.delayed(abs)(-1).compute())) == 2
    assert not has_lasting_keys(prepared(lambda: dask.delayed(abs)(-1).compute()))
    assert has_lasting_keys(prepared(lambda: dask.delayed(abs, pure=True)(-1).compute()))


def test_callbacks_hear_of_what_is_computed(runtime: Runtime, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    x = blocks(folder)
    compute = interrupted_sum(x, runtime, folder, tmp_path / "saved", 5)
    keys: list[Any] = []
    with Callback(posttask=lambda key, *_: keys.append(key)):
        assert compute() == x.sum().compute(scheduler="sync")
    assert keys


def test_what_cannot_be_noted_is_not_begun(
    runtime: Runtime, tmp_path: Path, zarr: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = zarr.open_array(tmp_path / "z", mode="w", shape=(40, 40), chunks=(10, 10), dtype="f8")

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Journal, "_write", fail)
    with dask_mars.checkpoint(tmp_path / "saved"), pytest.raises(CheckpointFailed, match="No space"):
        da.store(da.from_zarr(array) + 1, array, lock=False, scheduler=runtime.get)
    assert not np.any(array[:])


def test_files_are_found_in_what_literals_are_made_of(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1\n")
    opened = fsspec.open(str(tmp_path / "t.csv"))
    graph = prepared(lambda: dask.delayed(len, pure=True)((1, [(None, opened)])).compute())
    assert sources_of(graph) == {tmp_path / "t.csv"}
    endless: list[Any] = [1]
    endless.append(endless)
    graph.literals[0] = (endless,)
    assert sources_of(graph) <= {tmp_path / "t.csv"}


def test_seeds_are_not_asked_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(sources, "_read_by", lambda value, depth: asked.append(value) or [])
    graph = prepared(lambda: da.random.default_rng(0).random((40, 40), chunks=10).sum().compute())
    assert any(graph.literals)
    assert sources_of(graph) == set()
    assert not asked
