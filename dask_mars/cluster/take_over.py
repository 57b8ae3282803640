"""Turns the workers of any Dask cluster into agents, and back, by plugins of nannies, workers and scheduler."""

from __future__ import annotations

import contextlib
import logging
import pkgutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import dask
from distributed import Client, SpecCluster

from dask_mars import units
from dask_mars.cluster.admission import workers_of
from dask_mars.cluster.agent_process import AttachAgents, StartAgents, agent_name
from dask_mars.cluster.client_methods import switch, switch_back
from dask_mars.cluster.distributed_api import CommClosedError, get_address_host
from dask_mars.cluster.marks import ATTACH, MARK, TAKE_OVER
from dask_mars.cluster.planning import agents_among
from dask_mars.cluster.preload import Preload
from dask_mars.cluster.reconnection import latest
from dask_mars.errors import CannotTakeOver
from dask_mars.version import __version__

logger = logging.getLogger(__name__)

#: Longest wait for workers that restart, in seconds.
_RESTART_S = 300.0
#: Longest wait for workers that restart without Dask waiting for them, and poll interval, in seconds.
_UNHEARD_S, _POLL_S = 60.0, 0.1
_VERSION = "dask_mars.version:__version__"


class TakenCluster:
    """A cluster whose workers have become agents; as a context manager it gives them back at the end."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_taken = True
        switch(client)

    def give_back(self) -> None:
        """Restart the agents as stock workers again, or end those beside stock workers, and wait for them.

        Results of restarted ones are computed again where they are needed. A second call does nothing.
        """
        client = latest(self._client)
        if not self._is_taken or client.status != "running":
            return
        switch_back(self._client)
        workers = workers_of(client)
        _warn_of_results(client, workers, is_agent=True)
        agents = {address for address, told in workers.items() if MARK in told}
        all_answer = True
        for plugin, nanny in _plugins(client):
            # Another client may give the cluster back meanwhile; a worker that closes has no plugin any more.
            with contextlib.suppress(ValueError, KeyError, OSError):
                all_answer &= _all_answer(client.unregister_worker_plugin, plugin, nanny=nanny)
        if not all_answer:
            with contextlib.suppress(OSError):
                _wait_while(lambda: agents & workers_of(client).keys())
        _start_missing(client)
        # Only now: after Ctrl-C the next call does the rest.
        self._is_taken = False

    def __enter__(self) -> TakenCluster:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.give_back()

    def __repr__(self) -> str:
        return f"<TakenCluster {self._client.scheduler.address if self._client.scheduler else 'closed'}>"


def take_over(client: Client) -> TakenCluster:
    """Turn the workers of any Dask cluster into dask_mars's agents.

    Nannies restart their workers, with the same names, processes, resources, certificates and lifetimes. A worker
    without a nanny stays, and gets an agent beside it. Later workers become agents, too. Computations by
    ``dask_mars.get`` then run on the cluster, until it ends or is given back. So do ``client.compute``,
    ``client.persist`` and ``client.get``, which return Dask's futures as before, and by them, if ``client`` is the
    current one, ``x.compute()`` and ``x.persist()``. On a cluster of agents the call does nothing else.

    Parameters
    ----------
    client : distributed.Client
        A synchronous client of the cluster.

    Returns
    -------
    TakenCluster
        Its `give_back` makes the workers stock again; as a context manager it does so at the end.

    Raises
    ------
    CannotTakeOver
        All workers are of classes of their own, or dask_mars is missing on their hosts.
    TypeError, ValueError
        `client` is not a client, or an asynchronous one.

    Examples
    --------
    >>> import dask.array as da
    >>> import dask_mars
    >>> from distributed import Client, LocalCluster
    >>> with LocalCluster(n_workers=2) as cluster, Client(cluster) as client:  # doctest: +SKIP
    ...     with dask_mars.take_over(client):
    ...         int(da.arange(10, chunks=5).sum().compute())
    45
    """
    if not isinstance(client, Client):
        raise TypeError(f"'client' is a distributed.Client, and not {client!r}")
    if client.asynchronous:
        raise ValueError("take_over waits for the workers, and needs a Client that is not asynchronous")
    client = latest(client)
    stock = _check_packages(client)
    _warn_of_results(client, workers_of(client), is_agent=False)
    _install_on_scheduler(client)
    counts = Counter(map(get_address_host, stock))
    try:
        all_answer = _all_answer(client.register_plugin, AttachAgents(counts))
        all_answer &= _all_answer(client.register_plugin, StartAgents(counts))
        if not all_answer:
            _wait_while(lambda: _not_taken(client, stock)[1])
        # Those that have just died come back.
        _wait_while(lambda: stock and not any(_not_taken(client, stock)))
        _check_agents(client, stock)
        _start_missing(client)
    except BaseException as error:
        with contextlib.suppress(Exception):
            TakenCluster(client).give_back()
        if isinstance(error, RuntimeError):
            raise CannotTakeOver(client.scheduler.address, str(error)) from error
        raise
    return TakenCluster(client)


def _plugins(client: Client) -> list[tuple[str, bool]]:
    """Return our plugins of workers and nannies which the scheduler has, or all if it does not say.

    It logs errors for others: another client may have given the cluster back.
    """
    ours = [(ATTACH, False), (TAKE_OVER, True)]
    try:
        # A lambda arrives where dask_mars is missing, too.
        had = client.run_on_scheduler(
            lambda dask_scheduler: [*dask_scheduler.worker_plugins, *dask_scheduler.nanny_plugins]
        )
    except Exception:
        return ours
    return [(name, nanny) for name, nanny in ours if name in had]


def _all_answer(tell: Callable[..., Any], *args: Any, **options: Any) -> bool:
    """Tell all workers of a plugin; return False if one closes, so that Dask does not wait for the others."""
    # Cluster objects of this process would close nannies whose workers restart.
    patience = dask.config.set({"distributed.deploy.lost-worker-timeout": _RESTART_S})
    try:
        with patience:
            tell(*args, **options)
    except CommClosedError:
        return False
    return True


def _wait_while(is_pending: Callable[[], Any]) -> None:
    end_s = time.monotonic() + _UNHEARD_S
    while is_pending() and time.monotonic() < end_s:
        time.sleep(_POLL_S)


def _start_missing(client: Client) -> None:
    """Let the cluster's manager start workers that it gave up as lost while they restarted.

    It looks for a worker some time after that has died, and may do so just then.
    """
    if isinstance(client.cluster, SpecCluster):
        SpecCluster.scale(client.cluster, len(client.cluster.worker_spec))


def _check_packages(client: Client) -> list[str]:
    """Return stock workers; raise if their nannies, or those without a nanny, cannot import dask_mars."""
    nannies = {address: told["nanny"] for address, told in workers_of(client).items() if MARK not in told}
    found: dict[str, Any] = {}
    for nanny in (True, False):
        # A function of the standard library: the hosts may lack ours.
        asked = [address for address, its in nannies.items() if bool(its) is nanny]
        if asked:
            try:
                found |= client.run(pkgutil.resolve_name, _VERSION, nanny=nanny, workers=asked, on_error="return")
            except KeyError:
                # A worker has gone, and the scheduler no longer knows its nanny.
                return _check_packages(client)
    there = workers_of(client)
    failed = {
        address: error
        for address, error in found.items()
        if isinstance(error, BaseException) and not isinstance(error, CommClosedError) and address in there
    }
    if failed:
        address, error = min(failed.items())
        raise CannotTakeOver(
            client.scheduler.address,
            f"{units.plural(len(failed), 'worker')} of {len(nannies)} cannot import it, as {address}: "
            f"{type(error).__name__}: {error}. Install it first, with "
            f"client.register_plugin(distributed.PipInstall(['dask-mars=={__version__}'])), or with "
            "distributed.diagnostics.plugin.UploadDirectory for a directory that contains it",
        )
    return [*nannies]


def _install_on_scheduler(client: Client) -> None:
    """Install the scheduler's plugins, if it has dask_mars; without it Dask places subtasks."""
    try:
        client.run_on_scheduler(pkgutil.resolve_name, _VERSION)
        client.register_plugin(Preload())
    except Exception as error:
        # It may also refuse all plugins: distributed.scheduler.pickle.
        logger.info("the scheduler at %s stays stock: %s", client.scheduler.address, error)


def _not_taken(client: Client, stock: Collection[str]) -> tuple[Collection[Any], list[Mapping[str, Any]]]:
    """Return the agents, and what tells of stock workers that have not become such, given their old addresses."""
    workers = workers_of(client)
    agents = agents_among(workers)
    names = {agent.name for agent in agents}
    return agents, [
        told
        for address, told in workers.items()
        if address in stock and MARK not in told and agent_name(told["name"]) not in names
    ]


def _check_agents(client: Client, stock: Collection[str]) -> None:
    """Warn about stock workers that have not become agents, given their old addresses; raise if all are such."""
    agents, stayed = _not_taken(client, stock)
    others = _described(stayed)
    if stock and not agents:
        if not others:
            raise RuntimeError("none came back: what manages them, as dask-gateway, ends workers that restart")
        raise RuntimeError(f"they are of a class of their own: {others}")
    if others:
        warnings.warn(
            f"these workers are of a class of their own, and stay what they are: {others}",
            RuntimeWarning,
            stacklevel=3,
        )


def _described(workers: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(sorted([f"{told['type']} {told['name']}" for told in workers]))


def _warn_of_results(client: Client, workers: Mapping[str, Mapping[str, Any]], is_agent: bool) -> None:
    """Warn about results that restarts lose."""
    restarted = [address for address, told in workers.items() if (MARK in told) is is_agent and told["nanny"]]
    held = sum(map(len, client.has_what(restarted).values())) if restarted else 0
    if held:
        warnings.warn(
            f"the workers restart, and hold {units.plural(held, 'result')}: what is still needed is computed "
            "again, and what client.scatter has sent is lost",
            RuntimeWarning,
            stacklevel=3,
        )
