"""The catalogue of cases that are run beside a limit of memory."""

from __future__ import annotations

from benchmarks import limit_cases, spilling_cases
from benchmarks.memory_case import Case

#: Every case by name, in the order of the report.
CASES: dict[str, Case] = {case.name: case for case in (*spilling_cases.CASES, *limit_cases.CASES)}

#: Names of cases by the question: do data leave memory in time, and does the limit hold whatever tasks do.
GROUPS: dict[str, list[str]] = {
    "spilling": [case.name for case in spilling_cases.CASES],
    "limits": [case.name for case in limit_cases.CASES],
}
