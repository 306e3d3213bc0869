"""Whole numbers of all ranks, as tensors: torch would unpickle objects, and gloo authenticates nobody."""

import torch
import torch.distributed as dist


def device_of_numbers() -> torch.device:
    """Where the default group takes tensors of numbers: on a CPU, unless it has only backends of other devices."""
    assert dist.group.WORLD is not None
    types = [one.type for one in dist.group.WORLD._device_types]
    return torch.device("cpu" if not types or "cpu" in types else types[0])


def rows_of_all(own: torch.Tensor, ranks: int) -> list[list[int]]:
    """Each rank's numbers, by rank. own: this rank's, in one dimension; as many on each rank."""
    if ranks == 1:
        return [own.tolist()]
    device = device_of_numbers()
    table = [torch.empty_like(own, device=device) for _ in range(ranks)]
    dist.all_gather(table, own.to(device))
    return [one.tolist() for one in table]
