"""The processes of a PyTorch job and the environment of each: a rank per node as torchrun would start it, and the coordinator.

Each rank starts its agent itself (nalb/torch/backend.py). Nothing in this module depends on the machine that a process runs on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nalb.errors import InputError, listed
from nalb.launch.roles import (
    NOTHING,
    SCHEDULER_NODE,
    Place,
    ProcessSpec,
    Program,
    kept_memory,
    named,
    sites_of,
    sites_told,
)
from nalb.options import JobOptions, variables_of
from nalb.plane.rendezvous import AGENTS, ALONE, NO_RING
from nalb.process.own_program import own_argv

AGENT_PORT = 2  # a replay's agents listen at the root port and this


def torch_program(command: Sequence[str]) -> Program:
    """A PyTorch job: a coordinator, and ranks that run the command. A single rank, or scheme gloo, has no coordinator."""
    return Program(
        lambda places, *more: rank_specs(places, command, *more),
        lambda: None,
        lambda options: not options.is_pure,
        "call init_process_group('nalb')",
        "what goes by gloo: weights when DDP starts, the first iterations' gradients, small sums, broadcasts",
    )


def replay_program(model: str, compute_ms: float) -> Program:
    """A job that sums a model's gradients on the plane without PyTorch, each node in a network namespace of its own."""
    command = own_argv("nalb.plane.replay", model, "--compute-ms", str(compute_ms))
    return Program(
        lambda places, options, inherited, keys_dir, extra: rank_specs(
            places, command, options, inherited, keys_dir, extra, is_replay=True
        ),
        lambda: None,
        lambda _: True,
    )


def rank_specs(
    places: Sequence[Place],
    command: Sequence[str],
    options: JobOptions,
    inherited: Mapping[str, str],
    keys_dir: str | None = None,
    extra: Mapping[str, str] = NOTHING,
    is_replay: bool = False,
) -> list[ProcessSpec]:
    """The job's processes: the coordinator, then the ranks in the order of the places. The arguments are those of process_specs.

    is_replay: ranks have no store that tells them where agents are, and no ring. Raises InputError for a place that is not worker
    and server.
    """
    if others := [place.name for place in places if not (place.is_worker and place.is_server)]:
        raise InputError(f"{listed(others)}: a rank of PyTorch is worker and server: give each node both roles")
    root, size = places[SCHEDULER_NODE], len(places)
    has_coordinator = not options.is_pure and (size > 1 or is_replay)  # a single rank of PyTorch joins none
    options = replace(options, transport=None, sites=sites_told(places, sites_of(places, options)))
    shared = {
        "MASTER_ADDR": root.address,
        "MASTER_PORT": str(options.root_port),
        "WORLD_SIZE": str(size),
        "GROUP_WORLD_SIZE": str(size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": "nalb",  # by which libraries see that processes are started for them
        "NALB_ADDRESSES": ",".join(dict.fromkeys(place.address for place in places)),
        "PYTHONUNBUFFERED": "1",
    }
    coordinator = f"{root.address}:{options.root_port + 1}"
    if has_coordinator:
        shared["NALB_COORDINATOR"] = coordinator
    if is_replay:
        shared[AGENTS] = ",".join(f"{place.address}:{options.root_port + AGENT_PORT}" for place in places)
    shared |= variables_of(options, coordinators=False) | dict(extra)
    one_thread = {"OMP_NUM_THREADS": inherited.get("OMP_NUM_THREADS", "1")}
    words = [ALONE, NO_RING] if is_replay else [ALONE]
    specs = []
    for rank, place in enumerate(places):
        here = {**shared, "NALB_ADDRESS": place.address, **named(place, keys_dir)}
        narrow = one_thread | here
        if rank == SCHEDULER_NODE and has_coordinator:
            argv = own_argv("nalb.plane.coordinator", coordinator, str(size), root.name, *words, python=root.python)
            told = narrow | variables_of(options, coordinators=True)
            specs.append(ProcessSpec(root.name, "scheduler", tuple(argv), told, is_coordinator=True))
        own = {"RANK": str(rank), "GROUP_RANK": str(rank)}
        if options.sizes_batches:
            own |= kept_memory(inherited)
        specs.append(ProcessSpec(place.name, "worker", tuple(command), (here if place.is_machine else narrow) | own))
    return specs
