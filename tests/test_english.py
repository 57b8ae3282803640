"""Prose is plain English: phrases to avoid become fewer, and names in decisions are those of the code.

`python -m tests.test_english` prints `OCCURRENCES` as it is now.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))

#: How often phrases to avoid occur in docstrings and comments of the package, in guides, and in decisions.
OCCURRENCES: dict[str, tuple[int, int, int]] = {
    r"\bnobody\b": (100, 0, 0),
    r"\bwhoever\b": (56, 0, 0),
    r"\bwhat(?:ever)? is (?:not )?(?:there|made of|known of|wanted|to be)\b": (54, 0, 0),
    r"\b(?:is|are|was|were) looked\b": (21, 0, 0),
    r"\b(?:is|are|was|were) told\b": (34, 0, 0),
    r"\b(?:is|are|was|were) wanted\b": (5, 0, 0),
    r"¶say whether\b": (63, 0, 0),
    r"¶what\b": (72, 0, 0),
    r"¶(?:who|which|whether|how|where)\b": (59, 0, 0),
    r"\bthose of (?:them|these|which)\b": (8, 0, 0),
    r"\bin vain\b": (1, 0, 0),
    r"\blest\b": (4, 0, 0),
    r"\bcomes? to (?:an|its|their) end\b": (2, 0, 0),
    r"\bwere (?:it|they|there) (?:to|only)\b": (0, 0, 0),
}

#: Names in decisions, the architecture and CONTRIBUTING that are those of others, or of files that are built.
FOREIGN = {
    "--worker-class",
    ".ci/run",
    ".pth",
    "/dev/shm",
    "NUMBAGG_CACHE",
    "PyUFuncObject",
    "RLIMIT_DATA",
    "build/site/index.html",
    "debootstrap",
    "gesdd",
    "posix_spawn",
    "pyarrow.set_memory_pool",
    "vfork",
}

#: Comments and strings: a # within a string begins no comment. `tokenize` takes five times as long.
_COMMENT_OR_STRING = re.compile(
    r"""#[^\n]*|\"{3}(?:\\.|[^\\])*?\"{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL
)


def prose_of(source: str) -> Iterator[str]:
    """Yield the comments and the docstrings of a module, these behind a ¶."""
    for found in _COMMENT_OR_STRING.finditer(source):
        if found[0].startswith("#"):
            yield found[0].lstrip("#: ")
        elif found[0].startswith('"""'):
            yield "¶" + found[0].strip('"').lstrip()


def areas() -> tuple[str, str, str]:
    """Return the prose of the package, of guides, and of decisions, each with single spaces."""
    package = [
        part
        for path in sorted((ROOT / "dask_mars").rglob("*.py"))
        for part in prose_of(path.read_text(encoding="utf-8"))
    ]
    guides, decisions = ([path.read_text(encoding="utf-8") for path in paths] for paths in (GUIDES, DECISIONS))
    code, docs, reasons = (re.sub(r"\s+", " ", "\n".join(parts)) for parts in (package, guides, decisions))
    return code, docs, reasons


def occurrences() -> dict[str, tuple[int, int, int]]:
    """Return how often each phrase occurs in each area."""
    code, docs, reasons = areas()
    return {
        phrase: (
            len(re.findall(phrase, code, re.IGNORECASE)),
            len(re.findall(phrase, docs, re.IGNORECASE)),
            len(re.findall(phrase, reasons, re.IGNORECASE)),
        )
        for phrase in OCCURRENCES
    }


def test_phrases_to_avoid_become_fewer() -> None:
    found = occurrences()
    more = {
        phrase: (counts, OCCURRENCES[phrase])
        for phrase, counts in found.items()
        if any(now > before for now, before in zip(counts, OCCURRENCES[phrase], strict=True))
    }
    assert not more, f"say it in plain words (found, allowed): {more}"
    assert found == OCCURRENCES, "there are fewer: `python -m tests.test_english` prints the new table"


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem[:4])
def test_a_decision_has_the_usual_form(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {int(page.name[:4])}. ")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert [name for name in headings if name != "Rejected"] == ["Context", "Decision", "Consequences"]
    assert len(text.splitlines()) <= 80


def test_names_in_pages_are_those_of_the_code() -> None:
    directories = ("dask_mars", "tests", "benchmarks", "studies", "docs", "examples")
    files = [path for name in directories for path in (ROOT / name).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    paths = "\n".join(str(path.relative_to(ROOT)) for path in files)
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for path in files
        if path.suffix in {".py", ".c", ".h", ".yaml", ".toml"} and path != Path(__file__)
    )
    known = {*re.findall(r"\w+", source), *re.findall(r"\w[\w-]+", source)}
    unknown = []
    inward = [*DECISIONS, ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md"]
    for page in [*DECISIONS, *GUIDES]:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for name in set(re.findall(r"`([\w./-]+)`", prose)) - FOREIGN:
            if page not in inward and not name.startswith(("dask_mars.", "dask_mars/", "dask-mars.")):
                # Guides name much of other projects.
                continue
            is_path = "/" in name or re.search(r"\.(py|c|h|json|md)$", name)
            if name.rstrip("/") not in paths if is_path else name.rpartition(".")[2].lstrip("-") not in known:
                unknown.append(f"{page.name}: {name}")
    assert not unknown


if __name__ == "__main__":
    for phrase, counts in occurrences().items():
        print(f'    r"{phrase}": {counts},')
