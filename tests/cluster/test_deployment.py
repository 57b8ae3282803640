"""Agents as tools for clusters start them: the command lines that these make, and jobs that a queue runs."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import pytest
import yaml
from click.testing import CliRunner
from distributed import Client

import dask_mars
from dask_mars.cluster import cli
from dask_mars.cluster.marks import MARK
from tests.conftest import Scripts, environment_for_scripts, eventually

pytestmark = pytest.mark.slow

#: They keep the time that a job gets, and how it is asked for; a script is run as it is.
SBATCH = """#!/bin/sh
cp "$1" "$JOBS/$$"
setsid sh "$JOBS/$$" >"$JOBS/$$.log" 2>&1 </dev/null &
echo "Submitted batch job $!"
"""
# SLURM sends this to all processes of a job, and not to its script alone.
SCANCEL = """#!/bin/sh
kill -TERM $(ps -o pid= -s "$1")
"""


@pytest.fixture
def slurm(scripts: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put commands in the path that run jobs on this machine, and return the directory of what they have run."""
    programs, jobs = tmp_path / "bin", tmp_path / "jobs"
    for directory in (programs, jobs):
        directory.mkdir()
    for name, text in {"sbatch": SBATCH, "scancel": SCANCEL}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o700)
    environment = environment_for_scripts(scripts.marker, JOBS=str(jobs))
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return jobs


def options(**changes: Any) -> dict[str, Any]:
    return {
        "cores": 2,
        "memory": "1 GiB",
        "processes": 1,
        "python": sys.executable,
        "worker_command": "dask_mars.cluster.cli",
        "scheduler_options": {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"},
        "protocol": "tcp",
        **changes,
    }


@pytest.fixture
def jobqueue() -> Any:
    of_interrupts = signal.getsignal(signal.SIGINT)
    try:
        return pytest.importorskip("dask_jobqueue")
    finally:
        # It makes an exit of Ctrl-C, for all tests that follow.
        signal.signal(signal.SIGINT, of_interrupts)


@pytest.fixture
def queue(jobqueue: Any, slurm: Path, scripts: Scripts, tmp_path: Path) -> Iterator[Any]:
    with jobqueue.SLURMCluster(**options(local_directory=str(tmp_path / "local"))) as cluster:
        yield cluster
    # The queue ends them, and nobody waits for it.
    assert eventually(lambda: not scripts.left(), 60), logs(tmp_path)


def hosts(client: Client) -> dict[str, Any]:
    return {told["name"]: told for told in client.scheduler_info(n_workers=-1)["workers"].values() if MARK in told}


@pytest.mark.nightly
def test_jobs_are_agents_and_what_they_have_survives_those_that_end(queue, tmp_path):
    with Client(queue) as client:
        # So that both have something to hand on.
        queue.sync(queue.scheduler.extensions["stealing"].stop)
        queue.scale(jobs=2)
        assert eventually(lambda: len(hosts(client)) == 2, 60), logs(tmp_path)
        assert {told["nthreads"] for told in hosts(client).values()} == {2}
        x = da.arange(1000, chunks=10)
        assert (x + x[::-1]).sum().compute(scheduler=dask_mars.get) == 999_000
        # What is not handed on would be computed again, and be something else.
        kept = dask.persist(*[dask.delayed(os.urandom)(8, pure=False) for _ in range(20)], scheduler=dask_mars.get)
        before = dask.compute(*kept, scheduler=dask_mars.get)
        assert all(client.has_what().values())
        queue.scale(jobs=1)
        assert eventually(lambda: len(hosts(client)) == 1, 60), logs(tmp_path)
        assert dask.compute(*kept, scheduler=dask_mars.get) == before
        # As when its time is up, or when somebody cancels it by hand.
        (job,) = [worker.job_id for worker in queue.workers.values()]
        queue.scale(jobs=2)
        assert eventually(lambda: len(hosts(client)) == 2, 60), logs(tmp_path)
        subprocess.run(["scancel", job], check=True)
        assert eventually(lambda: len(hosts(client)) == 1, 60), logs(tmp_path)
        assert dask.compute(*kept, scheduler=dask_mars.get) == before


@pytest.mark.parametrize("name", ["SLURM", "PBS", "LSF", "SGE", "Moab", "OAR", "HTCondor"])
def test_what_queues_are_given_to_run_is_understood(jobqueue, name, tmp_path, monkeypatch):
    found: dict[str, Any] = {}
    monkeypatch.setattr(cli, "serve", serving(found))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    more = {"disk": "1 GiB"} if name == "HTCondor" else {}
    extra = ["--store-limit", "40%", "--lifetime", "25m", "--lifetime-stagger", "4m"]
    made = options(local_directory="$TMPDIR", death_timeout=60, worker_extra_args=extra, **more)
    with getattr(jobqueue, f"{name}Cluster")(**made) as cluster:
        script = cluster.job_script()
    (line,) = [line for line in script.splitlines() if "dask_mars.cluster.cli" in line]
    words = shlex.split(line[line.index("dask_mars.cluster.cli") :].rstrip("'\""))
    arguments = [os.path.expandvars(word) for word in words[1:]]
    understood(arguments)
    assert found["scheduler"].startswith("tcp://127.0.0.1:")
    assert (found["nthreads"], found["memory_limit"], found["store_limit"]) == (2, 1 << 30, "40%")
    assert (found["death_timeout"], found["lifetime"], found["lifetime_stagger"]) == ("60", "25m", "4m")
    assert found["local_directory"].startswith(str(tmp_path))


DOCS = Path(__file__).resolve().parents[2] / "docs"
COMMAND = re.compile(r"^(?:dask-mars-worker|python -m dask_mars\.cluster\.cli) (.*)", re.MULTILINE)


def commands() -> Iterator[list[str]]:
    """Yield the arguments of all agents in the documentation."""
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        yield from [shlex.split(line, comments=True) for line in COMMAND.findall(text)]
        for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
            for resource in filter(None, yaml.safe_load_all(block)):
                # Settings are YAML, too.
                if isinstance(resource, dict) and resource.get("kind") == "Deployment":
                    (container,) = resource["spec"]["template"]["spec"]["containers"]
                    if container["args"][0] == "dask-mars-worker":
                        yield container["args"][1:]


def test_commands_in_the_documentation_are_understood(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("ca.pem", "worker.pem", "worker-key.pem"):
        (tmp_path / name).touch()
    found = [*commands()]
    assert len(found) >= 6
    for arguments in found:
        seen: dict[str, Any] = {}
        monkeypatch.setattr(cli, "serve", serving(seen))
        understood([re.sub('^/|^[$"].*', f"{tmp_path}/", argument) for argument in arguments])
        assert seen


def understood(arguments: list[str]) -> None:
    name = "distributed.worker.memory.terminate"
    # The command changes that for its process.
    with dask.config.set({name: dask.config.get(name)}):
        result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 0, (arguments, result.output)


def serving(found: dict[str, Any]) -> Any:
    """Return what notes the options of an agent, and does not start it."""

    async def serve(nanny: bool, scheduler: str, options: dict[str, Any], reconnect_s: float) -> bool:
        found.update(options, nanny=nanny, scheduler=scheduler)
        return True

    return serve


def logs(tmp_path: Path) -> list[str]:
    return [file.read_text() for file in (tmp_path / "jobs").glob("*.log")]
