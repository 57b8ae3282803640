"""A module with a context variable, as libraries have them."""

from __future__ import annotations

from contextvars import ContextVar

unit: ContextVar[str] = ContextVar("unit", default="m")


def read_unit() -> str:
    return unit.get()
