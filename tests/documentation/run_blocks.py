"""Runs the Python blocks of a Markdown page one after the other, in this process, as a reader would in a session.

`<!-- skip: next "reason" -->` before a block says that it cannot be run, and why not; nothing else is left out.
What a reader has already is made in an `invisible-code-block`, a comment. Needs nothing of the tests, so that it
runs with whatever is installed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import SkipTest

from sybil import Sybil
from sybil.document import Document
from sybil.example import Example
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser


def parse(path: Path) -> Document:
    """Return a page with its blocks."""
    return Sybil(parsers=[PythonCodeBlockParser(), SkipParser()], path=str(path.parent)).parse(path)


def is_seen(example: Example) -> bool:
    """Return whether a reader sees a block; the others are comments."""
    region = example.region
    return example.document.text[region.start : region.end].lstrip().startswith(("```", ">>>"))


def blocks_of(path: Path) -> int:
    """Return how many blocks of a page its readers see."""
    return sum(is_seen(example) for example in parse(path).examples())


def run(path: Path) -> int:
    """Run the blocks of a page; return how many of those that readers see were run."""
    document = parse(path)
    # Functions of a session are its own, and travel to workers by value.
    document.namespace["__name__"] = "__main__"
    done = 0
    for example in document.examples():
        try:
            example.evaluate()
        except SkipTest as reason:
            print(f"{path.name}:{example.line}: left out: {reason}")
        else:
            done += is_seen(example)
    return done


if __name__ == "__main__":
    print(f"{run(Path(sys.argv[1]).resolve())} blocks were run")
