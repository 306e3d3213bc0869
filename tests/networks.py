"""Whether this machine can make networks."""

import pytest

from nalb.errors import MachineError
from netem import qdiscs, rootless

needs_privilege = pytest.mark.skipif(
    not rootless.has_privilege(),
    reason="without root, a command that comes to namespaces replaces its process, which may be pytest, or fails",
)


def skip_without_networks() -> None:
    """Skip the test where namespaces or qdiscs are missing, as in a container whose root lacks capabilities."""
    if not rootless.has_privilege():
        pytest.skip("needs root: namespaces and tc")
    try:
        qdiscs.require(("tbf", "htb", "bfifo"))
    except MachineError as error:
        pytest.skip(str(error))
