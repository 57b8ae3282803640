"""Validates settings: a wrong value is an error, an unknown name a warning."""

from __future__ import annotations

import difflib
import functools
import numbers
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dask_mars.setting_table import SECTION, schema

#: Names of JSON's types in messages.
_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}
#: Unknown names that were warned of.
_known_unknowns: set[str] = set()


def check(tree: Any, formats: Mapping[str, tuple[str, Callable[[str], bool]]]) -> None:
    """Compare the settings with the schema."""
    # Imported only if the user has changed a setting.
    from fastjsonschema import JsonSchemaValueException

    plain = _plain(tree)
    if isinstance(plain, dict):
        for path, nearest in _take_unknown(plain, schema(), SECTION):
            _warn_of_unknown(path, nearest)
    try:
        _validator(tuple((name, test) for name, (_, test) in formats.items()))(plain)
    except JsonSchemaValueException as error:
        raise ValueError(_message(str(error.name), error.value, error.definition, formats)) from None


def warn_of_misnamed(wrong_section: str, tree: Any) -> None:
    """Warn of our settings in a section that is not ours, where only an address is read."""
    for name in tree if isinstance(tree, Mapping) else ():
        path = f"{wrong_section}.{str(name).replace('_', '-')}"
        right = path.removeprefix(wrong_section)
        if right[1:] in schema()["properties"] and right != ".scheduler-address":
            _warn_of_unknown(path, f"{SECTION}{right}")


def _warn_of_unknown(path: str, nearest: str | None) -> None:
    if path in _known_unknowns:
        return
    _known_unknowns.add(path)
    variable = None if nearest is None else f"DASK_{nearest.upper().replace('-', '_').replace('.', '__')}"
    hint = f"; dask.config.get({SECTION!r}) has those there are"
    if nearest is not None:
        hint = f": did you mean {nearest} (in the environment {variable})?"
    # Settings are read in many places, so no stack level is sure to be the user's.
    warnings.warn(f"nothing reads the setting {path}{hint}", stacklevel=5)


def _message(path: str, value: Any, definition: Mapping[str, Any], formats: Mapping[str, tuple[str, Any]]) -> str:
    found = repr(value)
    if definition.get("writeOnly"):
        # The value may be a password, and messages end up in logs.
        found = f"{len(value)} characters" if isinstance(value, str) else type(value).__name__
    return f"{path} must be {_allowed(definition, formats)}, and not {found}"


def _allowed(definition: Mapping[str, Any], formats: Mapping[str, tuple[str, Any]]) -> str:
    """Say in words what a setting may be."""
    if "enum" in definition:
        return f"one of {', '.join(map(repr, definition['enum']))}"
    named = definition.get("type", ())
    types = [named] if isinstance(named, str) else list(named)
    nothing = "null" in types
    if "format" in definition:
        words = formats[definition["format"]][0]
    else:
        words = " or ".join(_TYPES[name] for name in types if name != "null")
        for bound, text in (("minimum", "of at least"), ("exclusiveMinimum", "of more than")):
            words += f" {text} {definition[bound]}" if bound in definition else ""
        if "minLength" in definition:
            words += f" of at least {definition['minLength']} characters"
    return f"{words}, or null" if nothing else words


def _plain(value: Any) -> Any:
    """Return settings as JSON would have them: names with hyphens, numbers, text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(of) for name, of in value.items()}
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return list(value) if isinstance(value, tuple) else value


def _take_unknown(tree: dict[str, Any], section: Mapping[str, Any], path: str) -> Iterator[tuple[str, str | None]]:
    """Remove settings that the schema does not know; yield their names, and the nearest known ones."""
    known = section["properties"]
    for name in list(tree):
        value = tree.pop(name)
        hyphened = name.replace("_", "-")
        if hyphened not in known:
            close = difflib.get_close_matches(hyphened, _paths(section), 1, 0.6)
            yield f"{path}.{name}", f"{path}.{close[0]}" if close else None
            continue
        tree[hyphened] = value
        if isinstance(value, dict) and "properties" in known[hyphened]:
            yield from _take_unknown(value, known[hyphened], f"{path}.{hyphened}")


def _paths(section: Mapping[str, Any]) -> Iterator[str]:
    for name, of in section["properties"].items():
        yield name
        if "properties" in of:
            yield from (f"{name}.{inner}" for inner in _paths(of))


@functools.cache
def _validator(formats: tuple[tuple[str, Callable[[str], bool]], ...]) -> Callable[[Any], Any]:
    from fastjsonschema import compile as compile_schema

    versioned = {"$schema": "http://json-schema.org/draft-07/schema#", **schema()}
    validator: Callable[[Any], Any] = functools.partial(
        compile_schema(versioned, formats=dict(formats), use_default=False), name_prefix=SECTION
    )
    return validator
