"""The command: ``python -m tests.fuzz``."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

# One thread for linear algebra in this process, as in the workers: more of them add up in another order.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import click  # noqa: E402
import hypothesis  # noqa: E402
from dask.utils import parse_bytes  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from tests.fuzz.engines import MOST_KILLS, PROGRAMS, Engine, LeftBehind, plan, settled  # noqa: E402
from tests.fuzz.making import programs  # noqa: E402
from tests.fuzz.programs import Program, Raised  # noqa: E402
from tests.fuzz.running import Difference, Excused, Excuses, is_unsteady, run, silenced  # noqa: E402
from tests.soak.leaks import share_allocator  # noqa: E402
from tests.soak.troubles import watchdog  # noqa: E402

#: Programs between two looks at what is left in the engine.
_LOOK_EVERY = 10
#: Seconds that the search for a shorter program that differs may take.
_SHRINK_S = 20.0


class TimeIsUp(BaseException):
    """No more programs are wanted."""


class Differs(Exception):
    """A program, and what it came to."""


@dataclass
class Tally:
    """What has happened until now."""

    counts: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    differing: list[int] = field(default_factory=list)

    def note(self, program: Program) -> None:
        """Count a program."""
        computed = [step for step in program.steps if step.computes]
        raised = any(isinstance(step.expected, Raised) for step in computed)
        self.counts.update(programs=1, computations=len(computed), raised=raised)
        self.kinds.update([program.theme, program.size])
        self.steps.update(step.operation for step in program.steps)

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {what}" for what, count in self.counts.items())
        listed = [
            ", ".join(f"{name} {count}" for name, count in counter.most_common()) or "none"
            for counter in (self.excused, self.kinds, self.steps)
        ]
        excused, kinds, steps = listed
        differing = f": {self.differing}" if self.differing else ""
        return (
            f"{counts}\nexcused: {excused}\n{kinds}; {steps}\n"
            f"programs of {len(self.differing)} engines differ{differing}"
        )


def one(engine: Engine, program: Program, shared: bool, named: bool, limit_s: float, tally: Tally) -> None:
    """Run a program; raise `Differs` if it does not give what it has to."""
    excuses = Excuses(engine.plan.small, engine.plan.kills)
    with watchdog(limit_s, str(program), engine.told), engine.killer.at_work(MOST_KILLS):
        found = run(program, "mars" if named else engine.runtime.get, shared, excuses)
    tally.note(program)
    if isinstance(found, Excused):
        tally.excused[found.name] += 1
    elif isinstance(found, Difference):
        if not is_unsteady(program):
            raise Differs(f"shared {shared}, {program}\n\n{found.text}")
        tally.excused["unsteady under Dask itself"] += 1
    if tally.counts["programs"] % _LOOK_EVERY == 0:
        engine.check_idle()


def search(engine: Engine, seed: int, count: int, until_s: float, limit_s: float, tally: Tally) -> bool:
    """Run programs of a seed; print the shortest that differs, and return whether there is none."""
    sizes = ("small", "small", "medium", "large") if engine.plan.small else ("small", "small", "medium")
    differed: list[str] = []
    first_s = until_s

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
    )
    @hypothesis.given(programs(sizes), st.booleans(), st.booleans())
    def same(program: Program, shared: bool, named: bool) -> None:
        nonlocal first_s
        if time.monotonic() > (first_s + _SHRINK_S if differed else until_s):
            raise TimeIsUp
        try:
            one(engine, program, shared, named, limit_s, tally)
        except Differs as error:
            if not differed:
                first_s = time.monotonic()
                print(f"\nDIFFERS: {error}", flush=True)
            differed.append(str(error))
            raise

    with contextlib.suppress(Differs, TimeIsUp, hypothesis.errors.Flaky):
        same()
    if differed:
        again = "" if len(differed) > 1 else "It did not happen again. "
        print(f"\n{again}In short: {min(differed, key=len)}", flush=True)
    return not differed


def many(first: int, count: int, until_s: float, memory: int | None, kills: bool | None, limit_s: float) -> bool:
    """Run programs with engines of all kinds; return whether all was as expected."""
    tally, good = Tally(), True
    for seed in range(first, first + -(-count // PROGRAMS)):
        if time.monotonic() > until_s:
            break
        planned = plan(seed, memory, kills)
        try:
            with Engine(planned, seed) as engine:
                settled(engine)
                some = min(PROGRAMS, count - (seed - first) * PROGRAMS)
                same = search(engine, seed, some, until_s, limit_s, tally)
                if not same:
                    tally.differing.append(seed)
                    print(
                        f"\n{planned}\nagain: --seed {seed} --programs {PROGRAMS}, and these options", flush=True
                    )
            tally.counts.update(engines=1, kills=engine.killer_count, spilled_bytes=engine.spilled_bytes)
            good &= same
        except LeftBehind as left:
            good = False
            print(f"\nLEFT: {left}; engine of seed {seed}, {planned}\n", flush=True)
    print(tally)
    return good


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--seconds", type=click.FloatRange(min=0), help="How long to go on.")
@click.option("--programs", type=click.IntRange(min=1), help="How many to run. Default, without --seconds: 100.")
@click.option(
    "--seed", default=0, type=click.IntRange(min=0), help=f"Of the first engine and {PROGRAMS} programs."
)
@click.option("--memory-limit", help="Of all engines, as '64 MiB'. Default: chance.")
@click.option("--kill/--no-kill", "kills", default=None, help="Kill workers, or do not. Default: chance.")
@click.option("--limit", "limit_s", default=120.0, help="Seconds after which a program counts as hanging.")
def main(
    seconds: float | None,
    programs: int | None,
    seed: int,
    memory_limit: str | None,
    kills: bool | None,
    limit_s: float,
) -> None:
    """Compute random Dask programs by the synchronous scheduler and by dask_mars, and compare.

    Exit code 1: something differs, or was left behind. 3: something hangs.
    """
    share_allocator()
    # What is imported is looked at no more when garbage is collected, which is done often.
    gc.collect()
    gc.freeze()
    until_s = time.monotonic() + (1e9 if seconds is None else seconds)
    count = programs or (100 if seconds is None else 10**9)
    with silenced():
        good = many(
            seed, count, until_s, None if memory_limit is None else parse_bytes(memory_limit), kills, limit_s
        )
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
