"""Measured costs of operations on tiles, by NumPy and by numexpr (``studies/expressions.py``)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

#: File of nanoseconds per element, NumPy's and numexpr's, by operation and character of the arguments' dtype.
COSTS_FILE = Path(__file__).with_name("costs.json")


@cache
def costs() -> dict[str, tuple[float, float]]:
    """Return the table of costs."""
    table = json.loads(COSTS_FILE.read_text(encoding="utf-8"))
    return {name: (entry[0], entry[1]) for name, entry in table.items()}
