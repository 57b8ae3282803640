"""What the shared store costs where results are made and read: ``python -m studies store``.

A process stands in for a worker, with an arena, NumPy's allocator hook and a store like a worker's, and a second
one for another worker, which reads what the first one seals.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks import options
from benchmarks.machine import describe_machine, machine_facts
from benchmarks.measure import ONE_THREAD_EACH
from benchmarks.report import MIB, NONE, markdown_table, plain_console, print_tables
from dask_mars.protocol.object_ref import ObjectRef
from dask_mars.protocol.worker_environment import WORKER_ENVIRONMENT
from dask_mars.store import arena as arenas
from dask_mars.store.arena import Arena
from dask_mars.store.in_place_sealing import make_heap
from dask_mars.store.store import Store
from studies.apart import call_apart

Array = NDArray[np.float64]

ARENA_BYTES = 1 << 30
#: As configured where nobody says otherwise.
THRESHOLD_BYTES = 16 << 10
CHAIN_BYTES = 16 * MIB
RESULT_BYTES = 100_000_000

#: Which `malloc` the chain's process has, by what the table calls it.
MALLOCS = ("the system's malloc", "the workers' malloc")

#: What is to be reached: parts of the time with NumPy's own allocator, and milliseconds.
CHAIN_TARGET = 0.7
SEAL_TARGET_MS = READ_TARGET_MS = 0.2


def chain(values: Array) -> Array:
    """Call one ufunc after the other, each of which makes an array.

    Parameters
    ----------
    values
        What to begin with.
    """
    result = values
    for ufunc, other in ((np.multiply, 2.0), (np.add, 1.0), (np.subtract, values), (np.multiply, 0.5)):
        result = ufunc(result, other)
    return np.sqrt(np.abs(result))


# -- the process that makes results -------------------------------------------------------------------------------


class Maker:
    """What a worker has to make results with.

    Parameters
    ----------
    descriptor : int
        Of the arena.
    """

    def __init__(self, descriptor: int) -> None:
        arena = Arena(descriptor, ARENA_BYTES)
        heap = make_heap(arena, (), THRESHOLD_BYTES)
        assert heap is not None
        self._heap = heap
        self.store = Store([arena], 0, heap=heap)

    @contextlib.contextmanager
    def numpys_own(self) -> Iterator[None]:
        """Have arrays built where NumPy builds them without us."""
        # It is compiled where it can be.
        from dask_mars.store import _arena

        _arena.uninstall()
        try:
            yield
        finally:
            _arena.install(self._heap, THRESHOLD_BYTES)

    def seal(self, results: list[Array]) -> ObjectRef:
        """Seal the only item of a list as a worker does: whoever gets it lets go of it before it is settled."""
        result = results.pop()
        ref = self.store.seal(result, in_place=True)
        del result
        return self.store.finish(ref)

    def release(self, ref: ObjectRef) -> None:
        """Free what was sealed."""
        for _, offset, _ in ref[1]:
            self.store.release(offset)


def _seconds(call: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def chains(maker: Maker, repeat: int, size_bytes: int) -> dict[str, list[float]]:
    """Time chains of ufuncs in both kinds of memory in turns, and what follows: sealing their result."""
    seconds: dict[str, list[float]] = {"chain": [], "chain, own": [], "sealed": [], "sealed, own": []}
    values = np.random.default_rng(1).random(size_bytes // 8)
    results: list[Array] = []

    def run() -> None:
        results.append(chain(values))

    def once(kind: str) -> None:
        chain_s = _seconds(run)
        start_s = time.perf_counter()
        ref = maker.seal(results)
        seconds[f"sealed{kind}"].append(chain_s + time.perf_counter() - start_s)
        seconds[f"chain{kind}"].append(chain_s)
        maker.release(ref)

    # The first of each finds pages that nobody has touched.
    for _ in range(repeat + 1):
        once("")
        with maker.numpys_own():
            once(", own")
    return {name: found[1:] for name, found in seconds.items()}


def seals(
    maker: Maker, reader: Callable[[ObjectRef], list[float]], repeat: int, size_bytes: int
) -> dict[str, list[float]]:
    """Time the sealing of results, and have another process time their reading."""
    seconds: dict[str, list[float]] = {"seal": [], "read": [], "sum": [], "private sum": []}
    for _ in range(repeat + 1):
        results = [np.ones(size_bytes // 8)]
        start_s = time.perf_counter()
        ref = maker.seal(results)
        seconds["seal"].append(time.perf_counter() - start_s)
        for name, found in zip(("read", "sum", "private sum"), reader(ref), strict=True):
            seconds[name].append(found)
        maker.release(ref)
    return {name: found[1:] for name, found in seconds.items()}


# -- the process that reads them ----------------------------------------------------------------------------------


def reader() -> None:
    """Read what the locations on standard input say, and answer with seconds on standard output."""
    descriptor = int(sys.argv[1])
    store = Store([Arena(file, ARENA_BYTES) for file in (descriptor, arenas.create("own", ARENA_BYTES))], 1)
    while True:
        try:
            ref = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        start_s = time.perf_counter()
        value = store.load(ref, [])
        loaded_s = time.perf_counter() - start_s
        first_sum_s = _seconds(value.sum)
        private = value.copy()
        answer = [loaded_s, first_sum_s, _seconds(private.sum)]
        if private.sum() != value.size:
            raise ArithmeticError("what was read is not what was sealed")
        del value, private
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


@contextlib.contextmanager
def _reading(descriptor: int) -> Iterator[Callable[[ObjectRef], list[float]]]:
    command = [sys.executable, "-c", "from studies.store import reader; reader()", str(descriptor)]
    with subprocess.Popen(
        command, pass_fds=(descriptor,), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests: IO[bytes] = process.stdin
        answers: IO[bytes] = process.stdout

        def ask(ref: ObjectRef) -> list[float]:
            pickle.dump(ref, requests)
            requests.flush()
            answer: list[float] = pickle.load(answers)
            return answer

        try:
            yield ask
        finally:
            requests.close()


def _measure_here(what: str, repeat: int, chain_bytes: int, result_bytes: int) -> dict[str, list[float]]:
    descriptor = arenas.create("benchmark", ARENA_BYTES)
    maker = Maker(descriptor)
    gc.disable()
    if what == "chains":
        return chains(maker, repeat, chain_bytes)
    with _reading(descriptor) as ask:
        return seals(maker, ask, repeat, result_bytes)


# -- the command --------------------------------------------------------------------------------------------------


def _run(what: str, malloc: str, repeat: int, sizes: tuple[int, int]) -> dict[str, list[float]]:
    environment = {**ONE_THREAD_EACH, **(WORKER_ENVIRONMENT if malloc == MALLOCS[1] else {})}
    figures: dict[str, list[float]] = call_apart(_measure_here, what, repeat, *sizes, environment=environment)
    return figures


def _times(seconds: list[float]) -> list[str]:
    milliseconds = [second * 1e3 for second in seconds]
    return [
        f"{statistics.median(milliseconds):.3g}",
        f"{min(milliseconds):.3g}-{max(milliseconds):.3g}",
    ]


def _chain_rows(malloc: str, seconds: dict[str, list[float]]) -> Iterator[list[str]]:
    for name, what in (("chain", "chain"), ("sealed", "chain, sealed")):
        ours, own = seconds[name], seconds[f"{name}, own"]
        ratio = statistics.median(ours) / statistics.median(own)
        yield [what, malloc, *_times(ours), *_times(own), f"{ratio:.2f}", f"{CHAIN_TARGET:g}"]


@options.command("store")
@options.rounds
@options.repeat(31, "Runs per process.")
@click.option(
    "--chain-bytes", default=CHAIN_BYTES, type=click.IntRange(min=MIB), help="Size of the arrays of the chain."
)
@click.option(
    "--result-bytes",
    default=RESULT_BYTES,
    type=click.IntRange(min=MIB, max=ARENA_BYTES // 2),
    help="Size of the results that are sealed and read.",
)
def store(rounds: int, repeat: int, chain_bytes: int, result_bytes: int) -> None:
    """Measure results that are born in shared memory, sealed and read, as Markdown.

    A chain of six ufuncs runs in a process like a worker, its arrays in turn in shared memory and where NumPy puts
    them; the latter with the system's malloc and with the settings that our workers give it, which keep freed
    memory. Results that were made in shared memory are sealed there, and read by another process.
    """
    if importlib.util.find_spec("dask_mars.store._arena") is None:
        raise click.ClickException("dask_mars was installed without its extension: there is nothing to see")
    sizes = chain_bytes, result_bytes
    found: dict[str, dict[str, list[float]]] = {}
    # They take turns, so that drift of the machine falls on all alike.
    for _ in range(rounds):
        for name in (*MALLOCS, "seals"):
            what, malloc = ("seals", MALLOCS[1]) if name == "seals" else ("chains", name)
            for kind, seconds in _run(what, malloc, repeat, sizes).items():
                found.setdefault(name, {}).setdefault(kind, []).extend(seconds)
    ours = ("ms", "min-max ms")
    size = f"{chain_bytes / MIB:.0f} MiB"
    chained = markdown_table(size, "beside", *ours, *ours, "time / its", "target", words=(size, "beside"))
    for malloc in MALLOCS:
        for row in _chain_rows(malloc, found[malloc]):
            chained.add_row(*row)
    size = f"{result_bytes / 1e6:.0f} MB"
    sealed = markdown_table(size, *ours, "target ms", words=(size,))
    for kind, what, target in (
        ("seal", "seal", f"{SEAL_TARGET_MS:g}"),
        ("read", "read in another process", f"{READ_TARGET_MS:g}"),
        ("sum", "sum of it there, the first", NONE),
        ("private sum", "sum of a private copy", NONE),
    ):
        sealed.add_row(what, *_times(found["seals"][kind]), target)
    console = plain_console()
    console.print(f"{describe_machine(machine_facts())}.", soft_wrap=True)
    print_tables(console, chained, sealed)
