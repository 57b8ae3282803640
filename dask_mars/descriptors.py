"""Keeps the numbers of standard streams from descriptors of ours.

A program that was started without streams, as by cron, gives 0 to 2 to what is opened next: what is printed would
go there, and in a new process the null device takes its place.
"""

from __future__ import annotations

import os

_FIRST = 3


def hold_streams() -> None:
    """Open the null device in place of each standard stream that is closed."""
    # To move our own descriptors does not suffice: `mmap` keeps a duplicate with the lowest free number.
    while (descriptor := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) < _FIRST:
        pass
    os.close(descriptor)


__all__ = ["hold_streams"]
