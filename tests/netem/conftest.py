"""Networks for the tests, under names that no other run uses."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from netem import build, cgroups, namespaces, qdiscs
from netem.network import Network
from netem.network_file import parse_network


def network_of(name: str, body: str) -> Network:
    """A network from the text after its name."""
    return parse_network(f'name = "{name}"\n{body}', "test.toml")


links_of_others: set[str] = set()  # in the root namespace when the test began: Docker's are veth ends too


def links() -> set[str]:
    """The interfaces of the root namespace."""
    with qdiscs.IPRoute() as netlink:
        return {link.get_attr("IFLA_IFNAME") for link in netlink.get_links()}


@pytest.fixture
def name():
    """A network name of this run; whatever of it is left at the end is removed."""
    chosen = f"t{os.getpid() % 10**6}"
    links_of_others.clear()
    links_of_others.update(links())
    yield chosen
    build.take_down(chosen)


def kernel_limits_groups() -> bool:
    """Whether a group made by hand can be limited: found without netem, whose mistakes must not skip their own tests."""
    found = False
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, root, kind, options = line.split()[:4]
        if kind == "cgroup2":
            with suppress(OSError):  # without the controller, or with processes of its own
                (Path(root) / "cgroup.subtree_control").write_text("+cpu")
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
            group = Path(root) / f"by-hand-{os.getpid()}"
            with suppress(OSError):
                group.mkdir()
                found |= any((group / name).exists() for name in ("cpu.cfs_quota_us", "cpu.max"))
                group.rmdir()
    return found


@pytest.fixture
def groups() -> cgroups.Hierarchy:
    """Where groups can be made."""
    hierarchy, why_not = cgroups.usable()
    if hierarchy is None:
        if kernel_limits_groups():
            pytest.fail(why_not)
        pytest.skip(f"no writable cgroup: {why_not}")
    return hierarchy


@pytest.fixture
def network_path(tmp_path: Path, name: str) -> Path:
    """A file of two nodes."""
    path = tmp_path / "network.toml"
    path.write_text(f'name = "{name}"\n{TWO_NODES}')
    return path


def standing_groups(network_name: str) -> list[Path]:
    """The CPU groups of all networks of a name, whoever made them."""
    roots = [hierarchy.root for hierarchy in cgroups.hierarchies()]
    return sorted(path for root in roots for path in root.glob(f"nalb-{network_name}.*"))


def leftovers(network_name: str) -> list[str]:
    """What is left of a network of fixture `name`: namespaces, CPU groups, and veth ends in the root namespace."""
    groups = [str(group) for group in standing_groups(network_name)]
    ends = [link for link in links() - links_of_others if link.startswith(("veth", "port"))]
    return namespaces.standing(network_name) + groups + ends


TWO_NODES = """
[defaults]
up_mbps = 100
down_mbps = 80
[[nodes]]
name = "a"
[[nodes]]
name = "b"
"""

SITE_OF_B = 'site = "s"\n[[sites]]\nname = "s"\nup_mbps = 20\ndown_mbps = 30\n'  # after TWO_NODES
UNEVEN_NODES = TWO_NODES + "cpu_quota = 0.02\n"  # b; a may use all, and is in a group too
