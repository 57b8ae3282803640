"""Functions in processes of their own."""

from __future__ import annotations

import subprocess

import pytest

from studies.apart import call_apart


def test_functions_are_called_apart_and_errors_come_back():
    assert call_apart(int, "7") == 7
    with pytest.raises(subprocess.CalledProcessError):
        call_apart(int, "seven")
