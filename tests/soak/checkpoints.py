"""The soak of checkpoints: rounds in which all processes are killed at random and begun again, until all is right.

A round is a process that computes some random things under a checkpoint, and compares each with what Dask's
synchronous scheduler makes of it. It is killed, and its workers with it, at random moments; the last time it is
left alone, and has to end with nothing left.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np

import dask_mars
from benchmarks.report import MIB
from dask_mars import Runtime
from studies.checkpoint import kill
from tests.soak.rounds import Failure, Tally, Troubles, _judged, _Options, _result
from tests.soak.workloads import Generator, draw

#: Computations of one round, how large they are at most, and how often it is killed at most.
_COMPUTATIONS, _MOST_BYTES, _MOST_DEATHS = 5, 64 * MIB, 5
#: How long on average it is left alone before it is killed, in seconds.
_ALONE_S = 2.0
_LOOK_S = 0.01
#: Shares of the time that saving may take: the usual one, and such that all is saved.
_SHARES = (0.05, 1e9, 1e9)


def checkpoint_round(seed: int, tally: Tally, limit_s: float) -> None:
    """Run one round."""
    rng = np.random.default_rng(seed)
    deaths = int(rng.integers(1, _MOST_DEATHS + 1))
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        for death in range(deaths + 1):
            process = _started(seed, folder)
            alone_s = float(rng.exponential(_ALONE_S))
            if death < deaths and not _ends_within(process, folder, alone_s, limit_s):
                kill(process, "all")
                tally.kills += 1
                continue
            try:
                process.wait(_COMPUTATIONS * limit_s)
            except subprocess.TimeoutExpired:
                kill(process, "all")
                raise Failure(f"a computation under a checkpoint hangs, seed {seed}") from None
            break
        printed = (folder / "printed").read_text()
        if process.returncode:
            raise Failure(f"it ended with {process.returncode}, seed {seed}: {printed}")
        # Of those whose keys are others each time nobody else can know that they are of no use any more.
        dask_mars.checkpoints(folder / "saved").remove()
        if left := [str(path) for path in (folder / "saved").rglob("*")]:
            raise Failure(f"files are left: {left}, seed {seed}")
        for line in printed.splitlines():
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                tally.log(f"seed {seed}, {line}")
                if "found" in told:
                    tally.restored += told["found"]
                else:
                    tally.iterations += 1
                    tally.kinds[told["kind"]] += 1
                    tally.outcomes[told["outcome"]] += 1
    tally.rounds += 1


def _started(seed: int, folder: Path) -> subprocess.Popen[bytes]:
    (folder / "up").unlink(missing_ok=True)
    arguments = [sys.executable, "-m", "tests.soak.checkpoints", str(seed), str(folder)]
    with (folder / "printed").open("ab") as file:
        return subprocess.Popen(arguments, stdout=file, stderr=file)


def _ends_within(process: subprocess.Popen[bytes], folder: Path, seconds: float, limit_s: float) -> bool:
    """Wait for a process that has begun to compute; return whether it has ended by itself."""
    deadline = time.monotonic() + limit_s
    while not (folder / "up").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.poll() is not None


# -- the process that is killed -----------------------------------------------------------------------------------


def _compute_all(seed: int, folder: Path) -> None:
    rng = np.random.default_rng(seed)
    share, is_block = float(rng.choice(_SHARES)), bool(rng.random() < 0.5)
    saved = folder / "saved"
    _say(found=sum([each.chunks for each in dask_mars.checkpoints(saved)]))
    with Runtime(int(rng.integers(1, 4))) as runtime, contextlib.ExitStack() as stack:
        if is_block:
            # What has come to its end is read again, from what is left of it, until the block ends.
            stack.enter_context(dask_mars.checkpoint(saved, cost_share=share))
        else:
            settings = {"dask-mars.checkpoint.directory": str(saved), "dask-mars.checkpoint.cost-share": share}
            stack.enter_context(dask.config.set(settings))
        for _ in range(_COMPUTATIONS):
            _compute(rng, runtime, folder)


def _compute(rng: Generator, runtime: Runtime, folder: Path) -> None:
    workload = draw(rng, _MOST_BYTES)
    options = _Options(persisted=bool(rng.random() < 0.2))
    with dask.config.set({"dask-mars.checkpoint.directory": None}):
        expected = _result(workload, "sync", options)
    (folder / "up").touch()
    found = _result(workload, runtime.get, options)
    _say(kind=workload.name.partition(":")[0], outcome=_judged(workload, found, expected, _NO_TROUBLES, 0))


_NO_TROUBLES = Troubles("ok", kills=False)


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        _compute_all(int(sys.argv[1]), Path(sys.argv[2]))
