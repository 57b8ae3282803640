"""The cost of operands by size: graphs are as large as asked for, and every figure is printed."""

from __future__ import annotations

import dask
import numpy as np
import pytest
from click.testing import CliRunner

from dask_mars.optimize.prepare import prepare
from studies.__main__ import main
from studies.operands import GRAPHS, growth, measure

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("graph", GRAPHS)
def test_graphs_are_about_as_large_as_asked_for(graph):
    dsk, keys = GRAPHS[graph](1000, 1)
    assert 999 <= len(prepare(dsk, keys)) <= 1400


def test_graphs_of_other_seeds_have_other_keys():
    for make in GRAPHS.values():
        assert not set(make(20, 1)[1]) & set(make(20, 2)[1])


def test_a_tree_counts_its_leaves():
    dsk, (root,) = GRAPHS["tree"](1000, 1)
    assert dask.get(dsk, root) == 500


def test_growth_is_that_of_the_extremes():
    assert growth([2.0, 3.0, 1.5]) == 2.0


def test_what_takes_too_long_is_said_to():
    assert measure("independent", 1000, 1, timeout_s=0.001, sampled=False) is None
    result = CliRunner().invoke(
        main, ["operands", "-g", "tree", "-n", "100", "--rounds", "1", "--timeout", "0.001"]
    )
    assert result.exit_code == 0, result.output
    (row,) = [line for line in result.output.splitlines() if line.startswith("| tree ")]
    assert "timeout" in row


def test_figures_are_printed_as_tables():
    arguments = ["-g", "array", "-n", "100", "--rounds", "1", "--workers", "1"]
    result = CliRunner().invoke(main, ["operands", *arguments])
    assert result.exit_code == 0, result.output
    row, flatness = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in result.output.splitlines()
        if line.startswith("| array ")
    ]
    assert row[1] == "100"
    seconds, each_us = float(row[2]), float(row[3])
    assert np.isclose(seconds / 100 * 1e6, each_us, rtol=0.02)
    assert flatness == ["array", "1.00"]
