"""Contracts as tests: what a store, a backend or a policy has to do, for those who write another.

Derive a class from one of these, give it the fixture that it asks for, and let pytest run it. It is not loaded by
anything else, and needs pytest. Begin with `backends`.
"""

from dask_mars.testing.backends import BackendTests
from dask_mars.testing.policies import PolicyTests
from dask_mars.testing.stores import StoreTests

__all__ = ["BackendTests", "PolicyTests", "StoreTests"]
