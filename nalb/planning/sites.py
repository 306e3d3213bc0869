"""The sites of a job: a site is the machines of one LAN behind one uplink.

Sites are numbered in the order in which they first appear among the nodes. A node that shares its site with no other node is a site
of its own, at the core. In a job without sites each node is a site of its own. Sums have two levels (leaders.py) where there are
several sites and one of them has several machines (`has_levels`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from nalb.errors import InputError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sites:
    """The sites of a job's nodes. Raises InputError where a node has none."""

    name_of_node: tuple[str, ...]  # each node's site, in node order
    pushes_zeros: bool = (
        True  # whether members push zeros of a result's size to get it: MXNet's servers only answer pushes
    )

    def __post_init__(self) -> None:
        if not self.name_of_node:
            raise InputError("sites of no nodes: give the site of at least one node")
        if not all(self.name_of_node):
            unnamed = self.name_of_node.index("")
            raise InputError(f"node {unnamed} has a site without a name: give one, a name of its own where it is alone")

    @classmethod
    def flat(cls, node_names: Sequence[str]) -> "Sites":
        """Sites in which each node is alone, named like the node. Raises InputError where two of node_names are equal."""
        if len(set(node_names)) < len(node_names):
            raise InputError("nodes share a name: give each its own")
        return cls(tuple(node_names))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each site."""
        return tuple(dict.fromkeys(self.name_of_node))

    @cached_property
    def of_node(self) -> tuple[int, ...]:
        """The number of each node's site."""
        number = {name: k for k, name in enumerate(self.names)}
        return tuple(number[name] for name in self.name_of_node)

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The indices of each site's nodes, ascending."""
        found: list[list[int]] = [[] for _ in self.names]
        for node, site in enumerate(self.of_node):
            found[site].append(node)
        return tuple(map(tuple, found))

    @cached_property
    def place(self) -> npt.NDArray[np.int64]:
        """of_node as an array, shape (N,)."""
        return np.array(self.of_node)

    @cached_property
    def machines(self) -> npt.NDArray[np.int64]:
        """How many machines stand in each node's site, shape (N,)."""
        return np.asarray(np.bincount(self.place)[self.place])

    def totals(self, values: "Floats | npt.NDArray[np.bool_]") -> Floats:
        """The sum of `values`, shape (N,), over the nodes of each site, shape (S,)."""
        return np.asarray(np.bincount(self.place, values, self.count), dtype=np.float64)

    @property
    def count(self) -> int:
        """S, the number of sites."""
        return len(self.names)

    @property
    def has_levels(self) -> bool:
        """Whether sums are made within sites first. With one site, or with one machine in each, that would gain nothing."""
        return 1 < self.count < len(self.name_of_node)


@dataclass(frozen=True, eq=False)
class Uplinks:
    """The rates at which all machines of a site together send to other sites and receive from them: bytes per second, positive.

    Raises InputError for other rates.
    """

    sites: Sites
    up: Floats  # shape (S,); inf for a site at the core
    down: Floats  # shape (S,)

    def __post_init__(self) -> None:
        for name in ("up", "down"):
            values = np.array(getattr(self, name), dtype=np.float64)
            if values.shape != (self.sites.count,):
                raise InputError(f"uplinks: {len(values)} rates {name} of {self.sites.count} sites: give one per site")
            if len(wrong := np.flatnonzero(~(values > 0))):
                site = int(wrong[0])
                raise InputError(
                    f"uplinks: site {self.sites.names[site]} has {values[site]:g} bytes/s {name}: give a positive number"
                )
            values.setflags(write=False)
            object.__setattr__(self, name, values)

    def parts(self) -> Floats:
        """Each machine's equal part of its site's uplink (up and down), bytes per second, shape (2, N).

        It is inf where there is one site alone, since nothing leaves it.
        """
        if self.sites.count == 1:
            return np.full((2, len(self.sites.place)), np.inf)
        return np.asarray(np.array([self.up, self.down])[:, self.sites.place] / self.sites.machines)
