"""Commands of the studies: each prints its table. What they count is tested where it can be worked out by hand."""

from __future__ import annotations

import importlib
import subprocess

import dask
import dask.array as da
import pytest
from click.testing import CliRunner

from benchmarks.report import MIB
from dask_mars.optimize.prepare import prepare
from dask_mars.scheduler.policies import POLICIES
from studies import operands, preparation
from studies.__main__ import main
from studies.apart import call_apart
from studies.graphs import sized_graph
from studies.policies import balance, moved_bytes
from studies.profiling import CLIENT_PARTS, OPERAND_PARTS, ORDER, WORKER_PARTS

IDLE = "idle -k arrays --chunk-bytes 65536 --trim 0.1 -r 1"
STORE = f"store --rounds 1 --repeat 1 --chain-bytes {MIB} --result-bytes {MIB}"


@pytest.mark.parametrize(
    ("command", "cells"),
    [
        ("order -g svd", ["svd", "layers", "66", "176"]),
        ("policies -g svd -n 2", ["svd"]),
        pytest.param(
            "preparation -g tree -n 100 -p mars --repeat 1",
            ["tree", "100", "mars", "99"],
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "operands -g array -n 100 --rounds 1 --workers 1", ["array", "100"], marks=pytest.mark.nightly
        ),
        pytest.param(
            "profile -w noop-2000 --scale 0.02 --rounds 1 --workers 1",
            ["engine", "state machine"],
            marks=pytest.mark.nightly,
        ),
        pytest.param(IDLE, ["ms", "warm", "workers restarted"], marks=pytest.mark.nightly),
        pytest.param(STORE, ["chain, sealed"], marks=pytest.mark.nightly),
    ],
    ids=lambda value: value.partition(" ")[0] if isinstance(value, str) else "",
)
def test_tables_are_printed(command: str, cells: list[str]) -> None:
    result = CliRunner().invoke(main, command.split())
    assert result.exit_code == 0, result.output
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in result.output.splitlines()]
    assert any(row[: len(cells)] == cells for row in rows), result.output


@pytest.mark.parametrize("part", CLIENT_PARTS + WORKER_PARTS + OPERAND_PARTS)
def test_functions_that_are_timed_exist(part):
    module, kind, name, process, title = part
    owner = importlib.import_module(module)
    assert callable(getattr(getattr(owner, kind) if kind else owner, name))
    assert (process, title) in ORDER


@pytest.mark.slow
def test_graphs_are_about_as_large_as_asked_for():
    for make in preparation.GRAPHS.values():
        dsk, keys = make(1000)
        assert 500 <= preparation.WAYS["mars"](dsk, keys) <= 2000
    for make in operands.GRAPHS.values():
        dsk, keys = make(1000, 1)
        assert 999 <= len(prepare(dsk, keys)) <= 1400
        assert not set(make(20, 1)[1]) & set(make(20, 2)[1])
    dsk, (root,) = operands.GRAPHS["tree"](1000, 1)
    assert dask.get(dsk, root) == 500


def test_policies_are_counted():
    sized = sized_graph((da.ones((8, 8), chunks=2) + 1).sum(), composed=False)
    for policy in POLICIES:
        simulation = sized.simulate(3, policy)
        assert sorted(simulation.order) == sorted(sized.computed())
        assert 0 < balance(sized, simulation, 3) <= 1
    assert moved_bytes(sized, sized.simulate(1).workers) == 0
    assert moved_bytes(sized, sized.simulate(4).workers) > 0


def test_functions_are_called_apart_and_errors_come_back():
    assert call_apart(int, "7") == 7
    with pytest.raises(subprocess.CalledProcessError):
        call_apart(int, "seven")
