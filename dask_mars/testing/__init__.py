"""Contracts as tests: requirements of stores, backends and policies, for authors of others.

Derive a class from one of these, add the fixture that it needs, and run it with pytest. No other module imports
this one. Begin with `backends`.
"""

from dask_mars.testing.backends import BackendTests
from dask_mars.testing.policies import PolicyTests
from dask_mars.testing.stores import StoreTests

__all__ = ["BackendTests", "PolicyTests", "StoreTests"]
