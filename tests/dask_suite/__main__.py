"""Run Dask's own tests under dask_mars, and under threads for comparison.

``python -m tests.dask_suite --whole`` runs every suite under both and prints what differs;
``python -m tests.dask_suite`` runs the part that continuous integration does. Either way the exit code says
whether a test failed that neither fails under threads nor is explained in `known.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import click

from tests.dask_suite.known import DIFFERENCES

HERE = Path(__file__).parent

#: Run whole: the packages and modules of Dask that compute something with a scheduler.
WHOLE = {
    "array": ["dask.array.tests"],
    "bag": ["dask.bag"],
    "delayed and base": [
        "dask.tests.test_base",
        "dask.tests.test_cache",
        "dask.tests.test_callbacks",
        "dask.tests.test_delayed",
        "dask.tests.test_layers",
        "dask.tests.test_hashing",
    ],
    "diagnostics": ["dask.diagnostics"],
    "dataframe": ["dask.dataframe"],
}

#: Run by continuous integration, under dask_mars alone.
SHORT = {
    "short": [
        "dask.array.tests.test_array_core",
        "dask.array.tests.test_overlap",
        "dask.array.tests.test_rechunk",
        "dask.tests.test_delayed",
        "dask.diagnostics.tests.test_progress",
        "dask.diagnostics.tests.test_profiler",
    ]
}

Outcomes = dict[str, str]


def run(scheduler: str, targets: list[str], extra: tuple[str, ...]) -> Outcomes:
    """Run tests under one scheduler and return the outcome of each."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.dask_suite.plugin"),
            *("-c", str(HERE / "pytest.ini"), "--rootdir", folder, "-p", "no:cacheprovider"),
            *("--timeout", "300", "--junitxml", str(report), "--tb=short", "--pyargs", *targets, *extra),
        ]
        environment = {
            **os.environ,
            "DASK_SUITE_SCHEDULER": scheduler,
            "PYTHONPATH": os.pathsep.join([str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]),
        }
        subprocess.run(command, cwd=folder, env=environment, check=False)
        if not report.exists():
            raise click.ClickException("pytest wrote no report")
        return _outcomes(report)


def _outcomes(report: Path) -> Outcomes:
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}".lstrip(".:")
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            outcomes[name] = "failed"
        else:
            outcomes[name] = "skipped" if "skipped" in kinds else "passed"
    return outcomes


def _count(outcomes: Outcomes) -> str:
    counts = Counter(outcomes.values())
    return ", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "failed", "skipped"))


def _explained(name: str) -> str | None:
    for part, reason in DIFFERENCES.items():
        if part in name:
            return reason
    return None


@click.command()
@click.option("--whole", is_flag=True, help="Run every suite, and threads for comparison.")
@click.option("--suite", "names", multiple=True, help="Of the whole, only this one.")
@click.argument("extra", nargs=-1)
def main(whole: bool, names: tuple[str, ...], extra: tuple[str, ...]) -> None:
    """Run Dask's own tests; EXTRA goes to pytest."""
    suites = WHOLE if whole or names else SHORT
    unexplained = []
    lines = []
    for suite, targets in suites.items():
        if names and suite not in names:
            continue
        ours = run("mars", targets, extra)
        threads = run("threads", targets, extra) if suites is WHOLE else {}
        lines.append(f"{suite}: dask_mars {_count(ours)}")
        if threads:
            lines.append(f"{suite}: threads {_count(threads)}")
        for name in sorted(name for name, outcome in ours.items() if outcome == "failed"):
            if threads.get(name) == "failed":
                lines.append(f"  {name}: fails under threads too")
                continue
            reason = _explained(name)
            lines.append(f"  {name}: {reason or 'UNEXPLAINED'}")
            if reason is None:
                unexplained.append(name)
    print("\n".join(lines))
    sys.exit(1 if unexplained else 0)


if __name__ == "__main__":
    main()
