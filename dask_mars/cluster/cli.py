"""``dask-mars-worker``: the agent of a host, from the command line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import dask
from click.core import ParameterSource
from dask.system import CPU_COUNT
from dask.utils import parse_timedelta

from dask_mars import config
from dask_mars.cluster.agent_process import start_agent
from dask_mars.cluster.distributed_api import get_address_host_port, validate_preload_argv
from dask_mars.cluster.marks import RECONNECT_S
from dask_mars.cluster.serving import AgentCannotStart, serve
from dask_mars.store.spill_ownership import make_private_directory
from dask_mars.version import __version__

#: Longest wait of a reconnecting agent for its registration, in seconds.
_START_S = 60.0

_PEM_FILE = click.Path(exists=True, dir_okay=False, resolve_path=True)


def _by(check: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a callback of click that checks a value, and turns it into what Dask takes."""
    return lambda context, parameter, value: check(value)


def scheduler_address(scheduler: str | None) -> str | None:
    """Return the scheduler's address, if it is valid."""
    if scheduler is None:
        return None
    # Arguments of preloads may look like options, so click must accept unknown ones.
    if scheduler.startswith("-"):
        raise click.NoSuchOption(scheduler)
    try:
        get_address_host_port(scheduler)
    except ValueError as error:
        raise click.BadParameter(f"{error}; a scheduler's address is like tcp://10.0.0.1:8786") from None
    return scheduler


def _port(text: str | None) -> str | None:
    """Return a port, or a range of ports, as Dask takes it."""
    if text is not None and not all(port.isdecimal() and int(port) < 1 << 16 for port in text.split(":", 1)):
        raise click.BadParameter(f"{text!r} is neither a port, at most 65535, nor a range like 9000:9100")
    return text


def _duration(text: str | None) -> str | None:
    """Return a duration as Dask takes it."""
    try:
        parse_timedelta(text)
    except (ValueError, KeyError, IndexError, OverflowError):
        raise click.BadParameter(f"{text!r} is neither a number of seconds nor like '10 minutes'") from None
    return text


def _name(text: str | None) -> str | int | None:
    """Return a numeric name as a number: cluster managers number their workers, and compare numbers."""
    return int(text) if text is not None and text.isdecimal() else text


def _resources(text: str | None) -> dict[str, float] | None:
    """Return amounts by name."""
    if not text:
        return None
    try:
        return {
            name: float(amount) for name, amount in (pair.split("=") for pair in text.replace(",", " ").split())
        }
    except ValueError:
        raise click.BadParameter(f"{text!r} is not like 'GPU=2 MEM=10e9'") from None


@click.command(name="worker", context_settings={"ignore_unknown_options": True})
@click.argument("scheduler", required=False, callback=_by(scheduler_address))
@click.option("--tls-ca-file", type=_PEM_FILE, help="CA certificates (PEM).")
@click.option("--tls-cert", type=_PEM_FILE, help="Certificate (PEM).")
@click.option("--tls-key", type=_PEM_FILE, help="Private key (PEM).")
@click.option(
    "--worker-port", callback=_by(_port), help="Port, or first:last, that others connect to. [default: random]"
)
@click.option("--nanny-port", callback=_by(_port), help="The same for the nanny. [default: random]")
@click.option("--host", help="Address of this host, as the scheduler and other workers see it.")
@click.option("--interface", help='Network interface, like "eth0" or "ib0".')
@click.option("--protocol", help='Protocol, like "tcp" or "tls".')
@click.option("--listen-address", help='Instead of --host and --worker-port, like "tcp://0.0.0.0:9000".')
@click.option("--contact-address", help="What others are told of it, where they need another address.")
@click.option("--scheduler-sni", help="Name in the scheduler's certificate, if it is not that of its host.")
@click.option("--dashboard-address", default=":0", help="Where the agent's own pages are.")
@click.option("--dashboard/--no-dashboard", default=True, help="Serve them. [default: --dashboard]")
@click.option("--nworkers", "n_workers", help="Worker processes. [default: a process for each processor]")
@click.option("--nthreads", type=click.IntRange(1), help="Multiplies that: here each thread is a process.")
@click.option("--name", callback=_by(_name), help="A unique name for this host.")
@click.option(
    "--memory-limit",
    default="auto",
    show_default=True,
    help='Of the agent and its processes together: bytes, a share, or text like "5GB". "auto" is what '
    "dask-mars.memory-limit says.",
)
@click.option("--store-limit", help="Results that are kept in memory; beyond it they go to disk.")
@click.option("--spill-directory", help="Where on disk. [default: the local directory]")
@click.option("--local-directory", help="Where files of the agent go, in a directory of this user's.")
@click.option("--resources", callback=_by(_resources), help='For tasks that need some, like "GPU=2 MEM=10e9".')
@click.option("--scheduler-file", help="File with the scheduler's address, as dask scheduler writes it.")
@click.option("--death-timeout", callback=_by(_duration), help="Seconds to wait for a scheduler before giving up.")
@click.option(
    "--reconnect/--no-reconnect",
    default=None,
    help="Wait for a scheduler that is lost to come back, and begin anew there. [default: end]",
)
@click.option(
    "--reconnect-timeout",
    help='For how long at most each time, like "1 hour". [default: what dask-mars.cluster.reconnect-timeout says, '
    f"else {RECONNECT_S / 60:.0f} minutes]",
)
@click.option(
    "--lifetime", callback=_by(_duration), help='Hand on what is here and end after so long, like "1 hour".'
)
@click.option("--lifetime-stagger", callback=_by(_duration), help="By how much that varies at random.")
@click.option("--lifetime-restart/--no-lifetime-restart", default=None, help="Begin anew then. [default: end]")
@click.option("--pid-file", type=click.Path(path_type=Path), help="File to write the process id to.")
@click.option("--nanny/--no-nanny", default=True, help="Restart an agent that dies. [default: --nanny]")
@click.option(
    "--preload",
    multiple=True,
    is_eager=True,
    help='Module that the agent is to load, like "foo.bar" or "/path/to/foo.py".',
)
@click.option("--preload-nanny", multiple=True, is_eager=True, help="The same for the nanny.")
@click.argument("preload_argv", nargs=-1, type=click.UNPROCESSED, callback=lambda *given: _preload_argv(*given))
@click.version_option(__version__)
def main(
    scheduler: str | None,
    nanny: bool,
    pid_file: Path | None,
    reconnect: bool | None,
    reconnect_timeout: str | None,
    **given: Any,
) -> None:
    """Let this host compute for the Dask scheduler at SCHEDULER with dask_mars.

    The options are those of `dask worker`. There is one agent on a host, and its processes share one store.
    """
    if not (scheduler or given["scheduler_file"] or dask.config.get("scheduler-address", None)):
        raise click.UsageError("give the address of a scheduler, or --scheduler-file")
    reconnect_s = _reconnect_s(reconnect, reconnect_timeout)
    if reconnect_s and given["death_timeout"] is None:
        # A starting agent would wait forever, for one scheduler at one address.
        given["death_timeout"] = _START_S
    options = _options(nanny, given) | {"reconnect_s": reconnect_s}
    with _pid_file(pid_file):
        if nanny:
            # The nanny would count shared memory that the agent has read as the agent's own.
            dask.config.set({"distributed.worker.memory.terminate": False})
        try:
            ended_well = asyncio.run(serve(nanny, scheduler, options, reconnect_s))
        except AgentCannotStart as error:
            raise click.ClickException(f"the agent cannot start with {_given()}: {error}") from None
    if not ended_well:
        sys.exit(1)


def _options(nanny: bool, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the nanny, or of the agent, from those of the command line."""
    take = given.pop
    files = {
        "tls_ca_file": take("tls_ca_file"),
        "tls_worker_cert": take("tls_cert"),
        "tls_worker_key": take("tls_key"),
    }
    host, port = _bound_to(take("listen_address"), given["contact_address"], given["host"], take("worker_port"))
    nanny_port, preload_nanny = take("nanny_port"), take("preload_nanny")
    processes, limit = _processes(take("n_workers"), given["nthreads"]), _memory_limit(given["memory_limit"])
    options = given | {
        "nthreads": processes,
        "memory_limit": limit,
        "store_limit": _store_limit(given["store_limit"], limit),
        "local_directory": _scratch_directory(given["local_directory"]),
        "host": host,
        "security": {name: value for name, value in files.items() if value is not None},
        "preload": list(given["preload"]),
    }
    if not nanny:
        return options | {"port": port}
    return options | {
        "worker_class": start_agent,
        "worker_port": port,
        "port": nanny_port,
        # None means the configured value.
        "preload_nanny": list(preload_nanny) or None,
    }


def _given() -> str:
    """Return the options of the command line."""
    context = click.get_current_context()
    told = [
        option.opts[0]
        for option in context.command.params
        if option.name and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]
    return ", ".join([name for name in told if name.startswith("-")]) or "Dask's configuration"


def _preload_argv(*given: Any) -> Any:
    """Return the arguments of preloads; this imports them to check their parameters."""
    try:
        return validate_preload_argv(*given)
    except ImportError as error:
        raise click.BadParameter(f"{type(error).__name__}: {error}", param_hint="--preload") from None


def _processes(n_workers: str | None, nthreads: int | None) -> int:
    """Return the number of worker processes."""
    if n_workers in (None, "auto"):
        return nthreads or CPU_COUNT
    try:
        count = int(n_workers or "")
    except ValueError:
        raise click.BadParameter(f"{n_workers} is neither a number nor 'auto'", param_hint="--nworkers") from None
    if count < 0:
        count += CPU_COUNT + 1
    if count < 1:
        raise click.BadParameter("there must be at least one", param_hint="--nworkers")
    return count * (nthreads or 1)


def _reconnect_s(reconnect: bool | None, timeout: str | None) -> float:
    """Return the longest wait for a lost scheduler, in seconds; 0 for none."""
    if reconnect is False or (reconnect is None and timeout is None):
        return 0.0
    try:
        if timeout is not None:
            return config.parse_duration(timeout, "--reconnect-timeout")
        return config.reconnect_s() or RECONNECT_S
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--reconnect") from None


def _bound_to(
    listen_address: str | None, contact_address: str | None, host: str | None, port: str | None
) -> tuple[str | None, str | None]:
    """Return the host and the port that the agent listens at."""
    if listen_address is None:
        if contact_address is not None:
            raise click.UsageError("--contact-address needs --listen-address")
        return host, port
    if host or port:
        raise click.UsageError("--listen-address has the host and the port already")
    try:
        found, found_port = get_address_host_port(listen_address, strict=True)
        if contact_address is not None:
            get_address_host_port(contact_address, strict=True)
    except ValueError as error:
        raise click.UsageError(f"--listen-address, --contact-address: {error}") from None
    return f"[{found}]" if ":" in found else found, str(found_port)


def _scratch_directory(chosen: str | None) -> str:
    """Return a private directory in the chosen one, or in Dask's or the system's temporary directory.

    Dask would use an existing directory of a well-known name, and import modules from it.
    """
    around = Path(chosen or dask.config.get("temporary-directory", None) or tempfile.gettempdir())
    try:
        # Under this name Dask creates no further directory in it.
        return str(make_private_directory(around.absolute() / f"dask-scratch-space-{os.getuid()}"))
    except OSError as error:
        raise click.ClickException(f"cannot use the local directory: {error}; choose --local-directory") from error


def _memory_limit(text: str) -> int:
    """Return the limit in bytes. Values that mean no limit to `dask worker` mean all memory."""
    try:
        if text == "auto":
            return config.parse_memory(config.get("memory-limit"), name="dask-mars.memory-limit")
        return config.parse_memory(config.as_number(text) or 1.0, name="--memory-limit")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--memory-limit") from None


def _store_limit(text: str | None, memory_limit: int) -> Any:
    """Return the agent's limit; a share is left to the agent, which knows its memory limit."""
    limit = config.as_number(text)
    if text is not None:
        try:
            config.parse_memory(limit, memory_limit, "--store-limit")
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--store-limit") from None
    return limit


@contextlib.contextmanager
def _pid_file(path: Path | None) -> Iterator[None]:
    if path is None:
        yield
        return
    try:
        path.write_text(str(os.getpid()), encoding="utf-8")
    except OSError as error:
        raise click.BadParameter(f"cannot be written: {error}", param_hint="--pid-file") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main(prog_name="dask-mars-worker")
