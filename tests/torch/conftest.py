"""Tests of real PyTorch processes: `.venv-torch` has torch, MXNet's environment has not."""

from importlib.util import find_spec

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("torch"):
            item.add_marker("jobs")
            if find_spec("torch") is None:
                item.add_marker(pytest.mark.skip(reason="needs torch: pip install torch"))
