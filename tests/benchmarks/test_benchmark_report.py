"""What the benchmarks' commands have in common: options, processes that answer, and reports."""

from __future__ import annotations

import io
import sys

from benchmarks.jobs import Job, Measurement
from benchmarks.machine import machine_facts
from benchmarks.report import Files, agrees, conclude, markdown_table, plain_console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_files_get_what_is_printed_without_the_colours_of_a_terminal(monkeypatch, tmp_path):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    table = markdown_table("graph", "seconds")
    table.add_row("tree", "1")
    file = tmp_path / "tables.md"
    conclude(plain_console(), [table, table], "2 workers.", [], machine_facts(), Files(None, file))
    text = file.read_text()
    assert "\x1b" not in text
    assert text.count("| tree  |       1 |") == 2
    assert text.splitlines()[0].endswith("; 2 workers.")


def test_results_agree_as_far_as_both_have_them_but_for_the_last_digits():
    def measured(*values: list[float]) -> Measurement:
        return Measurement(Job("peer", "workload", 0, 1, 1, 1.0, 1.0), values=list(values))

    reference = [measured([1.0], [2.0]), measured([1.0])]
    assert agrees(measured([1.0 + 1e-12], [2.0], [3.0]), reference)
    assert agrees(measured(), reference)
    for wrong in ([1.001], [float("nan")], [1.0, 1.0]):
        assert not agrees(measured(wrong), reference)
