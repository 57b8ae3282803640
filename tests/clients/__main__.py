"""Run the tests of libraries that compute with Dask under dask_mars, and under threads for comparison.

``python -m tests.clients`` runs every suite under both and prints what differs; ``--short`` runs the part that
continuous integration does, under threads only where a test fails. The exit code says whether a test failed that
neither fails under threads nor is explained in `known.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from tests.clients import environments
from tests.clients.known import reason_for
from tests.clients.outcomes import Outcomes, alone, count, read
from tests.clients.suites import SUITES, Suite

HERE = Path(__file__).parent


def run(suite: Suite, scheduler: str, targets: tuple[str, ...], extra: tuple[str, ...]) -> Outcomes:
    """Run tests of a suite under one scheduler and return the outcome of each."""
    reports = environments.CLIENTS / "reports"
    reports.mkdir(parents=True, exist_ok=True)
    report = reports / f"{suite.name}-{scheduler}.xml"
    report.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(str(environments.python(suite)), "-m", "pytest", "-q", "-p", "dask_mars_in_place", "--tb=short"),
            *("-p", "no:cacheprovider", "--timeout", "300", "--junitxml", str(report), "-o", "addopts="),
        ]
        if suite.from_source or suite.repository:
            where = environments.source(suite)
        else:
            where = Path(folder)
            command += ["-c", str(HERE / "pytest.ini"), "--rootdir", folder, "--pyargs"]
        environment = {
            **os.environ,
            "CLIENTS_SCHEDULER": scheduler,
            "PYTHONPATH": str(HERE / "plugin"),
            "TMPDIR": folder,
        }
        subprocess.run([*command, *suite.options, *targets, *extra], cwd=where, env=environment, check=False)
    outcomes = read(report) if report.exists() else {}
    if "passed" not in outcomes.values():
        raise click.ClickException(f"{suite.name}: no test passed under {scheduler}")
    return outcomes


def compare(suite: Suite, extra: tuple[str, ...]) -> tuple[list[str], bool]:
    """Run a suite under both schedulers; return lines about it, and whether all differences are explained."""
    versions = environments.versions(suite)
    began = time.monotonic()
    ours = run(suite, "mars", suite.targets, extra)
    between = time.monotonic()
    threads = run(suite, "threads", suite.targets, extra)
    seconds = f"{between - began:.0f} s and {time.monotonic() - between:.0f} s"
    lines = [f"| {suite.name} ({versions}) | {count(ours)} | {count(threads)} | {seconds} |"]
    return _differences(suite, lines, alone(ours, threads))


def shortly(suite: Suite, extra: tuple[str, ...]) -> tuple[list[str], bool]:
    """Run a part of a suite under dask_mars; return lines about it, and whether it is as expected."""
    ours = run(suite, "mars", suite.short, extra)
    lines = [f"{suite.name} ({environments.versions(suite)}): {count(ours)}"]
    failed = alone(ours, {})
    if not all(reason_for(suite.name, name) for name in failed):
        failed = alone(ours, run(suite, "threads", suite.short, extra))
    return _differences(suite, lines, failed)


def _differences(suite: Suite, lines: list[str], names: list[str]) -> tuple[list[str], bool]:
    reasons = {name: reason_for(suite.name, name) for name in names}
    lines += [f"  {name}: {reason or 'UNEXPLAINED'}" for name, reason in reasons.items()]
    return lines, all(reasons.values())


@click.command()
@click.option("--short", is_flag=True, help="Run what continuous integration does.")
@click.option("--suite", "names", multiple=True, type=click.Choice([suite.name for suite in SUITES]))
@click.argument("extra", nargs=-1)
def main(short: bool, names: tuple[str, ...], extra: tuple[str, ...]) -> None:
    """Run clients' tests; EXTRA goes to pytest."""
    everything, fine = [], True
    for suite in SUITES:
        if (names and suite.name not in names) or (short and not suite.short):
            continue
        try:
            lines, explained = (shortly if short else compare)(suite, extra)
        except (click.ClickException, subprocess.CalledProcessError) as error:
            lines, explained = [str(error)], False
        everything += lines
        fine &= explained
    print("\n".join(everything))
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
