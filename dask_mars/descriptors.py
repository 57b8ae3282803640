"""Keeps our descriptors away from the numbers of standard streams.

In a program without streams, as under cron, the next opened files get 0 to 2: output would go there, and a new
process would replace them by the null device.
"""

from __future__ import annotations

import os

_FIRST = 3


def hold_streams() -> None:
    """Open the null device in place of each closed standard stream."""
    # Moving our own descriptors does not suffice: `mmap` keeps a duplicate with the lowest free number.
    while (descriptor := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) < _FIRST:
        pass
    os.close(descriptor)
