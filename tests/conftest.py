"""For every test."""

import signal


def pytest_configure() -> None:
    """Tests signal what they start: under nohup or in a shell's background, children would inherit deaf ears."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
