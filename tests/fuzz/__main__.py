"""The command: ``python -m tests.fuzz``."""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

# One thread for linear algebra in this process, as in the workers: more of them add up in another order.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import click  # noqa: E402
from dask.utils import parse_bytes  # noqa: E402

from tests.fuzz import catalogue, shrinking  # noqa: E402
from tests.fuzz.engines import PROGRAMS, Engine, LeftBehind, Plan, plan, settled  # noqa: E402
from tests.fuzz.making import make  # noqa: E402
from tests.fuzz.programs import Program, Raised  # noqa: E402
from tests.fuzz.running import Difference, Excused, Excuses, is_unsteady, run, silenced  # noqa: E402
from tests.soak.leaks import share_allocator  # noqa: E402
from tests.soak.troubles import watchdog  # noqa: E402

#: Programs between two looks at what is left in the engine.
_LOOK_EVERY = 10


@dataclass
class Tally:
    """What has happened until now."""

    programs: int = 0
    shared: int = 0
    computations: int = 0
    raised: int = 0
    kills: int = 0
    spilled_bytes: int = 0
    engines: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    themes: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    differences: list[int] = field(default_factory=list)
    seconds: Counter[str] = field(default_factory=Counter)

    def note(self, program: Program) -> None:
        """Count a program."""
        self.programs += 1
        self.themes[program.theme] += 1
        self.sizes[program.size] += 1
        self.steps.update(step.operation for step in program.steps)
        self.dropped.update(program.dropped)
        computed = [step for step in program.steps if step.computes]
        self.computations += len(computed)
        self.raised += any(isinstance(step.expected, Raised) for step in computed)

    def lines(self, seconds: float) -> list[str]:
        """Return the report."""

        def listed(counts: Counter[str]) -> str:
            return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"

        return [
            f"{self.programs} programs in {seconds:,.0f} s ({self.programs / seconds * 60:,.0f} a minute), "
            f"{self.computations} computations, {self.engines} engines",
            f"{self.kills} workers killed, {self.spilled_bytes / 2**20:,.0f} MiB spilled, {self.raised} programs "
            f"raised the same error, {self.shared} computed collections made before",
            f"excused: {listed(self.excused)}",
            f"themes: {listed(self.themes)}; sizes: {listed(self.sizes)}",
            f"steps: {listed(self.steps)}",
            "seconds: " + ", ".join(f"{name} {value:.1f}" for name, value in self.seconds.items()),
            f"{len(self.differences)} programs differ" + (f": {self.differences}" if self.differences else ""),
        ]


@dataclass(frozen=True)
class Options:
    """How to go on."""

    memory_limit: int | None
    kills: bool | None
    limit_s: float
    shrink: bool
    verbose: bool


def size_for(seed: int, plan: Plan) -> str:
    """Return how large the data of a program are."""
    chance = random.Random(f"size {seed}")
    if plan.small and chance.random() < 0.3:
        return "large"
    return "medium" if chance.random() < 0.2 else "small"


def one(engine: Engine, seed: int, tally: Tally, options: Options) -> bool:
    """Make and run a program; say whether it was as expected."""
    began_s = time.monotonic()
    program = make(seed, size_for(seed, engine.plan))
    tally.note(program)
    made_s = time.monotonic()
    tally.seconds["making"] += made_s - began_s
    chance = random.Random(f"run {seed}")
    shared = chance.random() < 0.25
    tally.shared += shared
    scheduler = chance.choice([engine.runtime.get, "mars"])
    excuses = Excuses(engine.plan.small, engine.plan.kills)
    kills = engine.killer.count
    with watchdog(options.limit_s, str(program), engine.told), engine.killer.at_work():
        found = run(program, scheduler, shared, excuses)
    tally.kills += engine.killer.count - kills
    tally.seconds["running"] += time.monotonic() - made_s
    if options.verbose:
        print(f"{seed} {program.size} {program.theme} {time.monotonic() - began_s:.2f} s", flush=True)
    if isinstance(found, Excused):
        tally.excused[found.name] += 1
    if not isinstance(found, Difference):
        return True
    if is_unsteady(program):
        tally.excused["unsteady under Dask itself"] += 1
        return True
    tally.differences.append(seed)
    print(f"\nDIFFERS: {program}\n\n{found.text}\n", flush=True)
    if options.shrink:
        smaller = shrinking.shrink(program, scheduler, shared)
        if smaller is not None:
            print(f"In short: {smaller[0]}\n\n{smaller[1].text}\n", flush=True)
        else:
            print("It did not happen again.\n", flush=True)
    memory = "" if options.memory_limit is None else f" --memory-limit {options.memory_limit}"
    kill = {None: "", True: " --kill", False: " --no-kill"}[options.kills]
    print(f"shared {shared}, {engine.plan}\nagain: python -m tests.fuzz --only {seed}{memory}{kill}\n", flush=True)
    return False


def many(seeds: range, until_s: float, tally: Tally, options: Options) -> bool:
    """Run programs, each with the engine that its seed asks for; say whether all was as expected."""
    good = True
    while seeds and time.monotonic() < until_s:
        first = seeds[0]
        length = PROGRAMS - first % PROGRAMS if seeds.step == 1 else len(seeds)
        ours, seeds = seeds[:length], seeds[length:]
        planned = plan(first, options.memory_limit, options.kills)
        try:
            with Engine(planned, first) as engine:
                tally.engines += 1
                tally.seconds["starting"] += settled(engine)
                for number, seed in enumerate(ours):
                    if time.monotonic() > until_s:
                        break
                    good &= one(engine, seed, tally, options)
                    if number % _LOOK_EVERY == 0:
                        began_s = time.monotonic()
                        engine.check_idle()
                        tally.seconds["looking"] += time.monotonic() - began_s
            tally.spilled_bytes += engine.spilled_bytes
        except LeftBehind as left:
            good = False
            print(f"\nLEFT: {left}; engine of seed {first}, {planned}\n", flush=True)
    return good


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--seconds", type=click.FloatRange(min=0), help="How long to go on.")
@click.option("--programs", type=click.IntRange(min=0), help="How many to run. Default, without --seconds: 100.")
@click.option("--seed", default=0, type=click.IntRange(min=0), help="Of the first program; the next has the next.")
@click.option("--only", type=click.IntRange(min=0), help="Run the program of this seed, and print it.")
@click.option("--repeat", default=1, type=click.IntRange(min=1), help="How often to run that one.")
@click.option("--memory-limit", help="Of all engines, as '64 MiB'. Default: chance.")
@click.option("--kill/--no-kill", "kills", default=None, help="Kill workers, or do not. Default: chance.")
@click.option("--limit", "limit_s", default=120.0, help="Seconds after which a program counts as hanging.")
@click.option("--shrink/--no-shrink", default=True, help="Look for the shortest program that differs.")
@click.option("--verbose", "-v", is_flag=True, help="Print a line for each program, and what could not be made.")
def main(
    seconds: float | None,
    programs: int | None,
    seed: int,
    only: int | None,
    repeat: int,
    memory_limit: str | None,
    kills: bool | None,
    limit_s: float,
    shrink: bool,
    verbose: bool,
) -> None:
    """Compute random Dask programs by the synchronous scheduler and by dask_mars, and compare.

    Exit code 1: something differs, or was left behind. 3: something hangs.
    """
    catalogue.load()
    share_allocator()
    # What is imported is looked at no more when garbage is collected, which is done often.
    gc.collect()
    gc.freeze()
    options = Options(None if memory_limit is None else parse_bytes(memory_limit), kills, limit_s, shrink, verbose)
    tally = Tally()
    began_s = time.monotonic()
    until_s = began_s + (seconds if seconds is not None else 1e9)
    with silenced():
        if only is not None:
            print(make(only, size_for(only, plan(only, options.memory_limit, kills))), flush=True)
            ended = [many(range(only, only + 1), until_s, tally, options) for _ in range(repeat)]
            good = all(ended)
        else:
            count = programs if programs is not None else 10**9 if seconds is not None else 100
            good = many(range(seed, seed + count), until_s, tally, options)
    for line in tally.lines(time.monotonic() - began_s):
        print(line)
    if verbose:
        print("\n".join(f"{count:5} {what}" for what, count in tally.dropped.most_common(150)))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
