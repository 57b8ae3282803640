"""What is left of those who looked: ``python -m benchmarks reloads``."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import psutil

from benchmarks import options
from benchmarks.report import MIB, markdown_table, plain_console
from benchmarks.viewers_child import graph_of, watching

#: Chunks along each of two dimensions, of the computation that is looked at.
_SIDE = 100
_PARTS = 10


def settled_bytes() -> int:
    """Return what this process takes once what nobody refers to is gone."""
    gc.collect()
    resident: int = psutil.Process().memory_info().rss
    return resident


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Start chromium without a window, if selenium and it are there."""
    from tests.web.browser import CHROMIUM, DRIVER, browsing

    if CHROMIUM is None or DRIVER is None:
        raise click.ClickException("there is no chromium, or no chromedriver")
    with tempfile.TemporaryDirectory() as directory, browsing(Path(directory)) as driver:
        yield driver


def heap_bytes(driver: Any) -> int:
    """Return what the page's scripts take in the browser once garbage is gone."""
    driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    used: int = driver.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"]
    return used


@options.command("reloads")
@click.option("--loads", default=1000, type=click.IntRange(min=_PARTS), help="By HTTP requests.")
@click.option("--viewers", "count", default=5, type=click.IntRange(min=1), help="How many look meanwhile.")
@click.option("--in-browser", default=0, type=click.IntRange(min=0), help="Reloads in chromium besides.")
@options.workers
def reloads(loads: int, count: int, in_browser: int, workers: int) -> None:
    """Load the page again and again while viewers look at all of it, and see what memory the server takes.

    Every load has a connection of its own, and asks for all that a browser asks for. The server's process holds a
    computation of ten thousand chunks; the loads and the viewers are other processes.
    """
    from dask_mars import Runtime

    console = plain_console()
    table = markdown_table("loads", "server, MiB", words=())
    with Runtime(workers) as runtime:
        runtime.get(graph_of(_SIDE), ("total", 0))
        with watching(runtime, count), runtime.serve() as server:
            table.add_row("0", f"{settled_bytes() / MIB:.1f}")
            command = [sys.executable, "-m", "benchmarks.reloader", server.url, server.token, str(count)]
            command += [str(loads), str(_PARTS)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                for line in process.stdout:
                    table.add_row(line.strip(), f"{settled_bytes() / MIB:.1f}")
                    process.stdin.write("\n")
                    process.stdin.flush()
            if process.returncode:
                raise click.ClickException("a load has failed")
            if in_browser:
                _reload_in_browser(console, server.link, in_browser)
    console.print(table)
    console.print(f"{loads} loads, {count} at a time, and {count} viewers.")


def _reload_in_browser(console: Any, link: str, times: int) -> None:
    table = markdown_table("reloads in chromium", "server, MiB", "page's scripts, MiB", words=())
    with browser() as driver:
        driver.get(link)
        for number in range(times + 1):
            if number % max(times // 4, 1) == 0:
                table.add_row(str(number), f"{settled_bytes() / MIB:.1f}", f"{heap_bytes(driver) / MIB:.1f}")
            driver.refresh()
        driver.get("about:blank")
    console.print(table)


__all__ = ["reloads"]
