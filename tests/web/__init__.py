"""Tests of the web service. A package, so that its `conftest` is not taken for that of all tests."""
