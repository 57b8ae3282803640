"""What is asked of callables is found by their types, whatever they answer."""

from __future__ import annotations

import operator
from functools import partial
from types import FunctionType
from typing import Any
from unittest import mock

import numpy as np
import pytest
from dask.utils import SerializableLock
from toolz import compose, curry

from dask_mars.graph.callables import attribute, called_by, full_name, is_named, look_up, module_of, package_of


class Everything:
    """Has all attributes, and each is the object itself."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self) -> None:
        """Do nothing."""


class Nothing:
    """Raises whatever is asked for."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __call__(self) -> None:
        """Do nothing."""

    __hash__ = None  # type: ignore[assignment]


class Liar:
    """Says that it is a partial function, a method and a function."""

    kind: type = partial

    @property
    def __class__(self) -> Any:
        return self.kind

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __call__(self) -> None:
        """Do nothing."""


class Homeless:
    __module__ = None  # type: ignore[assignment]

    def method(self) -> None:
        """Do nothing."""

    def __call__(self) -> None:
        """Do nothing."""


ODD = [Everything, Nothing, Liar, Homeless, mock.Mock, partial(mock.MagicMock, spec=FunctionType)]


@pytest.mark.parametrize("make", ODD, ids=str)
def test_odd_objects_are_what_their_classes_are(make):
    # pytest itself would ask them what they are.
    value = make()
    assert called_by(value) is value
    assert called_by(partial(partial(value, 1), 2)) is value
    assert full_name(value) == full_name(type(value))
    assert not is_named(value)
    assert look_up({}, value, 5) == 5
    assert attribute(value, "absent", 3) == 3
    assert module_of(value) == module_of(type(value))


def test_callables_lead_to_what_they_call():
    def own() -> None:
        """Do nothing."""

    for function in (partial(own), curry(own), partial(curry(partial(own)))):
        assert called_by(function) is own
    assert called_by(Homeless().method) is Homeless.method
    assert called_by(curry) is curry
    composed = compose(own, own)
    assert called_by(composed) is composed


def test_names():
    assert full_name(np.add) == "numpy.add"
    assert full_name(partial(np.linalg.svd)) == "numpy.linalg.svd"
    assert full_name(len) == "builtins.len"
    assert full_name(SerializableLock) == full_name(SerializableLock()) == "dask.utils.SerializableLock"
    assert module_of(partial(np.sum, axis=0)) == "numpy"
    assert package_of(Homeless) == ""
    assert look_up({operator.add: 1}, operator.add) == 1
