"""Scales pictures to the width of notebooks."""

from __future__ import annotations

import re
import struct
from typing import Any

#: Width of a cell's output on most screens, in pixels.
_WIDTH = 900
_PNG = b"\x89PNG\r\n\x1a\n"
_SVG_TAG = re.compile(r"<svg\b(?![^>]*\bstyle=)")


def fitted(shown: Any) -> Any:
    """Return a displayed object, scaled down if it is a picture that is too wide."""
    data = getattr(shown, "data", None)
    if isinstance(data, bytes) and data.startswith(_PNG):
        width, _ = struct.unpack(">II", data[16:24])
        if width > _WIDTH and getattr(shown, "width", 0) is None:
            shown.width = _WIDTH
    elif isinstance(data, str) and "<svg" in data:
        shown.data = _SVG_TAG.sub('<svg style="max-width: 100%; height: auto"', data, count=1)
    return shown
