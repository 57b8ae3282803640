"""Exit codes of processes, in words."""

from __future__ import annotations

import signal

#: Signals of crashes: the system sends them for a fault of the process.
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}


def has_crashed(exit_code: int) -> bool:
    """Return whether a process was ended by a fault of its own code, and not from outside."""
    return -exit_code in _CRASHES


def describe_exit(exit_code: int) -> str:
    """Return in words how a process ended."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"was killed by signal {-exit_code}"
