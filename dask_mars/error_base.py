"""Errors that declare their facts as attributes, and their message as a template of them."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, dataclass_transform


def _signature(kind: type[DeclaredError]) -> inspect.Signature:
    """Return the parameters of a class of errors: its annotated attributes, as those of a dataclass."""
    either, none = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
    parameters = [
        inspect.Parameter(name, either, default=getattr(kind, name, none), annotation=annotation)
        for base in reversed(kind.__mro__)
        for name, annotation in inspect.get_annotations(base).items()
        if not name.startswith("_")
    ]
    facts = inspect.Parameter("facts", inspect.Parameter.VAR_POSITIONAL, annotation="Any")
    return inspect.Signature(parameters or [facts], return_annotation=None)


class _Signature:
    """The signature of a class for `inspect.signature` and `help`."""

    def __get__(self, error: DeclaredError | None, kind: type[DeclaredError]) -> inspect.Signature:
        if kind.__init__ is not DeclaredError.__init__:
            raise AttributeError
        return _signature(kind)


@dataclass_transform(eq_default=False)
class DeclaredError(BaseException):
    """Takes annotated attributes as arguments, by position or name."""

    #: The message, with names of attributes and `_words` in braces; None for one that lists all `args`.
    _template: ClassVar[str | None] = None
    __signature__ = _Signature()

    def __init__(self, *facts: Any, **named: Any) -> None:
        bound = _signature(type(self)).bind(*facts, **named)
        bound.apply_defaults()
        if "facts" not in bound.arguments:
            vars(self).update(bound.arguments)
            facts = tuple(bound.arguments.values())
        # Pickles and copies are made of `args`.
        super().__init__(*facts)

    def __str__(self) -> str:
        if self._template is None:
            return ", ".join(map(str, self.args))
        return self._template.format_map(vars(self) | self._words())

    def _words(self) -> dict[str, str]:
        """Return parts of the message that depend on attributes."""
        return {}


class MarsError(DeclaredError, Exception):
    """Base of all errors that dask_mars raises on its own account.

    An exception raised by a task is never wrapped: it reaches the user as it is. Attributes with one name mean
    the same in all errors: `key` is Dask's key of the task, `limit_bytes` and `memory_limit` are the memory limit,
    `path` and `directory` are those that were used, and `reason` is the cause in words.
    """
