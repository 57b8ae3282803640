"""The benchmarks of the store: the chain runs in the memory that it is said to, and figures are printed."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from click.testing import CliRunner

from studies.__main__ import main
from studies.store import MIB, chain

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("dask_mars.store._arena") is None,
    reason="without the extension there is nothing to see",
)


def test_the_chain_makes_a_new_array():
    values = np.linspace(0, 1, 5)
    before = values.copy()
    np.testing.assert_allclose(chain(values), np.sqrt(np.abs(((values * 2 + 1) - values) * 0.5)))
    np.testing.assert_array_equal(values, before)


def test_figures_are_printed_as_tables():
    sizes = ["--chain-bytes", str(MIB), "--result-bytes", str(MIB)]
    result = CliRunner().invoke(main, ["store", "--rounds", "1", "--repeat", "2", *sizes])
    assert result.exit_code == 0, result.output
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in result.output.splitlines()]
    chains = [row for row in rows if row[0].startswith("chain")]
    assert [row[0] for row in chains] == ["chain", "chain, sealed"] * 2
    assert all(float(row[2]) > 0 and float(row[4]) > 0 for row in chains)
    assert {"seal", "read in another process"} <= {row[0] for row in rows}
