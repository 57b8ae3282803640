"""The shortest program that still differs: statements are left out as long as it does."""

from __future__ import annotations

import dataclasses
import re
import time
from typing import Any

from tests.fuzz.programs import Program, Raised, Step, new_namespace
from tests.fuzz.running import Difference, run

#: Seconds that it may take.
_LIMIT_S = 20.0


def shrink(program: Program, scheduler: Any, shared: bool) -> tuple[Program, Difference] | None:
    """Return a program with fewer statements that differs, and how; None if it does not differ again."""
    until_s = time.monotonic() + _LIMIT_S
    found = _tried(program, program.steps, scheduler, shared)
    if found is None:
        return None
    smaller, difference = found
    smaller.steps = smaller.steps[: difference.step + 1]
    last = smaller.steps[-1]
    if last.computes:
        # One collection alone, rather than several together.
        for name in dict.fromkeys(re.findall(r"\b[a-z]\d+\b", last.source.partition(" = ")[2])):
            alone = dataclasses.replace(last, source=f"{last.names[0]} = dask.compute({name})")
            found = _tried(smaller, [*smaller.steps[:-1], alone], scheduler, shared)
            if found is not None and found[1].step == len(smaller.steps) - 1:
                smaller, difference = found
                break
    number = len(smaller.steps) - 2
    while number >= 0 and time.monotonic() < until_s:
        rest = [step for at, step in enumerate(smaller.steps) if at != number]
        # What is not defined any more would be an error under both.
        names = set(smaller.steps[number].names)
        if not any(names & set(re.findall(r"\w+", step.source)) for step in rest):
            found = _tried(smaller, rest, scheduler, shared)
            if found is not None:
                smaller, difference = found
        number -= 1
    for name in list(smaller.settings):
        fewer = dataclasses.replace(smaller, settings={k: v for k, v in smaller.settings.items() if k != name})
        found = _tried(fewer, smaller.steps, scheduler, shared)
        if found is not None and time.monotonic() < until_s:
            smaller, difference = found
    return smaller, difference


def _tried(program: Program, steps: list[Step], scheduler: Any, shared: bool) -> tuple[Program, Difference] | None:
    """Run some of the statements under both schedulers."""
    tried = dataclasses.replace(program, steps=[dataclasses.replace(step) for step in steps], kept={})
    namespace = new_namespace()
    with tried.configured("synchronous"):
        for step in tried.steps:
            try:
                step.expected = step.run(namespace)
            except Exception as error:
                step.expected = Raised.by(error)
                if step.expected.of_dask:
                    return None
            tried.kept.update({name: namespace[name] for name in step.names if name in namespace})
    found = run(tried, scheduler, shared)
    return (tried, found) if isinstance(found, Difference) else None
