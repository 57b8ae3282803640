"""Prose is plain English: it has none of the phrases to avoid, and names in decisions are those of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))

#: Phrases to avoid in docstrings (which begin with ¶ here), comments that describe an attribute or a function of C
#: (which begin with §), other comments, guides and decisions.
AVOIDED = [
    r"\bnobody\b",
    r"\bwhoever\b",
    r"\bwhat(?:ever)? is (?:not )?(?:there|made of|known of|wanted|to be)\b",
    r"\b(?:is|are|was|were) (?:looked|told|wanted)\b",
    r"¶say whether\b",
    r"¶(?:what|who|which|whether|how|where)\b",
    r"§(?:what|who|which|how|where|when|most|least)\b",
    r"\bthose of (?:them|these|which)\b",
    r"\bin vain\b",
    r"\b(?:of|at|after|for) so (?:many|much|long)\b",
    r"\blest\b",
    r"\bcomes? to (?:an|its|their) end\b",
    r"\bwere (?:it|they|there) (?:to|only)\b",
    r"\bfor (?:want of|ever)\b",
    r"\b(?:is|are) to be\b",
    r"\b(?:that|which|it|may|can|must) (?:is|are|be) no (?!longer\b|more\b|less\b|faster\b)",
    r"\b(?:reads?|needs|computes|counts?) (?:\w+ ){0,2}no more\b",
    # One word for one thing: the GIL, function ids, a worker that has started, a Dask worker.
    r"\b(?:interpreter|Python)'s lock\b",
    r"\bop ids?\b",
    r"\b(?:comes?|came|coming) up\b",
    r"\b(?:worker|thread|scheduler|engine|lock|task) of (?:Dask's|ours)\b",
    r"\ball the same\b",
    r"\bnow and then\b",
]

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
#: Comments of C and JavaScript; a // within an address or a string begins none.
_COMMENT_OF_C = re.compile(r"/\*.*?\*/|(?<![:\"'])//[^\n]*", re.DOTALL)


def prose_of(path: Path) -> Iterator[str]:
    """Yield the comments and the docstrings of a file, these behind a ¶, or the text of a page."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield source
    elif path.suffix != ".py":
        for found in _COMMENT_OF_C.finditer(source):
            yield re.sub(r"^(?:/\*\*?|//:)\s*", "§", re.sub(r"\n \* ?", "\n", found[0]))
    else:
        for found in _COMMENT_OR_STRING.finditer(source):
            if found[0].startswith("#"):
                yield re.sub(r"^(#: *|#[#: ]*)", lambda mark: "§" if mark[1].startswith("#:") else "", found[0])
            elif found[0].startswith('"""'):
                yield "¶" + found[0].strip('"').lstrip()


def test_phrases_to_avoid_do_not_occur() -> None:
    avoided = re.compile("|".join(AVOIDED), re.IGNORECASE)
    found = []
    code = [path for path in (ROOT / "dask_mars").rglob("*.*") if path.suffix in {".py", ".c", ".h", ".js"}]
    for path in [*sorted(path for path in code if "vendor" not in path.parts), *GUIDES, *DECISIONS]:
        for part in prose_of(path):
            found += [f"{path.relative_to(ROOT)}: {phrase}" for phrase in avoided.findall(" ".join(part.split()))]
    assert not found, "say it in plain words"


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
