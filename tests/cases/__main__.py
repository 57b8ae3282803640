"""Runs scripts of cases one after the other, each as the main module and with a new runtime."""

from __future__ import annotations

import runpy
import sys

import dask_mars

if __name__ == "__main__":
    start, *scripts = sys.argv[1:]
    sys.argv[1:] = [start]
    failed = []
    for script in scripts:
        print(script)
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit:
            failed.append(script)
        dask_mars.close()
    sys.exit(f"{failed} differ" if failed else 0)
