"""What became of each test of a suite, under two schedulers."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

#: Name of a test to "passed", "failed" or "skipped".
Outcomes = dict[str, str]


def read(report: Path) -> Outcomes:
    """Return the outcomes that a JUnit report has."""
    outcomes: Outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}".lstrip(".:")
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            outcomes[name] = "failed"
        elif outcomes.get(name) != "failed":  # an error at teardown is a case of its own
            outcomes[name] = "skipped" if "skipped" in kinds else "passed"
    return outcomes


def count(outcomes: Outcomes) -> str:
    """Return how many tests passed and failed; those that were skipped do not matter."""
    counts = Counter(outcomes.values())
    return f"{counts['passed']:,} passed, {counts['failed']:,} failed"


def alone(ours: Outcomes, threads: Outcomes) -> list[str]:
    """Return the tests that fail, or are not there, under ours and not under threads."""
    missing = [name for name, outcome in threads.items() if outcome == "passed" and name not in ours]
    return sorted(missing + [name for name in ours if ours[name] == "failed" and threads.get(name) != "failed"])
