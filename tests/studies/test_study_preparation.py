"""The comparison of preparations: every graph is prepared by both ways, and as large as it was asked for."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from studies.__main__ import main
from studies.preparation import GRAPHS, WAYS


@pytest.mark.parametrize("graph", GRAPHS)
def test_graphs_are_about_as_large_as_asked_for(graph):
    dsk, keys = GRAPHS[graph](1000)
    assert 500 <= WAYS["mars"](dsk, keys) <= 2000
    assert 500 <= WAYS["threads"](dsk, keys) <= 4000


def test_figures_are_printed_as_a_table():
    result = CliRunner().invoke(main, ["preparation", "-g", "tree", "-n", "100", "-p", "mars", "--repeat", "1"])
    assert result.exit_code == 0, result.output
    (row,) = [line for line in result.output.splitlines() if line.startswith("| tree ")]
    assert [cell.strip() for cell in row.strip("|").split("|")][1:4] == ["100", "mars", "99"]
