"""The version, where the build can read it without importing Dask."""

__version__ = "0.1.0"
