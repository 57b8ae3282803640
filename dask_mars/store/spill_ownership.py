"""Owners of temporary directories, and the removal of directories of dead owners.

The name of such a directory has its owner: host, boot, process namespace, process and the start time of that
process. Other hosts and containers may share the file system, so an owner counts as alive unless its end is
certain.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import socket
import stat
import tempfile
from dataclasses import dataclass
from itertools import count
from pathlib import Path

PREFIX = "dask-mars-spill"

# File systems that a single kernel mounts. Directories of other boots there are from before it started.
_LOCAL_KINDS = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "xfs", "zfs"})


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that owns files."""

    host: str
    #: One run of the host's kernel; "0" if unknown.
    boot: str
    #: Scope of its id: containers number their processes separately.
    namespace: str
    pid: int
    #: Its start time in the kernel's ticks, to detect reused ids; 0 if unknown.
    start: int

    @classmethod
    def of(cls, pid: int) -> Owner:
        """Describe a process of this host."""
        start = start_time(pid)
        if start is None:
            raise ProcessLookupError(f"there is no process {pid}")
        return cls(_host(), _boot(), _namespace(), pid, start)

    @classmethod
    def parse(cls, name: str) -> Owner | None:
        """Return the owner in a directory's name, or None if the name is not of this kind."""
        fields = name.split(".")
        if len(fields) != 7 or fields[0] != PREFIX:
            return None
        _, host, boot, namespace, pid, start, serial = fields
        if not (pid.isdecimal() and start.isdecimal() and serial.isdecimal()):
            return None
        return cls(host, boot, namespace, int(pid), int(start))

    def directory_name(self, serial: int) -> str:
        """Return the name of one of the owner's directories."""
        return f"{PREFIX}.{self.host}.{self.boot}.{self.namespace}.{self.pid}.{self.start}.{serial}"

    def is_gone(self, local: bool) -> bool:
        """Return whether the owner has certainly ended."""
        if self.boot != _boot():
            return local
        if (self.host, self.namespace) != (_host(), _namespace()):
            # A container beside this one: its processes are invisible here.
            return False
        start = start_time(self.pid)
        return start is None or (start != 0 and start != self.start)


def claim_directory(root: Path) -> Path:
    """Create a directory of this process that only this user can enter."""
    owner = Owner.of(os.getpid())
    # Users with write access there could replace our directory.
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for serial in count():
        path = root / owner.directory_name(serial)
        # Never an existing directory, which another user may have created as a trap.
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return path
    raise AssertionError("count() has no end")


def make_private_directory(path: Path) -> Path:
    """Create a directory that only this user can write to, and return it; it may exist already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
        return path
    found = path.stat(follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022 or found.st_uid != _owner_of_new_files(path):
        raise PermissionError(errno.EPERM, "it is somebody else's, or others may write to it", str(path))
    return path


def _owner_of_new_files(path: Path) -> int:
    # Network file systems may map this user to another number.
    with tempfile.TemporaryFile(dir=path) as file:
        return os.fstat(file.fileno()).st_uid


def clear_abandoned(root: Path) -> list[Path]:
    """Remove the directories of this user's dead processes, and return them."""
    try:
        entries = [entry for entry in os.scandir(root) if Owner.parse(entry.name)]
    except OSError:
        return []
    local = _is_local(root) if entries else False
    removed = []
    for entry in entries:
        owner = Owner.parse(entry.name)
        # Two processes may remove them at once, so anything may vanish at any time.
        with contextlib.suppress(OSError):
            ours = entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
            if ours and owner is not None and owner.is_gone(local):
                shutil.rmtree(entry.path)
                removed.append(Path(entry.path))
    return removed


def start_time(pid: int) -> int | None:
    """Return when a process started, 0 if unknown, or None if there is no such process."""
    # A zombie counts as a process: its threads may be running.
    try:
        # The program's name, in brackets, may contain any character.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return int(fields[19])
    except OSError:
        # There is no /proc, or it does not show all processes.
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "_", socket.gethostname()) or "_"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "0"


def _namespace() -> str:
    try:
        return re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink())) or "0"
    except OSError:
        return "0"


def _is_local(path: Path) -> bool:
    """Return whether a path is on a file system that only this host can have mounted."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == wanted:
            return source.split()[0] in _LOCAL_KINDS
    return False
