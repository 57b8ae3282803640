"""Directories of checkpoints, one for each computation: facts, journals, files of chunks; and its lock."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dask_mars.checkpointing.journal import Begun, Journal, Saved, read_journal
from dask_mars.errors import CheckpointFailed, CheckpointInUse
from dask_mars.files import replace_file
from dask_mars.protocol.object_ref import SPILLED, ObjectRef, SpilledFile, spilled_file
from dask_mars.store.spill_ownership import make_private_directory

_LOCK, _ABOUT, _JOURNAL, _CHUNK = ".lock", "about.json", ".journal", ".chunk"
#: Poll interval for a lock that another process holds, in seconds.
_LOOK_S = 0.05
#: Attempts to open a directory that other processes remove meanwhile.
_ATTEMPTS = 100
#: Matches the scheme of a file system's address; local ones are directories.
_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)(?:::|://)")
_LOCAL_SCHEMES = ("file", "local")


class ComputationDirectory:
    """The directory of one computation."""

    # It exists once something is saved. The lock is beside it: most computations save nothing, and some file
    # systems need milliseconds to create and remove a directory.

    def __init__(self, root: Path, identity: str) -> None:
        self.root = root
        self.identity = identity
        self.path = root / identity
        self._lock_path = root / f"{identity}{_LOCK}"
        self._lock: int | None = None

    # -- its lock -----------------------------------------------------------------------------------------------

    def acquire(self, wait_s: float) -> None:
        """Lock it against other processes; the lock ends with this process."""
        deadline = time.monotonic() + wait_s
        reason = OSError(errno.EAGAIN, "others make and remove it again and again")
        for _ in range(_ATTEMPTS):
            try:
                # The root may be shared; each computation's directory is private to its user.
                self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
                if os.path.lexists(self.path):
                    make_private_directory(self.path)
                descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError as error:
                # The previous holder has just removed it.
                reason = error
                continue
            except OSError as error:
                raise failed(self.path, error) from error
            try:
                if self._locked(descriptor, deadline):
                    self._lock = descriptor
                    return
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        raise failed(self.path, reason)

    def _locked(self, descriptor: int, deadline: float) -> bool:
        """Lock a file; return False if it was removed meanwhile."""
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(descriptor, 300, 0).decode(errors="replace")
                    raise CheckpointInUse(str(self.path), holder or "another process") from None
                time.sleep(_LOOK_S)
            except OSError as error:
                raise failed(self.path, error) from error
        try:
            if not os.path.samestat(os.fstat(descriptor), self._lock_path.stat()):
                return False
        except OSError:
            return False
        # On a full disk the holder's name cannot be written, but the lock holds.
        with contextlib.suppress(OSError):
            own = f"process {os.getpid()} on {socket.gethostname()}".encode()
            # Truncate last: ext4 and others flush a file that is first truncated to zero when it is closed.
            os.pwrite(descriptor, own, 0)
            if os.fstat(descriptor).st_size > len(own):
                os.ftruncate(descriptor, len(own))
        return True

    def release(self) -> None:
        """Release the lock."""
        lock, self._lock = self._lock, None
        if lock is not None:
            # Forked processes share the lock's file description, so unlock explicitly.
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def is_in_use(self) -> bool:
        """Return whether a living process uses it."""
        try:
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def remove(self) -> None:
        """Remove it with all files."""
        shutil.rmtree(self.path, ignore_errors=True)
        # The lock goes last: a waiting process notices its removal and creates a new one.
        with contextlib.suppress(OSError):
            self._lock_path.unlink()

    def discard(self) -> None:
        """Remove it, if it exists."""
        if not (self.path.exists() or self._lock_path.exists()):
            return
        self.acquire(0.0)
        try:
            self.remove()
        finally:
            self.release()

    # -- its files ----------------------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """Return its facts; an empty dict if they cannot be read."""
        try:
            found = json.loads((self.path / _ABOUT).read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def note(self, about: Mapping[str, Any]) -> None:
        """Write its facts, and create it if necessary."""
        make_private_directory(self.path)
        replace_file(self.path / _ABOUT, json.dumps(about).encode())

    def journal(self) -> Journal:
        """Return a new journal."""
        return Journal(self.path / f"{secrets.token_hex(8)}{_JOURNAL}", self.identity)

    def read(self) -> tuple[dict[tuple[Any, str], Saved], set[Any]]:
        """Return the saved chunks, by key and form, and the keys of started chunks that must not start again."""
        # Files of unexpected size are skipped.
        saved: dict[tuple[Any, str], Saved] = {}
        begun: set[Any] = set()
        sizes = self._sizes()
        for name in sorted([name for name in sizes if name.endswith(_JOURNAL)]):
            for record in read_journal(self.path / name, self.identity):
                if isinstance(record, Begun):
                    begun.add(record.key)
                    continue
                with contextlib.suppress(Exception):
                    usable = self._usable(record, sizes)
                    if usable is not None:
                        saved[record.key, record.form] = usable
        return saved, begun

    def _usable(self, record: Saved, sizes: Mapping[str, int]) -> Saved | None:
        """Return a record with the path of its file, None if the file is gone."""
        if record.ref[0] != SPILLED:
            return record
        file = spilled_file(record.ref)
        if sizes.get(file.path) != file.size_bytes:
            return None
        moved = dataclasses.replace(file, path=str(self.path / Path(file.path).name))
        return record._replace(ref=(*record.ref[:2], moved, *record.ref[3:]))

    def _sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_file(follow_symlinks=False):
                        sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
        return sizes

    def is_empty(self) -> bool:
        """Return whether nothing is saved in it."""
        return not any(name.endswith(_JOURNAL) for name in self._sizes())

    def size_bytes(self) -> int:
        """Return the size of its files, in bytes."""
        return sum(self._sizes().values())

    def used_last_s(self) -> float:
        """Return the time of the last write or lock, in seconds since 1970."""
        newest = 0.0
        with contextlib.suppress(OSError):
            newest = self._lock_path.stat().st_mtime
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
        return newest

    def clear(self) -> None:
        """Remove all files."""
        for name in self._sizes():
            with contextlib.suppress(OSError):
                (self.path / name).unlink()


def named(ref: ObjectRef) -> ObjectRef:
    """Return a reference to a file by name instead of path."""
    file: SpilledFile = spilled_file(ref)
    return (*ref[:2], dataclasses.replace(file, path=Path(file.path).name), *ref[3:])


def failed(path: Path, error: OSError) -> CheckpointFailed:
    """Return the exception for an unusable directory."""
    reason = error.strerror or str(error)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        reason += "; it must belong to this user, and no other user may be able to write to it"
    return CheckpointFailed(str(path), reason)


def computations(root: Path) -> Iterator[ComputationDirectory]:
    """Yield the directories of computations in a directory that a user has named."""
    try:
        found = list(os.scandir(root))
    except FileNotFoundError:
        return
    except OSError as error:
        raise failed(root, error) from error
    names = {entry.name for entry in found if entry.is_dir(follow_symlinks=False)}
    # A lock without directory: nothing is saved yet.
    names |= {entry.name.removesuffix(_LOCK) for entry in found if entry.name.endswith(_LOCK)}
    for name in sorted(names):
        if len(name) == 32 and set(name) <= set("0123456789abcdef"):
            yield ComputationDirectory(root, name)


def directory_of(named: str | os.PathLike[str]) -> Path:
    """Return the directory that a user has named; refuse remote addresses, which would become directories here."""
    text = os.fspath(named)
    address = _ADDRESS.match(text) if isinstance(named, str) else None
    if address is not None:
        text = text[address.end() :]
        if address["scheme"].lower() not in _LOCAL_SCHEMES or not text.startswith(("/", "~")):
            raise ValueError(
                f"checkpoints are saved in a directory on a local or a shared disk, such as '/scratch/saved' or "
                f"'file:///scratch/saved', and not in {named!r}"
            )
    return Path(text).expanduser().absolute()


def name_of_file(prefix: str, chunk: int) -> str:
    """Return the file name for a chunk."""
    return f"{prefix}-{chunk}{_CHUNK}"
