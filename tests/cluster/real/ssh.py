"""Agents by a real SSH server on this machine: ``python -m tests.cluster.real.ssh``, as root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from distributed import Client, SSHCluster

from tests.cluster.real.services import agents, compute, free_ports, kill_agent, left, reach, service

_CONFIGURATION = """
ListenAddress 127.0.0.1:{port}
ListenAddress 127.0.0.2:{port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
SetEnv DASK_MARS_REAL={marker} PYTHONPATH={source}
"""
_HOSTS = ["127.0.0.1", "127.0.0.2"]


@contextlib.contextmanager
def sshd(folder: Path, marker: str) -> Iterator[int]:
    """Run a server with keys of its own, and return its port."""
    (port,) = free_ports(1)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    source = Path(__file__).parents[3]
    (folder / "sshd_config").write_text(
        _CONFIGURATION.format(port=port, folder=folder, marker=marker, source=source)
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    with service(["/usr/sbin/sshd", "-D", "-e", "-f", folder / "sshd_config"], folder / "sshd.log"):
        reach("sshd", lambda: "listening" in (folder / "sshd.log").read_text())
        yield port


def _ssh_cluster(folder: Path, port: int) -> None:
    """Start, compute, close."""
    with (
        SSHCluster(
            [_HOSTS[0], *_HOSTS],
            connect_options={"port": port, "known_hosts": None, "client_keys": [str(folder / "user")]},
            worker_class="dask_mars.cluster.agent.MarsWorker",
            worker_options={"nthreads": 2, "memory_limit": "1 GiB", "local_directory": str(folder / "local")},
            remote_python=sys.executable,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        reach("two agents", lambda: len(agents(client)) == 2)
        compute(client)


def _dask_ssh(folder: Path, port: int) -> None:
    """Start by Dask's command, compute, kill an agent, end the command by Ctrl-C."""
    (scheduler_port,) = free_ports(1)
    command = [sys.executable, "-m", "distributed.cli.dask_ssh", "--scheduler", _HOSTS[0], "--nthreads", "2"]
    command += [f"--scheduler-port={scheduler_port}", f"--ssh-port={port}", f"--ssh-private-key={folder / 'user'}"]
    command += ["--memory-limit=1GiB", "--remote-dask-worker=dask_mars.cluster.cli"]
    command += [f"--remote-python={sys.executable}", f"--local-directory={folder}/local", *_HOSTS]
    with service(command, folder / "dask-ssh.log") as process:
        address = f"tcp://{_HOSTS[0]}:{scheduler_port}"
        with Client(address, set_as_default=False, timeout=60) as client:
            reach("two agents", lambda: len(agents(client)) == 2)
            compute(client)
            kill_agent(client)
            compute(client)
        process.send_signal(2)
        reach("dask ssh has ended after Ctrl-C", lambda: process.poll() is not None)


def main() -> None:
    """Run both."""
    marker = uuid.uuid4().hex
    os.environ["SHELL"] = "/bin/bash"
    folder = Path(tempfile.mkdtemp(prefix="ssh-", dir="/tmp"))
    with sshd(folder, marker) as port:
        print("-- SSHCluster")
        _ssh_cluster(folder, port)
        reach("nothing is left", lambda: not left(marker), 40)
        print("-- dask ssh")
        _dask_ssh(folder, port)
        reach("nothing is left", lambda: not left(marker), 40)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
