"""What a program is: statements that make collections, and others that compute them."""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import dask

from tests.fuzz import material
from tests.fuzz.metadata import metadata

#: Addresses, and tokens of keys and expressions, whole and short.
_TOKENS = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{32}\b|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\([0-9a-f]{7}\)")


@dataclass(frozen=True)
class Raised:
    """An exception in place of a result: exactly the type, and what it says but for addresses and tokens."""

    type: type[BaseException]
    message: str

    @classmethod
    def by(cls, error: BaseException) -> Raised:
        """Keep what is to be compared of an exception."""
        try:
            text = str(error)
        except Exception as second:
            # It has not come over whole.
            text = f"cannot be printed: {second!r}"
        return cls(type(error), _TOKENS.sub("…", text))

    @property
    def of_dask(self) -> bool:
        """Whether it may come from a bug of Dask's: graphs that are not whole, or that it cannot fuse."""
        return "Cannot fuse tasks" in self.message or "Missing dependency" in self.message


@dataclass
class Step:
    """A statement, and what it has to come to."""

    # `expected` is the result of a program that `computes`, otherwise facts of the collections in `names`.

    source: str
    operation: str
    names: tuple[str, ...]
    computes: bool = False
    rounded: bool = False
    expected: Any = None

    @functools.cached_property
    def code(self) -> CodeType:
        """The statement, compiled."""
        return compile(self.source, f"<{self.source[:60]}>", "exec")

    def run(self, namespace: dict[str, Any]) -> Any:
        """Carry it out; return its result, or what is known of its collections."""
        exec(self.code, namespace)
        if self.computes:
            return namespace.pop(self.names[0])
        return [metadata(namespace[name]) for name in self.names]


@dataclass
class Program:
    """Statements, and what chance has decided besides."""

    size: str
    theme: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    #: What statements that were dropped would have done.
    dropped: Counter[str] = field(default_factory=Counter)
    #: All that was made, also what was deleted later.
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def cloned(self) -> bool:
        """Whether it has graphs by `clone` or `bind`: not all are whole, and these now compute and now fail."""
        return any(step.operation == "graph_manipulation" for step in self.steps)

    def __str__(self) -> str:
        lines = [f"# {self.size} data, {self.theme}", "from tests.fuzz.prelude import *", ""]
        if self.settings:
            lines.append(f"dask.config.set({self.settings})")
        return "\n".join(lines + [step.source for step in self.steps])

    @contextlib.contextmanager
    def configured(self, scheduler: Any) -> Iterator[None]:
        """Have Dask's settings be those of the program, and everything computed by a scheduler."""
        # Where several tasks append to a file, rows come in any order.
        always = {"scheduler": scheduler, "dataframe.shuffle.method": "tasks"}
        with dask.config.set({**always, **self.settings}):
            yield


def new_namespace() -> dict[str, Any]:
    """Return the names that programs begin with."""
    from tests.fuzz import prelude

    material.given.clear()
    names = {name: value for name, value in vars(prelude).items() if not name.startswith("__")}
    # Functions of a program are of a module that nobody can import, as those of a notebook are.
    return {**names, "__name__": "program"}
