"""Pages that are made of files outside of docs/, and links as the site needs them.

Pages are written to be read in a repository, too. So links lead to files there: the site has pages of its own for
some of these, and the others lose their links.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]

#: Files of the repository that are pages, and where they are in the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
DECISIONS = "decisions/index.md"
_SETTINGS = "<!-- settings -->"

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
_PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")
_DIAGRAM = re.compile(r"```mermaid\nstateDiagram-v2\n(.*?)```", re.DOTALL)


def on_config(config: Any) -> Any:
    """Complete the navigation: each decision has a place in it, and what is still to be written has none."""
    missing = {page for page in config.extra.get("pages_to_come", []) if not (ROOT / "docs" / page).exists()}

    def present(entries: list[Any]) -> list[Any]:
        kept = []
        for entry in entries:
            if isinstance(entry, dict):
                ((title, target),) = entry.items()
                if isinstance(target, list):
                    kept.append({title: present(target)})
                elif target == DECISIONS:
                    kept.append({title: [DECISIONS, *(f"decisions/{path.name}" for path in decisions())]})
                elif target not in missing:
                    kept.append(entry)
            elif entry not in missing:
                kept.append(entry)
        return kept

    config.nav = present(config.nav)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made of other files, and the list of decisions."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=in_docs(text, posixpath.dirname(source), page)))
    files.append(File.generated(config, DECISIONS, content=list_of_decisions()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Have links and diagrams as the site needs them."""
    if page.file.src_uri not in [*PAGES.values(), DECISIONS]:
        markdown = in_docs(
            markdown, posixpath.join("docs", posixpath.dirname(page.file.src_uri)), page.file.src_uri
        )
    if _SETTINGS in markdown:
        markdown = markdown.replace(_SETTINGS, table_of_settings())
    return _DIAGRAM.sub(lambda found: table_of_states(found[1]), markdown)


def in_docs(markdown: str, directory: str, page: str) -> str:
    """Return the text of a file in a directory of the repository with the links of a page of the site."""

    def target_of(link: str) -> str | None:
        path = posixpath.normpath(posixpath.join(directory, link))
        if path in PAGES:
            target = PAGES[path]
        elif path == "docs/decisions":
            target = DECISIONS
        elif path.startswith("docs/"):
            target = path.removeprefix("docs/")
        else:
            return None
        return posixpath.relpath(target, posixpath.dirname(page) or ".")

    def link(found: re.Match[str]) -> str:
        target = target_of(found[2])
        return f"[{found[1]}]({target}{found[3] or ''})" if target else found[1]

    def picture(found: re.Match[str]) -> str:
        return f"![{found[1]}]({target_of(found[2]) or found[2]})"

    return _PICTURE.sub(picture, _LINK.sub(link, markdown))


def decisions() -> list[Path]:
    """Return the pages of decisions, the oldest first."""
    return sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def list_of_decisions() -> str:
    """Return a page with a link to each decision."""
    lines = [
        "# Decisions",
        "",
        "Context, decision and consequences; [measurements](../measurements.md) has the figures.",
        "Newer decisions amend older ones.",
        "",
    ]
    for path in decisions():
        with path.open(encoding="utf-8") as file:
            title = file.readline().lstrip("# ").strip()
        lines.append(f"* [{title if title[:1].isdigit() else f'{path.name[:4]} {title}'}]({path.name})")
    return "\n".join(lines) + "\n"


def table_of_settings() -> str:
    """Return all settings with their defaults."""
    from dask_mars.setting_table import SETTINGS

    rows = [f"| `{each.name}` | `{json.dumps(each.default)}` | {each.meaning} |" for each in SETTINGS]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows]) + "\n"


def table_of_states(diagram: str) -> str:
    """Return a diagram of states as a table: what draws diagrams would have to come from another host."""
    following = defaultdict(list)
    for line in diagram.strip().splitlines():
        before, _, after = (part.strip() for part in line.partition("-->"))
        following["(start)" if before == "[*]" else before].append(after)
    rows = [f"| {before} | {', '.join(after)} |" for before, after in following.items()]
    return "\n".join(["| from | to |", "|---|---|", *rows]) + "\n"
