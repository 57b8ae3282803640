"""What is told of files that are not on local disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dask.array as da
import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.registry import _registry

import dask_mars
from dask_mars import Runtime
from dask_mars.checkpointing.elsewhere import Elsewhere, known_of, source_at, source_named, zarr_source
from dask_mars.checkpointing.facts import facts_of
from dask_mars.checkpointing.sources import compared, sources_of
from tests.checkpointing.test_checkpoint import ALL, calls, interrupted, stepped
from tests.checkpointing.test_facts import prepared


class Bucket(LocalFileSystem):
    """A file system that does not say that it is local, nor more of its files than a test wants."""

    protocol = "bucket"
    cachable = False
    #: What is told of each file; None for all.
    told: dict[str, Any] | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"auto_mkdir": True, **options})

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix("bucket://"))

    def info(self, path: Any, **options: Any) -> Any:
        found = super().info(path, **options)
        if self.told is None or found["type"] == "directory":
            return found
        return {"name": found["name"], "size": found["size"], "type": "file", **self.told}


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    yield Bucket()
    Bucket.told = None
    _registry.pop("bucket")


def known(*sources: Any) -> dict[str, str | None]:
    return known_of(sources)


def name_of(source: Any) -> str:
    assert isinstance(source, Elsewhere)
    return source.name


@pytest.mark.parametrize("is_file", [True, False])
def test_what_is_told_is_another_when_a_file_is(bucket: Bucket, tmp_path: Path, is_file: bool) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12")
    Bucket.told = {"ETag": "1", "LastModified": None, "atime": 1}
    source = source_at(bucket, str(path if is_file else tmp_path), is_file)
    before = known(source)
    Bucket.told["atime"] = 2
    assert known(source) == before != {name_of(source): None}
    Bucket.told["ETag"] = "2"
    changed = known(source)
    assert compared(before, changed) == ([name_of(source)], [])
    path.write_bytes(b"123")
    assert known(source) != changed
    Bucket.told.clear()
    # The same size may be of another content.
    assert known(source) == {name_of(source): None}
    assert compared(before, known(source)) == ([], [name_of(source)])


def test_directories_are_looked_into_where_files_were_expected(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12")
    (before,) = known(source_named(f"bucket://{tmp_path}")).values()
    assert before is not None
    (tmp_path / "y").write_bytes(b"12")
    assert list(known(source_named(f"bucket://{tmp_path}")).values()) != [before]


def test_of_what_is_not_there_nothing_is_told(bucket: Bucket, tmp_path: Path) -> None:
    for is_file in (False, True):
        assert list(known(source_at(bucket, str(tmp_path / "y"), is_file)).values()) == [None]


def test_web_servers_are_not_asked_for_lists() -> None:
    class Server:
        """As fsspec's, but that it cannot be asked."""

        protocol = ("http", "https")

    assert known(source_at(Server(), "https://host/array?key=secret", False)) == {"https://host/array": None}


def test_files_in_memory_that_are_written_again_are_others() -> None:
    memory = fsspec.filesystem("memory")
    try:
        memory.pipe("/elsewhere/x", b"12")
        source = source_at(memory, "/elsewhere/x", True)
        before = known(source)
        assert before == known(source) != {source.name: None}
        memory.pipe("/elsewhere/x", b"13")
        assert compared(before, known(source)).changed == ["memory://elsewhere/x"]
    finally:
        memory.rm("/elsewhere", recursive=True)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("postgresql://ada:secret@host/table", "postgresql://host/table"),
        ("memory://a/x?signature=secret", "memory://a/x"),
        ("unheard://a/x", "unheard://a/x"),
    ],
)
def test_names_tell_no_secrets(address: str, name: str) -> None:
    source = source_named(address)
    assert isinstance(source, Elsewhere)
    assert source.name == name
    assert known(source) == {name: None}


def test_texts_are_no_files(tmp_path: Path) -> None:
    assert source_named("no such file") is None
    assert source_named("\0" * 5000) is None
    assert source_named(str(tmp_path)) == tmp_path
    assert source_named(f"file://{tmp_path}/x") == tmp_path / "x"


class DirFileSystem(NamedTuple):
    """What is looked at of fsspec's file system of that name, which starts a thread that stays."""

    path: str
    fs: Any


def test_parts_of_file_systems_are_what_they_are_parts_of(tmp_path: Path) -> None:
    part = DirFileSystem(str(tmp_path), fsspec.filesystem("file"))
    assert source_at(part, "a/x", True) == tmp_path / "a" / "x"


def test_what_is_read_and_written_elsewhere_is_not_begun_twice(zarr: Any, bucket: Bucket, tmp_path: Path) -> None:
    array = zarr.open_array(f"bucket://{tmp_path}/z", mode="w", shape=(40, 40), chunks=(10, 10), dtype="f8")
    other = zarr.open_array(f"bucket://{tmp_path}/y", mode="w", shape=(40, 40), chunks=(10, 10), dtype="f8")
    graph = prepared(lambda: da.store(da.from_zarr(array) + 1, array, lock=False))
    facts = facts_of(graph, sources_of(graph))
    assert len(facts.unrepeatable) == 16
    assert facts.written == sources_of(graph) == {zarr_source(array)}
    graph = prepared(lambda: da.store(da.from_zarr(array) + 1, other, lock=False))
    facts = facts_of(graph, sources_of(graph))
    assert not facts.unrepeatable
    assert facts.written == {zarr_source(other)}


def test_arrays_of_unknown_stores_are_named(zarr: Any) -> None:
    class Strange(zarr.storage.MemoryStore):  # type: ignore[misc]
        pass

    array = zarr.open_array(Strange(), mode="w", shape=4, chunks=2, dtype="f8")
    assert known(zarr_source(array)) == {"Strange": None}
    array = zarr.open_array(zarr.storage.MemoryStore(), mode="w", shape=4, chunks=2, dtype="f8")
    assert zarr_source(array) is None


@pytest.mark.parametrize("is_told", [True, False])
def test_what_has_changed_elsewhere_is_read_again(
    runtime: Runtime, tmp_path: Path, zarr: Any, bucket: Bucket, is_told: bool
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    address = f"bucket://{tmp_path}/source.zarr"
    source = zarr.open_array(address, mode="w", shape=(400, 50), chunks=(50, 50), dtype="f8")
    source[:] = 1
    Bucket.told = None if is_told else {}

    def compute() -> Any:
        x = stepped(da.from_zarr(address), folder)
        with dask_mars.checkpoint(tmp_path / "saved", cost_share=ALL):
            return x.sum().compute(scheduler=runtime.get)

    interrupted(compute, folder, 5)
    before = calls(folder)
    if not is_told:
        with pytest.warns(RuntimeWarning, match=r"whether bucket://.*source.zarr has changed .* cannot be told"):
            assert compute() == 2 * 400 * 50
        assert calls(folder) - before < 8
        return
    source[:] = 2
    with pytest.warns(RuntimeWarning, match=r"source.zarr has changed since"):
        assert compute() == 3 * 400 * 50
    assert calls(folder) - before == 8
