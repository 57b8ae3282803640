"""Files of others are as they were released, and the page names each; their licences are in `licences`."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dask_mars.web import pages

VENDOR = pages._PAGE / "vendor"


def test_files_have_their_checksums_and_licences():
    lines = (VENDOR / "SHA256SUMS.txt").read_text(encoding="utf-8").splitlines()
    told = {name: digest for digest, name in (line.split() for line in lines)}
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    del there["SHA256SUMS.txt"]
    assert there == told
    page = "".join(path.read_text(encoding="utf-8") for path in VENDOR.parent.glob("*.*"))
    licences = {path.stem for path in (Path(__file__).parents[2] / "licences").iterdir()}
    for name in there:
        assert f"vendor/{name}" in page
        assert name.partition("-")[0] in licences
    assert "preact" in licences
