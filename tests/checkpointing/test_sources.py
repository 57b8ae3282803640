"""Sources on local disks and elsewhere: their names, and whether saved chunks still count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import _registry

import dask_mars
from dask_mars import Runtime
from dask_mars.checkpointing.facts import facts_of
from dask_mars.checkpointing.locations import Remote, location_at, location_named, zarr_directory, zarr_location
from dask_mars.checkpointing.sources import changed, fingerprints, sources_of
from tests.checkpointing.test_checkpoint import ALL, calls, interrupted, stepped
from tests.checkpointing.test_facts import prepared


class Wrapped:
    """Like a file system that Zarr has made asynchronous."""

    protocol = "asyncwrapper"
    sync_fs = fsspec.filesystem("file")


class Server:
    protocol = ("https", "http")


class RemoteFiles(LocalFileSystem):  # type: ignore[misc]
    """A file system that does not say that it is local, so that workers find its files."""

    protocol = "remote"
    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"auto_mkdir": True, **options})

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix("remote://"))


@pytest.fixture
def remote() -> Iterator[None]:
    fsspec.register_implementation("remote", RemoteFiles, clobber=True)
    yield
    _registry.pop("remote")


def test_names_of_locations(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    assert location_at(fsspec.filesystem("file"), str(tmp_path)) == tmp_path
    assert location_at(Wrapped(), str(tmp_path)) == tmp_path
    assert location_at(memory, "/a/x") == Remote("memory://a/x")
    assert location_at(Server(), "https://host/array?key=secret") == Remote("https://host/array")
    for address, found in {
        "postgresql://ada:secret@host/table": Remote("postgresql://host/table"),
        "memory://a/x?signature=secret": Remote("memory://a/x"),
        "unheard://a/x": Remote("unheard://a/x"),
        "no such file": None,
        "\0" * 5000: None,
        str(tmp_path): tmp_path,
        f"file://{tmp_path}/x": tmp_path / "x",
    }.items():
        assert location_named(address) == found, address


def test_locations_of_zarr_arrays(zarr: Any, tmp_path: Path) -> None:
    class Strange(zarr.storage.MemoryStore):  # type: ignore[misc]
        pass

    def array(store: Any, **options: Any) -> Any:
        return zarr.open_array(store, mode="w", shape=4, chunks=2, dtype="f8", **options)

    assert zarr_location(array(Strange())) == Remote("Strange")
    assert zarr_location(array(zarr.storage.MemoryStore())) is None
    assert zarr_location("no array") is None
    url = f"file://{tmp_path}/b"
    try:
        by_url = array(url, storage_options={"auto_mkdir": True})
    except TypeError:
        # Newer releases open the URL of a file as they open its path.
        by_url = array(url)
    for name, local in zip("ab", (array(tmp_path / "a"), by_url), strict=True):
        assert zarr_location(local) == zarr_directory(local) == tmp_path / name
    archive = array(zarr.storage.ZipStore(tmp_path / "z.zip", mode="w"))
    assert zarr_location(archive) == tmp_path / "z.zip"
    assert zarr_directory(archive) is None
    assert zarr_location(array("memory://a/z")) == Remote("memory://a/z")


def test_fingerprints_change_with_local_files_and_with_the_token(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12")
    sources = [tmp_path / "x", tmp_path / "missing", Remote("s3://a/b")]
    before = fingerprints(sources, "one")
    assert changed(before, fingerprints(sources, "one")) == [str(tmp_path / "missing")]
    assert changed(before, fingerprints(sources[2:], "two")) == ["s3://a/b"]
    # Without a token nothing shows that a remote source is the same.
    assert changed(fingerprints(sources[2:], None), fingerprints(sources[2:], None)) == ["s3://a/b"]
    (tmp_path / "x").write_bytes(b"123")
    assert changed(before, fingerprints(sources[:1], "one")) == [str(tmp_path / "x")]
    assert changed({}, fingerprints(sources[2:], "one")) == ["s3://a/b"]


def test_a_remote_array_that_is_read_and_written_is_not_begun_twice(
    zarr: Any, tmp_path: Path, remote: None
) -> None:
    array, other = [
        zarr.open_array(f"remote://{tmp_path}/{name}", mode="w", shape=(40, 40), chunks=(10, 10), dtype="f8")
        for name in "ab"
    ]
    graph = prepared(lambda: da.store(da.from_zarr(array) + 1, array, lock=False))
    facts = facts_of(graph, sources_of(graph))
    assert len(facts.unrepeatable) == 16
    assert facts.written == sources_of(graph) == {zarr_location(array)}
    graph = prepared(lambda: da.store(da.from_zarr(array) + 1, other, lock=False))
    facts = facts_of(graph, sources_of(graph))
    assert not facts.unrepeatable
    assert facts.written == {zarr_location(other)}


def test_remote_sources_are_read_again_unless_the_token_is_the_same(
    runtime: Runtime, tmp_path: Path, zarr: Any, remote: None
) -> None:
    address = f"remote://{tmp_path}/source.zarr"
    source = zarr.open_array(address, mode="w", shape=(400, 50), chunks=(50, 50), dtype="f8")
    for number, tokens in enumerate((("a", "b"), ("a", "a"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        source[:] = 1

        def compute(token: str | None, folder: Path = folder) -> Any:
            x = stepped(da.from_zarr(address), folder)
            with dask_mars.checkpoint(folder / "saved", cost_share=ALL, token=token):
                return x.sum().compute(scheduler=runtime.get)

        interrupted(lambda compute=compute, tokens=tokens: compute(tokens[0]), folder, 5)
        before = calls(folder)
        if tokens == ("a", "a"):
            assert compute("a") == 2 * 400 * 50
            assert calls(folder) - before < 8
            continue
        source[:] = 2
        with pytest.warns(RuntimeWarning, match=r"remote://.*source.zarr may have changed .* token="):
            assert compute(tokens[1]) == 3 * 400 * 50
        assert calls(folder) - before == 8
