"""What is said of checkpoints, in programs and on command lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dask_mars
from dask_mars import Runtime
from dask_mars.__main__ import main
from dask_mars.checkpointing.directory import ComputationDirectory
from dask_mars.commands import group
from tests.checkpointing.test_checkpoint import blocks, interrupted_sum


@pytest.fixture
def saved(runtime: Runtime, tmp_path: Path) -> Path:
    """Return a directory with the checkpoints of two computations."""
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        interrupted_sum(blocks(folder, 10, 8, seconds=0.01), runtime, folder, tmp_path / "saved", 3)
    return tmp_path / "saved"


def test_checkpoints_are_listed_and_removed(saved: Path) -> None:
    found = dask_mars.checkpoints(saved)
    assert len(found) == len(list(found)) == len(found[:]) == 2
    for each in found:
        assert each.chunks >= 2
        assert each.saves_s >= 0.02
        assert each.size_bytes > 100
        assert "sum-aggregate" in each.name
        assert set(each.versions) == {"dask_mars", "dask", "numpy", "python"}
        assert each.id in repr(found)
        assert f">{each.id}</td>" in found._repr_html_()
    first, second = found
    first.remove()
    first.remove()
    found = dask_mars.checkpoints(saved)
    assert [each.id for each in found] == [second.id]
    # What is no checkpoint is left alone.
    (saved / "mine").mkdir()
    (saved / "mine" / "notes").write_text("keep")
    (saved / ("0" * 32)).mkdir(mode=0o700)
    (saved / ("0" * 32) / "about.json").write_text("{]")
    found = dask_mars.checkpoints(saved)
    assert len(found) == found.remove() == 2
    assert len(found) == 0
    assert repr(found) == f"no checkpoints in {saved}"
    assert (saved / "mine" / "notes").read_text() == "keep"


def run(command: Any, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(command, arguments)
    return result.exit_code, result.output


def test_command_lines_list_and_remove(saved: Path, tmp_path: Path) -> None:
    first, second = dask_mars.checkpoints(saved)
    for command in (main, group):
        code, output = run(command, "checkpoint", str(saved))
        assert (code, output.count("sum-aggregate")) == (0, 2)
    code, output = run(group, "checkpoint", str(saved), "--remove", first.id[:8])
    assert code == 0
    assert first.id not in output
    assert second.id in output
    code, output = run(group, "checkpoint", str(saved), "--remove", "xyz")
    assert (code, "no checkpoints have an id that begins with 'xyz'" in output) == (2, True)
    directory = ComputationDirectory(saved, second.id)
    directory.acquire(0.0)
    code, output = run(group, "checkpoint", str(saved), "--remove", second.id)
    assert (code, "computes the same at this moment" in output) == (1, True)
    assert "in use" in run(group, "checkpoint", str(saved), "--remove-all")[1]
    directory.release()
    assert run(group, "checkpoint", str(saved), "--remove-all") == (0, f"no checkpoints in {saved}\n")
    assert len(dask_mars.checkpoints(tmp_path / "none")) == 0
    code, output = run(main, "checkpoint", str(tmp_path / "none"))
    assert (code, "does not exist" in output) == (2, True)
