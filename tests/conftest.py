"""For every test."""

import signal

import pytest
from hypothesis import settings

from tests.networks import skip_without_networks

# The same input on every run and machine. How long a test takes says as much of the machine.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_configure() -> None:
    """Tests signal what they start: under nohup or in a shell's background, children would inherit deaf ears."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts MXNet or makes networks belongs to the jobs, which the fast tier (`-m "not jobs"`) leaves out."""
    for item in items:
        if item.get_closest_marker("mxnet") or item.get_closest_marker("root"):
            item.add_marker("jobs")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked root skip where the machine cannot run them."""
    if item.get_closest_marker("root") is not None:
        skip_without_networks()
