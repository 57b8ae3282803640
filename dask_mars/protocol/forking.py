"""The limits of requests to fork worker processes, and the systems that can."""

from __future__ import annotations

import functools
import platform
import sys

#: Number of the system call clone by machine.
CLONE = {"x86_64": 56, "aarch64": 220}
#: Maximum bytes and descriptors of a message to a template.
MOST_BYTES, MOST_DESCRIPTORS = 1 << 18, 250


@functools.cache
def is_supported() -> bool:
    """Return whether this system lets a process fork children of its parent."""
    return (
        sys.platform == "linux"
        and platform.machine() in CLONE
        and sys.maxsize > 1 << 32
        and platform.libc_ver()[0] == "glibc"
    )
