"""Policies side by side: what is counted, and the table."""

from __future__ import annotations

import dask.array as da
import pytest
from click.testing import CliRunner

from studies.__main__ import main
from studies.graphs import sized_graph
from studies.policies import balance, moved_bytes


@pytest.mark.parametrize("policy", ["memory", "mars"])
def test_every_chunk_runs_once(policy):
    sized = sized_graph((da.ones((8, 8), chunks=2) + 1).sum(), composed=False)
    simulation = sized.simulate(3, policy)
    assert sorted(simulation.order) == sorted(sized.computed())
    assert len(simulation.steps) == 2 * len(simulation.order)
    assert 0 < balance(sized, simulation, 3) <= 1


def test_what_one_worker_makes_is_not_moved():
    sized = sized_graph((da.ones((8, 8), chunks=2) + 1).sum(), composed=False)
    assert moved_bytes(sized, sized.simulate(1).workers) == 0
    assert moved_bytes(sized, sized.simulate(4).workers) > 0


def test_the_table():
    result = CliRunner().invoke(main, ["policies", "-g", "svd", "-n", "2"])
    assert result.exit_code == 0, result.output
    assert "| svd " in result.output
    assert "mars: moved" in result.output
