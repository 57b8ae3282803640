"""Clusters of several hosts: what they exchange, and what happens when one is lost, cut off, or leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

import dask_mars
from tests.array_calls import CALLS, Arrays
from tests.conftest import environment_for_scripts, eventually, files
from tests.namespaces import Host, Network, why_not
from tests.tasks import note, notes, wait_for

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

#: So that the loss of a host that says nothing is noticed soon. Dask takes no less.
SHORT = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "11s"}
#: For what should happen at once, on a machine that is busy with other things.
SOON_S = 30.0


class Site:
    """A scheduler on a host of its own, and agents on others."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.network = Network()
        self.programs: dict[Host, subprocess.Popen[Any]] = {}
        self.desk = self.network.host("desk")
        self.scheduler = self.network.host("scheduler")
        self.address = f"tcp://{self.scheduler.address}:8786"
        self._start(self.scheduler, "dask", "scheduler", "--no-dashboard", *options)

    def _start(self, host: Host, *command: str) -> None:
        with (self.directory / f"{host.name}.log").open("wb") as log:
            self.programs[host] = host.popen(
                [sys.executable, "-m", *command],
                cwd=self.directory,
                env=environment_for_scripts(str(self.directory), **SHORT),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def agent(self, name: str, *options: str) -> Host:
        host = self.network.host(name)
        folder = self.directory / name
        folder.mkdir()
        command = ("dask_mars.cluster.cli", self.address, f"--name={name}", f"--local-directory={folder}")
        self._start(host, *command, "--nworkers=1", "--memory-limit=512MiB", "--no-dashboard", *options)
        return host
