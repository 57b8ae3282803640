"""The names that programs begin with."""

from __future__ import annotations

import operator
from datetime import timedelta

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import xarray as xr
from dask import delayed
from dask.graph_manipulation import bind, checkpoint, clone, wait_on

from tests.fuzz import material
from tests.fuzz.material import Lazily, OnPurpose, assigned, stored, table, together, values

__all__ = [
    "Lazily",
    "OnPurpose",
    "assigned",
    "bind",
    "checkpoint",
    "clone",
    "da",
    "dask",
    "db",
    "dd",
    "delayed",
    "material",
    "np",
    "operator",
    "pd",
    "stored",
    "table",
    "timedelta",
    "together",
    "values",
    "wait_on",
    "xr",
]
