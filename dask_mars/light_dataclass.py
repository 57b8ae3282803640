"""Dataclasses that are made in half the time: a first computation waits for some fifty of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

_Class = TypeVar("_Class")


@dataclass_transform(eq_default=False)
def light_dataclass(cls: type[_Class]) -> type[_Class]:
    """Return the dataclass of a class that derives from `Light`: mutable, with slots."""
    # Each method of a dataclass is compiled, which takes most of the time.
    return dataclass(slots=True, eq=False, repr=False)(cls)


class Light:
    """Equality and representation of dataclasses, for all of them."""

    __slots__ = ()
    #: Set by `dataclass`.
    __match_args__: Any = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__match_args__)

    def __repr__(self) -> str:
        fields = ", ".join([f"{name}={getattr(self, name)!r}" for name in self.__match_args__])
        return f"{type(self).__qualname__}({fields})"
