"""All operations there are: to import their modules is to know them."""

from __future__ import annotations

import importlib

MODULES = ["arrays", "array_parts", "array_folds", "array_functions", "xarrays", "bags", "frames"]


def load() -> None:
    """Import the modules that have operations."""
    for name in MODULES:
        importlib.import_module(f"tests.fuzz.{name}")
