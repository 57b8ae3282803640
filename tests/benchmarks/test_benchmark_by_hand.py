"""Loops by hand: they give Dask's results, and the command says what it needs."""

from __future__ import annotations

import importlib.util

import dask
import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.by_hand import LOOPS, in_chunks


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_gives_dasks_result(name):
    for module in ("numba", *LOOPS[name].modules):
        pytest.importorskip(module)
    from benchmarks.by_hand_loops import BY_HAND

    # Of an awkward size; some numbers on the borders of bins.
    arrays = LOOPS[name].make(1_234_567)
    for x in arrays:
        x.flat[:101] = np.linspace(0, 1, 101)
    result = dask.compute(*LOOPS[name].collections(*map(in_chunks, arrays)), scheduler="sync")
    np.testing.assert_allclose(np.ravel(BY_HAND[name](*arrays)), np.ravel(result), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("together", [[], ["--together"]])
def test_tables_have_a_row_for_each_loop(together):
    pytest.importorskip("numba")
    arguments = ["limit", "-l", "sum", "-l", "products", "-s", "persisted", "--size", "1 MiB", "--rounds=1"]
    result = CliRunner().invoke(main, [*arguments, "--repeat=1", "--workers=1", *together])
    assert result.exit_code == 0, result.output
    rows = [line.split("|") for line in result.output.splitlines() if line.startswith(("| sum", "| products"))]
    assert len(rows) == 4
    # By hand, or by mars, in milliseconds.
    assert all(float(row[3].replace(",", "")) > 0 for row in rows)


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(main, ["limit", "-l", "sum", "-s", "memory"])
    assert result.exit_code == 1
    assert "numba cannot be imported here: install dask_mars with its extra 'benchmarks'." in result.output
