"""Files of others are as they were released, each with its licence."""

from __future__ import annotations

import hashlib

from dask_mars.web import pages

VENDOR = pages._PAGE / "vendor"


def test_files_have_their_checksums_and_licences():
    lines = (VENDOR / "SHA256SUMS.txt").read_text(encoding="utf-8").splitlines()
    told = {name: digest for digest, name in (line.split() for line in lines)}
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    del there["SHA256SUMS.txt"]
    assert there == told
    assert {"htm-LICENSE.txt", "preact-LICENSE.txt", "uplot-LICENSE.txt"} <= set(there)


def test_the_page_names_each_of_them():
    text = "".join(path.read_text(encoding="utf-8") for path in VENDOR.parent.glob("*.*"))
    for path in VENDOR.glob("*.[cj]s*"):
        assert f"vendor/{path.name}" in text
