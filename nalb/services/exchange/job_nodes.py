"""The nodes of a job, in the order in which everything is planned."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType

from nalb.planning.nodes import Node
from nalb.planning.sites import Sites

NOBODY: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class JobNodes:
    """Which machines a job has, what runs on each, and the ranks of their servers."""

    nodes: Sequence[Node]
    rank_of_node: Mapping[int, int]  # of the servers that sum for all workers
    sites: Sites | None = None  # of the nodes; None: sums have one level
    site_rank_of_node: Mapping[int, int] = field(default_factory=dict)  # of the servers that sum within a site
    pushes_zeros: bool = True  # as of Sites, also where sums have one level

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        workers: Set[str],
        servers: Mapping[str, int],
        sites: Sites | None = None,
        site_servers: Mapping[str, int] = NOBODY,
        pushes_zeros: bool = True,
    ) -> "JobNodes":
        """The nodes of these names. servers, site_servers: ranks by name."""
        return cls(
            tuple(Node(name, name in workers, name in servers) for name in names),
            {i: servers[name] for i, name in enumerate(names) if name in servers},
            sites,
            {i: site_servers[name] for i, name in enumerate(names) if name in site_servers},
            pushes_zeros,
        )

    @property
    def names(self) -> list[str]:
        """The nodes' names."""
        return [node.name for node in self.nodes]

    @property
    def are_all_workers(self) -> bool:
        """Whether every node is a worker. If so, equal shares take at most twice as long as any others."""
        return all(node.is_worker for node in self.nodes)
