"""Journals, wherever they end, and whatever becomes of their bytes."""

from __future__ import annotations

import pickle
import random
import struct
import zlib
from pathlib import Path

from dask_mars.checkpointing.journal import Begun, Journal, Record, Saved, encoded, read_journal

IDENTITY = "0123456789abcdef" * 2
RECORDS: list[Record] = [
    Saved(("x", 1, 2), "operator.add", 1.5, (0, 17)),
    Begun("y"),
    Saved("z", "", 0.25, (2, "<f8", (3,), "C", True, b"0" * 24), (("file", 3, 4),)),
]


def written(path: Path) -> bytes:
    journal = Journal(path, IDENTITY)
    journal.append(RECORDS[:1])
    journal.append(RECORDS[1:], lasting=True)
    journal.close()
    return path.read_bytes()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written(tmp_path / "journal")
    assert read_journal(tmp_path / "journal", IDENTITY) == RECORDS
    assert read_journal(tmp_path / "journal", IDENTITY[::-1]) == []
    assert read_journal(tmp_path / "none", IDENTITY) == []


def test_a_journal_that_is_cut_has_its_whole_records(tmp_path: Path) -> None:
    data = written(tmp_path / "journal")
    path = tmp_path / "cut"
    found = []
    for size in range(len(data)):
        path.write_bytes(data[:size])
        found.append(len(read_journal(path, IDENTITY)))
        assert read_journal(path, IDENTITY) == RECORDS[: found[-1]]
    assert found == sorted(found)
    assert {*found} == {0, 1, 2}


def test_flipped_bytes_are_never_read_as_something_else(tmp_path: Path) -> None:
    data = written(tmp_path / "journal")
    chance = random.Random(1)
    path = tmp_path / "flipped"
    for _ in range(150):
        flipped = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            flipped[chance.randrange(len(data))] ^= chance.randint(1, 255)
        path.write_bytes(flipped)
        found = read_journal(path, IDENTITY)
        assert found == RECORDS[: len(found)]


def test_other_versions_records_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    data = written(path)
    first, rest = encoded(RECORDS[:1]), encoded(RECORDS[1:])
    # Of a kind that is unknown here, and of one that has other fields.
    for payload in (pickle.dumps((9, "w")), pickle.dumps((0, "w")), b"no pickle"):
        other = struct.pack("<II", len(payload), zlib.crc32(payload)) + payload
        path.write_bytes(data.removesuffix(first + rest) + first + other + rest)
        assert read_journal(path, IDENTITY) == RECORDS
