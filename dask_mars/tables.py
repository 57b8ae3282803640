"""Tables of data: as text in terminals, as HTML in notebooks.

The HTML has inline styles, because saved notebooks lose style sheets. Text takes the page's colour, light or dark.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

from dask_mars.html import render

#: Colours of bars and dots by state, visible on light and on dark ground.
COLOURS = {"running": "#3b82f6", "finished": "#2e9e4f", "failed": "#dc3545", "cancelled": "#c98500"}


class Bar(NamedTuple):
    """A bar in a cell for notebooks; each part has its share of the width, a colour and an opacity."""

    parts: Sequence[tuple[float, str, float]]
    width: str
    label: str


class Dot(NamedTuple):
    """A text in a cell for notebooks, behind a coloured dot."""

    text: str
    colour: str


class Tip(NamedTuple):
    """A text in a cell for notebooks, with a tooltip."""

    text: str
    tip: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, which are text."""

    #: Headings of the columns; may be empty for notebooks.
    columns: Sequence[str]
    #: The cells; in tables for notebooks some may be `Bar`, `Dot` or `Tip`.
    rows: Sequence[Sequence[Any]]
    #: Heading of the table.
    title: str = ""
    #: Number of columns with text; later ones have numbers, aligned right.
    texts: int = 1
    #: Lines below the table.
    notes: Sequence[str] = ()

    def as_html(self) -> str:
        """Return the table for notebooks."""
        return render("table.html.j2", table=self)

    def as_rich(self) -> Any:
        """Return the table as a renderable of rich."""
        from rich import box
        from rich.console import Group
        from rich.table import Table as RichTable
        from rich.text import Text

        parts: list[Any] = [Text(self.title, style="bold")] if self.title else []
        if self.rows:
            table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
            for place, column in enumerate(self.columns):
                is_text = place < self.texts
                table.add_column(column, justify="left" if is_text else "right", no_wrap=not is_text)
            for row in self.rows:
                table.add_row(*[Text(cell) for cell in row])
            parts.append(table)
        return Group(*parts, *[Text(note) for note in self.notes])

    def as_text(self) -> str:
        """Return the table for terminals, as rich prints it; without rich, cells are separated by spaces."""
        if find_spec("rich") is None:
            rows = [self.columns, *self.rows] if self.rows else []
            lines = [*([self.title] if self.title else []), *["  ".join(row) for row in rows], *self.notes]
            return "\n".join(lines)
        return rendered(self.as_rich())


class Tabular:
    """A base for data that shows itself as tables."""

    __slots__ = ()

    def tables(self) -> list[Table]:
        """Return its tables."""
        raise NotImplementedError

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of `to_pandas`."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each worker of a state, layer of a computation, or event.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        # Only this needs the import.
        from dask.utils import import_required

        pandas = import_required("pandas", "to_pandas needs pandas: python -m pip install pandas")
        return pandas.DataFrame(self.records())

    def __str__(self) -> str:
        return "\n\n".join([table.as_text() for table in self.tables()])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join([table.as_html() for table in self.tables()])

    def __rich__(self) -> Any:
        from rich.console import Group

        return Group(*[table.as_rich() for table in self.tables()])


def named(label: str, name: str, most: int = 60) -> Tip:
    """Return a label of at most `most` characters, with the full name as its tooltip."""
    return Tip(cut(label, most), name)


def cut(text: str, most: int) -> str:
    """Return a text, cut to at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def rendered(renderable: Any) -> str:
    """Return rich's output without colours, as wide as the terminal."""
    from rich.console import Console

    width = max(shutil.get_terminal_size((100, 24)).columns, 40)
    console = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
    console.print(renderable)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join([line.rstrip() for line in text.splitlines()])
