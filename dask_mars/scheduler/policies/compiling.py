"""Marks classes of policies from which users derive, for mypyc; without its package nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

try:
    from mypy_extensions import mypyc_attr
except ImportError:

    def mypyc_attr(*attrs: str, **kwattrs: object) -> Callable[[T], T]:
        """Return a decorator that changes nothing."""
        return lambda decorated: decorated


__all__ = ["mypyc_attr"]
