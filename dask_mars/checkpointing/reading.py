"""Reads saved values, in workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from dask_mars.errors import SavedChunkLost, SpilledValueLost
from dask_mars.protocol.object_ref import ARRAY, ObjectRef, SpilledFile, spilled_file, value_from_blocks
from dask_mars.store.spill_files import SpillFiles


class SavedFile(NamedTuple):
    """A saved value in a file."""

    #: Dask's key of the chunk, for messages.
    key: str
    ref: ObjectRef

    @property
    def file(self) -> SpilledFile:
        """The file."""
        return spilled_file(self.ref)


def read_saved(saved: SavedFile) -> Any:
    """Return a saved value."""
    file, original = saved.file, saved.ref[3]
    try:
        value = value_from_blocks(original, SpillFiles(Path(file.path).parent).read(file))
        if original[0] == ARRAY:
            value.flags.writeable = original[6]
    except SpilledValueLost as error:
        raise SavedChunkLost(saved.key, file.path, error.reason) from None
    except MemoryError:
        raise
    except (ArithmeticError, AttributeError, EOFError, ImportError, LookupError, TypeError, ValueError) as error:
        # A pickle of other versions of libraries, for example.
        raise SavedChunkLost(saved.key, file.path, f"{type(error).__name__}: {error}") from error
    return value


def is_whole(saved: SavedFile) -> bool:
    """Return whether a file is undamaged."""
    try:
        SpillFiles(Path(saved.file.path).parent).read(saved.file)
    except Exception:
        return False
    return True
