"""Holds settings against their schema: a wrong one is an error, one that nobody reads a warning."""

from __future__ import annotations

import difflib
import functools
import numbers
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

SCHEMA_FILE = Path(__file__).with_name("dask_mars-schema.yaml")
#: What JSON's types are called in messages.
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


def check(section: str, tree: Any, formats: Mapping[str, tuple[str, Callable[[str], bool]]]) -> None:
    """Compare the settings of a section with the schema.

    Parameters
    ----------
    section : str
        Its name, ``"dask-mars"``.
    tree : mapping
        What the configuration has there.
    formats : mapping
        For each format of the schema what it is, in words, and whether a text has it.

    Raises
    ------
    ValueError
        A setting has a value that is not allowed; the message has its name, the value and what is allowed.

    Warns
    -----
    UserWarning
        There is no setting of such a name; once for each.
    """
    # Imported for those only who have changed a setting.
    from fastjsonschema import JsonSchemaValueException

    plain = _plain(tree)
    if isinstance(plain, dict):
        for path, nearest in _take_unknown(plain, _schema(section), section):
            _warn_of_unknown(path, nearest)
    try:
        _validator(section, tuple((name, test) for name, (_, test) in formats.items()))(plain)
    except JsonSchemaValueException as error:
        raise ValueError(_message(str(error.name), error.value, error.definition, formats)) from None


def warn_of_misnamed(section: str, wrong_section: str, tree: Any) -> None:
    """Warn of settings that stand in a section which nobody reads.

    Parameters
    ----------
    section, wrong_section : str
        Where they belong, and where they are.
    tree : mapping
        What is there.
    """
    for name in tree if isinstance(tree, Mapping) else ():
        path = f"{wrong_section}.{str(name).replace('_', '-')}"
        right = path.removeprefix(wrong_section)
        if right[1:] in _schema(section)["properties"]:
            _warn_of_unknown(path, f"{section}{right}")


def _warn_of_unknown(path: str, nearest: str | None) -> None:
    if path in _known_unknowns:
        return
    _known_unknowns.add(path)
    variable = None if nearest is None else f"DASK_{nearest.upper().replace('-', '_').replace('.', '__')}"
    hint = "" if nearest is None else f": did you mean {nearest} (in the environment {variable})?"
    # No level is sure to be the user's: settings are read wherever they are wanted.
    warnings.warn(
        f"nothing reads the setting {path}{hint or '; see dask_mars.yaml for those there are'}", stacklevel=5
    )


def _message(path: str, value: Any, definition: Mapping[str, Any], formats: Mapping[str, tuple[str, Any]]) -> str:
    found = repr(value)
    if definition.get("writeOnly"):
        # Messages are read by more people than passwords should be.
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


def _take_unknown(tree: dict[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str | None]]:
    """Take what the schema does not know out of settings; yield its names, and the nearest known ones."""
    known = schema["properties"]
    for name in list(tree):
        value = tree.pop(name)
        hyphened = name.replace("_", "-")
        if hyphened not in known:
            close = difflib.get_close_matches(hyphened, _paths(schema), 1, 0.6)
            yield f"{path}.{name}", f"{path}.{close[0]}" if close else None
            continue
        tree[hyphened] = value
        if isinstance(value, dict) and "properties" in known[hyphened]:
            yield from _take_unknown(value, known[hyphened], f"{path}.{hyphened}")


def _paths(schema: Mapping[str, Any]) -> Iterator[str]:
    for name, of in schema["properties"].items():
        yield name
        if "properties" in of:
            yield from (f"{name}.{inner}" for inner in _paths(of))


@functools.cache
def _schema(section: str) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = yaml.safe_load(SCHEMA_FILE.read_text(encoding="utf-8"))
    return schema["properties"][section]  # type: ignore[no-any-return]


@functools.cache
def _validator(section: str, formats: tuple[tuple[str, Callable[[str], bool]], ...]) -> Callable[[Any], Any]:
    from fastjsonschema import compile as compile_schema

    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **_schema(section)}
    validator: Callable[[Any], Any] = functools.partial(
        compile_schema(schema, formats=dict(formats), use_default=False), name_prefix=section
    )
    return validator


__all__ = ["SCHEMA_FILE", "check", "warn_of_misnamed"]
