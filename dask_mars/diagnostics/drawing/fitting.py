"""Pictures that fit into notebooks: never wider than there is room for."""

from __future__ import annotations

import re
import struct
from typing import Any

#: Pixels that the output of a cell has on most screens.
_WIDTH = 900
_PNG = b"\x89PNG\r\n\x1a\n"
_SVG_TAG = re.compile(r"<svg\b(?![^>]*\bstyle=)")


def fitted(shown: Any) -> Any:
    """Return what IPython shows, to be scaled down where it is too wide; what is no picture as it is."""
    data = getattr(shown, "data", None)
    if isinstance(data, bytes) and data.startswith(_PNG):
        width, _ = struct.unpack(">II", data[16:24])
        if width > _WIDTH and getattr(shown, "width", 0) is None:
            shown.width = _WIDTH
    elif isinstance(data, str) and "<svg" in data:
        shown.data = _SVG_TAG.sub('<svg style="max-width: 100%; height: auto"', data, count=1)
    return shown


__all__ = ["fitted"]
