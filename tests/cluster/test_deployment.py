"""Agents as tools for clusters start them: the command lines that these make."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
import yaml
from click.testing import CliRunner

from dask_mars.cluster import cli

pytestmark = pytest.mark.slow


@pytest.fixture
def jobqueue() -> Any:
    of_interrupts = signal.getsignal(signal.SIGINT)
    try:
        return pytest.importorskip("dask_jobqueue")
    finally:
        # It makes an exit of Ctrl-C, for all tests that follow.
        signal.signal(signal.SIGINT, of_interrupts)


@pytest.mark.parametrize("name", ["SLURM", "PBS", "LSF", "SGE", "Moab", "OAR", "HTCondor"])
def test_what_queues_are_given_to_run_is_understood(jobqueue, name, tmp_path, monkeypatch):
    found: dict[str, Any] = {}
    monkeypatch.setattr(cli, "serve", serving(found))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    options = {
        "cores": 2,
        "memory": "1 GiB",
        "processes": 1,
        "worker_command": "dask_mars.cluster.cli",
        "scheduler_options": {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"},
        "protocol": "tcp",
        "local_directory": "$TMPDIR",
        "death_timeout": 60,
        "worker_extra_args": ["--store-limit", "40%", "--lifetime", "25m", "--lifetime-stagger", "4m"],
    }
    more = {"disk": "1 GiB"} if name == "HTCondor" else {}
    with getattr(jobqueue, f"{name}Cluster")(**options, **more) as cluster:
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
