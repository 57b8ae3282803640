"""What idle engines give back: the figures are printed, and those that must fall do."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from benchmarks.report import MIB
from studies.__main__ import main
from studies.apart import call_apart
from studies.idle import memory


@pytest.mark.skipif(sys.platform != "linux", reason="pages of arenas go back on Linux alone")
def test_memory_falls_from_stage_to_stage():
    found = call_apart(memory, "arrays", 2 * MIB, 0.2)
    assert found["with data"] - found["at first"] > 32 * MIB
    assert found["with data"] - found["without workers"] > 64 * MIB
    assert found["without workers"] < found["at first"]


def test_figures_are_printed_as_tables():
    arguments = ["idle", "-k", "arrays", "--chunk-bytes", "65536", "--trim", "0.1", "-r", "1"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "| workers restarted" in result.output
    assert result.output.count("| arrays ") == 2
