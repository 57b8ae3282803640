"""Files of checkpoints that are cut, flipped, swapped and lost: what they hold is computed again."""

from __future__ import annotations

import os
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dask_mars
from dask_mars import Runtime
from dask_mars.checkpointing import session
from dask_mars.checkpointing.directory import ComputationDirectory
from dask_mars.checkpointing.facts import facts_of
from dask_mars.errors import SavedChunkLost
from dask_mars.graph.chunks import ChunkGraph
from tests.checkpointing.test_checkpoint import ALL, blocks, interrupted
from tests.checkpointing.test_restore import values_of

#: Whether to search for minutes.
LONG = "LONG" in os.environ
Files = dict[str, bytes]


def flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 20])):
        if changed:
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def corrupt(files: Files, others: Files, chance: random.Random) -> Files:
    """Return files that something has happened to."""
    found = dict(files)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        names = sorted(found)
        if not names:
            break
        name = chance.choice(names)
        data = found[name]
        what = chance.choice(["flip", "flip", "cut", "swap", "lose", "zero", "grow", "foreign"])
        if what == "flip":
            found[name] = flipped(data, chance)
        elif what == "cut":
            found[name] = data[: chance.randrange(len(data) + 1)]
        elif what == "swap":
            other = chance.choice(names)
            found[name], found[other] = found[other], data
        elif what == "lose":
            del found[name]
        elif what == "zero":
            start = chance.randrange(len(data) + 1)
            stop = min(len(data), start + chance.choice([1, 64, 4096]))
            found[name] = data[:start] + b"\0" * (stop - start) + data[stop:]
        elif what == "grow":
            found[name] = data + data[: chance.randrange(len(data) + 1)]
        else:
            found[name] = others[chance.choice(sorted(others))]
    return found


def read_files(directory: Path) -> Files:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "lock"}


def write_files(directory: Path, files: Files) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700, parents=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)


@pytest.fixture
def saved(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ChunkGraph, str, Files, Files]:
    """Return a graph, its identity, and what is saved of it in the middle; and the same of another one."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "other").mkdir()
    graphs: list[ChunkGraph] = []
    restore = session.restore

    def watched(graph: ChunkGraph, *rest: Any) -> Any:
        graphs.append(graph)
        return restore(graph, *rest)

    monkeypatch.setattr(session, "restore", watched)
    found: list[Files] = []
    for where, after in ((folder, 5), (folder / "other", 4)):
        x = blocks(where, 100, 8)

        def compute(x: Any = x, where: Path = where) -> None:
            with dask_mars.checkpoint(tmp_path / "saved" / where.name, cost_share=ALL):
                (x * 2).rechunk((150, 100)).map_blocks(np.cos, dtype=float).compute(scheduler=runtime.get)

        interrupted(compute, where, after)
        (each,) = dask_mars.checkpoints(tmp_path / "saved" / where.name)
        found.append(read_files(each.path))
        if where == folder:
            identity = each.id
    monkeypatch.undo()
    return graphs[0], identity, found[0], found[1]


def evaluated(graph: ChunkGraph) -> list[Any]:
    values = values_of(graph)
    return [values[chunk] for chunk in graph.outputs]


def result(graph: ChunkGraph, directory: ComputationDirectory) -> list[Any]:
    """Return what comes of a graph and what is saved of it, as a session finds it out."""
    verify = False
    while True:
        left = session.restore(graph, directory, facts_of(graph), verify=verify).graph
        try:
            return evaluated(left)
        except SavedChunkLost:
            assert not verify
            verify = True


@pytest.mark.timeout(900)
def test_no_corruption_gives_a_wrong_result(saved: Any, tmp_path: Path) -> None:
    graph, identity, files, others = saved
    root = tmp_path / "corrupt"
    (tmp_path / "folder" / "stop").unlink()
    expected = evaluated(graph)
    chance = random.Random(1)
    directory = ComputationDirectory(root, identity)
    write_files(directory.path, files)
    whole = session.restore(graph, directory, facts_of(graph))
    assert whole.existing
    assert len(whole.graph) < len(graph)
    np.testing.assert_array_equal(evaluated(whole.graph), expected)
    for _ in range(10_000 if LONG else 40):
        write_files(directory.path, corrupt(files, others, chance))
        np.testing.assert_array_equal(result(graph, directory), expected)


def test_computations_end_well_whatever_has_become_of_files(runtime: Runtime, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    x = blocks(folder, 100, 8)
    expected = (x * 2).compute(scheduler="sync")
    chance = random.Random(3)

    def compute() -> Any:
        with dask_mars.checkpoint(tmp_path / "saved", cost_share=ALL):
            return (x * 2).compute(scheduler=runtime.get)

    interrupted(compute, folder, 13)
    (each,) = dask_mars.checkpoints(tmp_path / "saved")
    files = read_files(each.path)
    damaged = {name: flipped(data, random.Random(5)) for name, data in files.items() if name.endswith(".chunk")}
    assert damaged
    write_files(each.path, {**files, **damaged})
    with pytest.warns(RuntimeWarning, match="cannot be read: its checksum is .* computed again"):
        np.testing.assert_array_equal(compute(), expected)
    assert list((tmp_path / "saved").iterdir()) == []
    for _ in range(100 if LONG else 5):
        write_files(each.path, corrupt(files, files, chance))
        with warnings.catch_warnings():
            # That something is computed again is said.
            warnings.simplefilter("ignore", RuntimeWarning)
            np.testing.assert_array_equal(compute(), expected)
