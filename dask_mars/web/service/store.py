"""The records of a service: a row of sqlite for each computation, and files for graphs, results and details.

Rows are written before the actions that they record. All is in one directory, which only its owner can enter.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dask_mars.error_base import DeclaredError
from dask_mars.locking import Lock
from dask_mars.web.monitor import OVER, Json
from dask_mars.web.sockets import private_directory

_TABLES = """
CREATE TABLE IF NOT EXISTS computations (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    digest TEXT NOT NULL,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    created REAL NOT NULL,
    started REAL,
    ended REAL,
    attempt INTEGER NOT NULL DEFAULT 1,
    losses INTEGER NOT NULL DEFAULT 0,
    cancelling INTEGER NOT NULL DEFAULT 0,
    refused INTEGER NOT NULL DEFAULT 0,
    revision INTEGER NOT NULL DEFAULT 0,
    progress TEXT NOT NULL DEFAULT '{}',
    error TEXT,
    result TEXT,
    file_bytes INTEGER NOT NULL DEFAULT 0,
    evicted INTEGER NOT NULL DEFAULT 0,
    saved_bytes INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS by_state ON computations (state, number);
"""
#: Version of the tables; a directory with another one belongs to another version.
_LAYOUT = 3
_GRAPHS, _RESULTS, _DETAILS, _INCOMING = "graphs", "results", "details", "incoming"
_CHECKPOINTS = "checkpoints"
_NOT_OVER = "state NOT IN ('finished', 'failed', 'cancelled')"
_BY_ID = "SELECT * FROM computations WHERE id = ?"
#: Bytes that stay free on the disk, so that rows can be written after any submission and result.
SPARE_BYTES = 64 << 20


class DirectoryInUse(DeclaredError, RuntimeError):
    """Another service keeps its records in the directory."""

    directory: str
    _template = "another service uses {directory}; give this one another --directory"


class CannotRecord(DeclaredError, OSError):
    """The records cannot be written now: the disk or the user's quota is full, for example."""

    reason: str
    _template = "the service cannot write its records: {reason}"


#: sqlite's errors for a full disk; an exhausted quota is an input/output error.
_OF_THE_DISK = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})


class ServiceStore:
    """The records of a service. It is thread-safe. Changes raise `CannotRecord` on a full disk."""

    def __init__(self, directory: Path) -> None:
        self.directory = private_directory(directory)
        with contextlib.ExitStack() as opened:
            held = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, held)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DirectoryInUse(str(directory)) from None
            for name in (_GRAPHS, _RESULTS, _DETAILS, _INCOMING, _CHECKPOINTS):
                private_directory(directory / name)
            # Unfinished uploads of an earlier service are worthless.
            for left in (directory / _INCOMING).iterdir():
                left.unlink()
            self._lock = threading.RLock()
            self._database = opened.enter_context(contextlib.closing(self._connect()))
            self._prepare()
            # Readers must not wait for writes to reach the disk.
            self._read_lock = Lock()
            self._reader = opened.enter_context(contextlib.closing(self._connect()))
            self._opened = opened.pop_all()

    def _connect(self) -> sqlite3.Connection:
        file = self.directory / "history.sqlite3"
        database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        database.row_factory = sqlite3.Row
        return database

    def _prepare(self) -> None:
        database = self._database
        database.execute("PRAGMA journal_mode=WAL")
        # A row that was confirmed with 201 must survive a loss of power.
        database.execute("PRAGMA synchronous=FULL")
        layout = database.execute("PRAGMA user_version").fetchone()[0]
        if layout not in (0, _LAYOUT):
            raise RuntimeError(f"{self.directory} was written by another version of dask_mars")
        database.executescript(_TABLES)
        database.execute(f"PRAGMA user_version={_LAYOUT}")
        # A graph without a row was never confirmed.
        numbers = {str(number) for (number,) in database.execute("SELECT number FROM computations")}
        for name in (_GRAPHS, _RESULTS, _DETAILS):
            for path in (self.directory / name).iterdir():
                if path.name.partition(".")[0] not in numbers:
                    path.unlink()
        unfinished = database.execute(f"SELECT number FROM computations WHERE {_NOT_OVER}")
        going_on = {str(number) for (number,) in unfinished}
        for path in (self.directory / _CHECKPOINTS).iterdir():
            if path.name not in going_on:
                shutil.rmtree(path, ignore_errors=True)
        newest = database.execute("SELECT max(revision) FROM computations").fetchone()[0] or 0
        #: Grows with each change, and across restarts: unrecorded ones were smaller than the current time.
        self.revision = max(newest, time.time_ns() // 1_000_000)

    def close(self) -> None:
        """Close the database, and release the directory."""
        with self._lock, self._read_lock:
            self._opened.close()

    # -- revisions ----------------------------------------------------------------------------------------------

    def next_revision(self) -> int:
        """Return the number of a new change."""
        with self._lock:
            self.revision += 1
            return self.revision

    # -- files --------------------------------------------------------------------------------------------------

    def incoming(self, name: str) -> Path:
        """Return the path of a file during its write."""
        return self.directory / _INCOMING / name

    def graph(self, number: int) -> Path:
        """Return the path of a submission."""
        return self.directory / _GRAPHS / str(number)

    def result(self, number: int) -> Path:
        """Return the path of a result."""
        return self.directory / _RESULTS / str(number)

    def details(self, number: int) -> Path:
        """Return the path of a computation's details."""
        return self.directory / _DETAILS / f"{number}.json"

    def checkpoint(self, number: int) -> Path:
        """Return the directory of an unfinished computation's checkpoint."""
        return self.directory / _CHECKPOINTS / str(number)

    def saved_bytes(self, number: int) -> int:
        """Return the bytes of a checkpoint's journals, which grow with each saved chunk."""
        found = 0
        for journal in self.checkpoint(number).glob("*/*.journal"):
            with contextlib.suppress(OSError):
                found += journal.stat().st_size
        return found

    def kept(self, number: int) -> Json:
        """Return a computation's details; empty if they were removed, or its process died."""
        try:
            kept: Json = json.loads(self.details(number).read_bytes())
        except (OSError, ValueError):
            return {}
        return kept

    # -- rows ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        database = self._database
        with self._lock:
            try:
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")
            except BaseException as error:
                # After some errors sqlite ends the transaction itself.
                if database.in_transaction:
                    database.execute("ROLLBACK")
                # The lower byte is the kind.
                if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in _OF_THE_DISK:
                    raise CannotRecord(str(error)) from error
                raise

    def add(self, id: str, digest: str, name: str, graph: Path) -> tuple[sqlite3.Row, bool]:
        """Record a submission whose file is complete."""
        with self._transaction() as database:
            for row in database.execute(_BY_ID, (id,)):
                return row, False
            now, revision = time.time(), self.next_revision()
            number = database.execute(
                "INSERT INTO computations (id, digest, name, state, created, revision, file_bytes)"
                " VALUES (?, ?, ?, 'queued', ?, ?, 0)",
                (id, digest, name, now, revision),
            ).lastrowid
            assert number is not None
            # Before the commit: a row without its graph could not be computed.
            graph.rename(self.graph(number))
            sync_directory(self.directory / _GRAPHS)
        return self.row(id), True

    def _read(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._read_lock:
            return self._reader.execute(query, values).fetchall()

    def row(self, id: str) -> sqlite3.Row:
        """Return a computation's row."""
        for row in self._read(_BY_ID, id):
            return row
        raise KeyError(id)

    def numbered(self, number: int) -> sqlite3.Row | None:
        """Return the row with a number, None if it was removed."""
        for row in self._read("SELECT * FROM computations WHERE number = ?", number):
            return row
        return None

    def update(self, number: int, **values: Any) -> bool:
        """Change the row of an unfinished computation; return whether there is one."""
        values["revision"] = self.next_revision()
        columns = ", ".join(f"{name} = ?" for name in values)
        with self._transaction() as database:
            changed = database.execute(
                f"UPDATE computations SET {columns} WHERE number = ? AND {_NOT_OVER}", (*values.values(), number)
            ).rowcount
        return bool(changed)

    def end(self, number: int, state: str, file_bytes: int = 0, **values: Any) -> bool:
        """Record the end of a computation, and remove its graph; return False if it had ended or was removed."""
        assert state in OVER
        done = self.update(number, state=state, ended=time.time(), file_bytes=file_bytes, **values)
        self.graph(number).unlink(missing_ok=True)
        shutil.rmtree(self.checkpoint(number), ignore_errors=True)
        return done

    def unfinished(self) -> list[sqlite3.Row]:
        """Return the rows of unfinished computations, the oldest first."""
        return self._read(f"SELECT * FROM computations WHERE {_NOT_OVER} ORDER BY number")

    def listed(self, state: str | None, before: int | None, limit: int) -> list[sqlite3.Row]:
        """Return rows, the newest first."""
        conditions, values = ["1"], []
        if state is not None:
            conditions.append("state = ?")
            values.append(state)
        if before is not None:
            conditions.append("number < ?")
            values.append(str(before))
        query = f"SELECT * FROM computations WHERE {' AND '.join(conditions)} ORDER BY number DESC LIMIT ?"
        return self._read(query, *values, limit)

    def counts(self) -> dict[str, int]:
        """Return the number of computations in each state."""
        return dict(map(tuple, self._read("SELECT state, count(*) FROM computations GROUP BY state")))

    def remove(self, id: str) -> int:
        """Remove a computation; return its number."""
        with self._transaction() as database:
            removed = database.execute("DELETE FROM computations WHERE id = ? RETURNING number", (id,)).fetchall()
            if not removed:
                raise KeyError(id)
            self.next_revision()
        number = int(removed[0]["number"])
        self.remove_files(number)
        return number

    def remove_files(self, number: int) -> None:
        """Remove the files of a computation."""
        for path in (self.graph(number), self.result(number), self.details(number)):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.checkpoint(number), ignore_errors=True)

    # -- history ------------------------------------------------------------------------------------------------

    def tidy(self, age_s: float | None, limit_bytes: int | None) -> None:
        """Remove old computations, and the oldest results beyond the limit."""
        if age_s is not None:
            self._forget_before(time.time() - age_s)
        if limit_bytes is not None:
            self._evict(limit_bytes)

    def _forget_before(self, moment: float) -> None:
        with self._transaction() as database:
            old = database.execute(
                "DELETE FROM computations WHERE ended < ? RETURNING number", (moment,)
            ).fetchall()
            if old:
                self.next_revision()
        for (number,) in old:
            self.remove_files(number)

    def _evict(self, limit_bytes: int) -> None:
        with self._transaction() as database:
            rows = database.execute(
                "SELECT number, file_bytes FROM computations WHERE file_bytes > 0 ORDER BY ended DESC"
            ).fetchall()
            running = itertools.accumulate([file_bytes for _, file_bytes in rows])
            surplus = [number for (number, _), total in zip(rows, running, strict=True) if total > limit_bytes]
            # The newest stays, however large it is: its client waits for it.
            if rows and surplus and surplus[0] == rows[0][0]:
                del surplus[0]
            database.executemany(
                "UPDATE computations SET evicted = 1, file_bytes = 0, revision = ? WHERE number = ?",
                [(self.next_revision(), number) for number in surplus],
            )
        for number in surplus:
            self.remove_files(number)


def sync_directory(directory: Path) -> None:
    """Flush the names in a directory to disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
