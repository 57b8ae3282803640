"""Options that several commands have."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from dask.utils import parse_bytes

from benchmarks.peers import PEERS
from benchmarks.report import Files
from benchmarks.workload import Workload
from benchmarks.workloads import CATALOGUE

Decorator = Callable[[Any], Any]

#: Of every command.
SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "show_default": True}
command = functools.partial(click.command, context_settings=SETTINGS)

rounds = click.option("--rounds", default=3, type=click.IntRange(min=1), help="Fresh processes per figure.")
workers = click.option("--workers", default=2, type=click.IntRange(min=1), help="Workers or threads per peer.")
timeout = click.option(
    "--timeout",
    "timeout_s",
    default=600.0,
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="What one process may take. Repeats that would not fit are left out.",
)
scale = click.option(
    "--scale",
    default=1.0,
    type=click.FloatRange(min=0, min_open=True),
    help="Factor on linear sizes, for smoke tests.",
)


def repeat(default: int, text: str = "Timed runs per process.") -> Decorator:
    """Return the option that says how often something is measured."""
    return click.option("--repeat", default=default, type=click.IntRange(min=1), help=text)


def counts(default: Sequence[int], of: str) -> Decorator:
    """Return the option that says how large graphs are."""
    return click.option(
        "--count",
        "-n",
        "counts",
        multiple=True,
        default=default,
        type=click.IntRange(min=10),
        help=f"About how many {of}.",
    )


def directory(text: str) -> Decorator:
    """Return the option that names a directory for what is large."""
    return click.option("--directory", type=click.Path(file_okay=False, exists=True, path_type=Path), help=text)


def byte_size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Return the bytes that a text like ``1 GiB`` stands for."""
    if value is None:
        return None
    try:
        size = int(parse_bytes(value))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if size < 1 << 20:
        raise click.BadParameter("it must be at least 1 MiB")
    return size


# -- what is chosen of several ------------------------------------------------------------------------------------


def graphs(names: Iterable[str]) -> Decorator:
    """Return the option by which a command is told which kinds of graph are meant."""
    return click.option(
        "--graph",
        "-g",
        "graphs",
        multiple=True,
        type=click.Choice(list(names)),
        help="Kind of graph. Default: all.",
    )


def _chosen_of(names: Iterable[str], groups: Mapping[Any, Collection[str]]) -> Callable[..., list[str]]:
    def choose(context: click.Context, parameter: click.Parameter, asked: Sequence[str]) -> list[str]:
        """Resolve groups to names, in the catalogue's order and each once."""
        wanted = {name for word in asked for name in groups.get(word, [word])}
        return [name for name in names if name in wanted or not asked]

    return choose


def several(*flags: str, of: Collection[str]) -> Decorator:
    """Return an option by which some names are chosen; the command gets them in their own order."""
    return click.option(
        *flags,
        multiple=True,
        type=click.Choice(list(of)),
        callback=_chosen_of(of, {}),
        help="Default: all.",
    )


def in_groups(
    *flags: str, of: Collection[str], groups: Mapping[Any, Collection[str]], kind: str, note: str = ""
) -> Decorator:
    """Return an option by which some names are chosen, by their own or by those of groups.

    Parameters
    ----------
    *flags
        As of `click.option`.
    of
        The names, in the order in which the command gets them.
    groups
        Names by group.
    kind
        What a name is of, for help.
    note
        What help says besides.
    """
    return click.option(
        *flags,
        multiple=True,
        type=click.Choice([*groups, *of]),
        callback=_chosen_of(of, groups),
        metavar="NAME",
        help=f"A {kind} or a group ({', '.join(groups)}){note}. Default: all.",
    )


def peers(names: Collection[str]) -> Decorator:
    """Return the option by which peers are chosen."""
    return several("--peer", "-p", "peers", of=names)


def workloads(names: Collection[str], groups: Mapping[Any, Collection[str]], note: str = "") -> Decorator:
    """Return the option by which workloads are chosen, by their own names or by those of groups."""
    return in_groups("--workload", "-w", "workloads", of=names, groups=groups, kind="workload", note=note)


def require(peers: Iterable[str]) -> None:
    """Refuse to begin where a peer's modules are missing.

    Parameters
    ----------
    peers
        Keys of `PEERS`.
    """
    for name in peers:
        if missing := PEERS[name].missing_modules():
            raise click.ClickException(
                f"peer {name!r} cannot run, because {', '.join(missing)} cannot be imported here: "
                f"install it, or choose other peers with --peer."
            )


def require_workloads(names: Iterable[str]) -> None:
    """Refuse to begin where a workload's modules are missing.

    Parameters
    ----------
    names
        Keys of `CATALOGUE`.
    """
    for name in names:
        subject = CATALOGUE[name]
        if isinstance(subject, Workload) and (
            missing := [module for module in subject.modules if importlib.util.find_spec(module) is None]
        ):
            raise click.ClickException(
                f"workload {name!r} cannot run, because {', '.join(missing)} cannot be imported here: install "
                f"dask_mars with its extra 'benchmarks', or choose other workloads with --workload."
            )


# -- options that come as one value -------------------------------------------------------------------------------


def together(name: str, kind: type, *options: Decorator) -> Decorator:
    """Return what gives a command several options at once, whose values come to it as one object.

    Parameters
    ----------
    name
        Of the command's parameter.
    kind
        The object's class: a dataclass with a field for each option.
    *options
        In the order in which help lists them.
    """
    fields = [field.name for field in dataclasses.fields(kind)]

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def call(*arguments: Any, **values: Any) -> None:
            whole = kind(**{field: values.pop(field) for field in fields})
            function(*arguments, **{name: whole}, **values)

        for option in reversed(options):
            option(call)
        return call

    return decorate


_FILE: Any = click.Path(dir_okay=False, path_type=Path)
files = together(
    "files",
    Files,
    click.option("--json", "json_path", type=_FILE, help="Write all figures."),
    click.option("--markdown", "markdown_path", type=_FILE, help="Write the tables."),
)
