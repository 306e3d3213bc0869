"""Which machines stand together: a site is the machines of one LAN, behind one uplink.

Sites are numbered by first appearance, in node order. A node that shares its site with nobody is a site of its own, at the core.
A job without sites is one in which each node is a site of its own: `is_flat`. Sums have two levels (leaders.py) where there are
several sites, and one of them has several machines: `has_levels`.
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
    """The sites of a job's nodes."""

    name_of_node: tuple[str, ...]  # each node's site, in node order

    def __post_init__(self) -> None:
        if not self.name_of_node:
            raise InputError("sites of no nodes: give the site of at least one node")
        if not all(self.name_of_node):
            unnamed = self.name_of_node.index("")
            raise InputError(f"node {unnamed} has a site without a name: give one, a name of its own where it is alone")

    @classmethod
    def flat(cls, node_names: Sequence[str]) -> "Sites":
        """Each node a site of its own, by its own name. InputError where two of node_names are alike."""
        if len(set(node_names)) < len(node_names):
            raise InputError("nodes share a name: give each its own")
        return cls(tuple(node_names))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of each site."""
        return tuple(dict.fromkeys(self.name_of_node))

    @cached_property
    def of_node(self) -> tuple[int, ...]:
        """Of each node, the number of its site."""
        number = {name: k for k, name in enumerate(self.names)}
        return tuple(number[name] for name in self.name_of_node)

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """Of each site, its nodes, rising."""
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
        """Added up over the nodes of each site, shape (S,). values: shape (N,)."""
        return np.asarray(np.bincount(self.place, values, self.count), dtype=np.float64)

    @property
    def count(self) -> int:
        """S, how many sites there are."""
        return len(self.names)

    @property
    def is_flat(self) -> bool:
        """Whether each node is a site of its own."""
        return self.count == len(self.name_of_node)

    @property
    def has_levels(self) -> bool:
        """Whether sums are made within sites first: machines of one site alone, or of none, have nothing to gain by that."""
        return 1 < self.count < len(self.name_of_node)


@dataclass(frozen=True, eq=False)
class Uplinks:
    """What all machines of a site together can send to other sites, and get from them: bytes per second, positive."""

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
        """Of its site's uplink, what each machine has while all use it alike: up and down, shape (2, N)."""
        return np.asarray(np.array([self.up, self.down])[:, self.sites.place] / self.sites.machines)
