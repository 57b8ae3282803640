"""What layers are called in all that is shown of them."""

from __future__ import annotations

from dask.utils import key_split


def label_of(name: str) -> str:
    """Return what to call a layer: its name without what tells it from others of its kind.

    >>> label_of("sum-b89ad269cb258249afb99235e331261b"), label_of("finalize-hlgfinalizecompute")
    ('sum', 'finalize')
    """
    # Dask names the last step of all after two of its own classes.
    return str(key_split(name)).removesuffix("-hlgfinalizecompute")


__all__ = ["label_of"]
