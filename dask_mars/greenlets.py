"""Detects greenlets in place of threads, by gevent and eventlet. All share one thread."""

from __future__ import annotations

import sys
from typing import Any


def has_gevent() -> bool:
    """Return whether `threading` starts gevent's greenlets."""
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def has_eventlet() -> bool:
    """Return whether `threading` starts eventlet's greenlets."""
    patcher: Any = sys.modules.get("eventlet.patcher")
    return patcher is not None and bool(patcher.is_monkey_patched("thread"))
