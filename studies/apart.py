"""Calls functions in processes of their own, whose memory and caches nothing has touched before."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.measure import ONE_THREAD_EACH


def call_apart(
    function: Callable[..., Any],
    *arguments: Any,
    environment: Mapping[str, str] = ONE_THREAD_EACH,
    timeout_s: float | None = None,
) -> Any:
    """Call a function in a process of its own.

    Parameters
    ----------
    function
        A module's.
    *arguments
        As JSON can have them.
    environment
        What is set there beside what is set here; by default that BLAS has one thread.
    timeout_s
        What it may take.

    Returns
    -------
    object
        What the function returns, as it is after a way through JSON.

    Raises
    ------
    subprocess.TimeoutExpired
        It took too long.
    subprocess.CalledProcessError
        It raised; standard error says what.
    """
    command = [sys.executable, "-c", "from studies.apart import answer; answer()"]
    command += [function.__module__, function.__name__, json.dumps(arguments)]
    done = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **environment},
    )
    return json.loads(done.stdout)


def answer() -> None:
    """Call what the command line names, and print what it returns as JSON."""
    module, name, arguments = sys.argv[1:]
    print(json.dumps(getattr(importlib.import_module(module), name)(*json.loads(arguments))))
