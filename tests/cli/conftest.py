"""Networks of a test's own, for the commands that make them."""

from tests.netem.conftest import name, network_path

__all__ = ["name", "network_path"]
