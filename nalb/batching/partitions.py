"""Data partitions: makes label-skewed ones for federated training, and moves samples between partitions that are used unevenly."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nalb.errors import InputError

TRAVERSALS_APART = 2.0  # passes by which one partition may lead another until samples move; Chen et al., footnote 13

Ints = npt.NDArray[np.int64]
Shuffle = Callable[[int, int, int], Ints]  # (moves so far, pass, samples) -> a permutation of the samples


def label_skewed(labels: Ints, clients: int, classes_per_client: int, generator: np.random.Generator) -> list[Ints]:
    """Partitions in which each client has samples of exactly `classes_per_client` labels; every sample is in one of them.

    Returns per client the ascending indices of its samples. The shuffled labels are dealt to places in turn: place p gets the label
    p modulo the number of labels, and client c has places c K to (c + 1) K - 1 for K classes each. A label with several places is
    split among them evenly, at random. The same state of the generator gives the same partitions. Cost: O(samples log samples).
    Raises InputError where a client would have a label twice, or where a label has no place or fewer samples than places. Source:
    Chen et al., 5.5 (5 clients, exactly 2 of 10 classes each).
    """
    names = np.unique(labels)
    places = clients * classes_per_client
    if clients < 1 or not 1 <= classes_per_client <= len(names) or places < len(names):
        raise InputError(
            f"{clients} clients of {classes_per_client} classes for {len(names)} labels: "
            f"need at most {len(names)} classes each, and {len(names)} places or more together"
        )
    owned: list[list[Ints]] = [[] for _ in range(clients)]
    for position, name in enumerate(generator.permutation(names)):
        owners = [place // classes_per_client for place in range(position, places, len(names))]
        members = generator.permutation(np.flatnonzero(labels == name))
        if len(members) < len(owners):
            raise InputError(f"label {name} has {len(members)} samples for {len(owners)} clients: give fewer clients")
        for owner, part in zip(owners, np.array_split(members, len(owners)), strict=True):
            owned[owner].append(part)
    return [np.sort(np.concatenate(parts)) for parts in owned]


class Migration(NamedTuple):
    """A move of samples between two workers' partitions; after it all traversals count from 0 again."""

    source: int  # the worker that gives samples
    target: int  # the worker that gets them
    samples: int  # how many


def migrate(
    partition_sizes: Sequence[int],
    traversals: Sequence[float],
    batch_sizes: Sequence[int],
    threshold: float = TRAVERSALS_APART,
) -> tuple[Migration | None, str]:
    """The move to make, or None, and the reason: one partition was traversed over `threshold` passes more than another.

    Samples m move from the least traversed partition s to the most traversed one t (ties: the lower index), so that both get the
    same passes per iteration: (p_t + m) / b_t = (p_s - m) / b_s, so m = (p_s b_t - p_t b_s) / (b_s + b_t), rounded down. The
    source keeps at least a batch. Cost: O(N). Raises InputError for lists of different lengths or sizes below 1. Source: Chen et
    al., section 7, which leaves the number open ("a certain amount"). With this number a pair needs only one move.
    """
    if not len(partition_sizes) == len(traversals) == len(batch_sizes) >= 1:
        raise InputError(
            f"migration: {len(partition_sizes)} partitions, {len(traversals)} traversals, {len(batch_sizes)} batch sizes: "
            f"give one each per worker"
        )
    if min(*partition_sizes, *batch_sizes) < 1:
        raise InputError("migration: an empty partition or batch: give sizes of 1 or more")
    target, source = int(np.argmax(traversals)), int(np.argmin(traversals))
    if traversals[target] - traversals[source] <= threshold:
        return None, "partitions are traversed about equally often"
    b_t, b_s = batch_sizes[target], batch_sizes[source]
    samples = (partition_sizes[source] * b_t - partition_sizes[target] * b_s) // (b_s + b_t)
    samples = min(samples, partition_sizes[source] - b_s)
    if samples < 1:
        return None, "by their present batch sizes the partitions even out"
    return Migration(source, target, samples), "one partition is traversed oftener"


class PartitionedStream:
    """One worker's batches from its own partition, while samples move to workers that use theirs up faster.

    Every worker keeps account of all partitions. All know all sizes, so all find the same move in the same iteration without
    messages; the script must bring the moved samples to their worker. A pass has every sample once. A move takes the source's last
    samples; after it passes and traversals begin anew. Raises InputError where a partition is empty or a sample is in two.
    """

    def __init__(
        self, partitions: Sequence[Ints], rank: int, shuffle: Shuffle, threshold: float = TRAVERSALS_APART
    ) -> None:
        together = np.concatenate([np.asarray(part, dtype=np.int64) for part in partitions])
        if min(len(part) for part in partitions) < 1 or len(np.unique(together)) < len(together):
            raise InputError("partitions: one is empty, or a sample is in two: give each worker samples of its own")
        self.partitions = [np.asarray(part, dtype=np.int64) for part in partitions]
        self.moves: list[Migration] = []
        self._rank, self._shuffle, self._threshold = rank, shuffle, threshold
        self._begin()

    def _begin(self) -> None:
        self._traversals = np.zeros(len(self.partitions))
        self._passes, self._left = 0, np.empty(0, dtype=np.int64)

    def batch(self, sizes: Sequence[int]) -> list[int]:
        """The indices of this worker's samples in the next iteration. sizes: of all workers, by rank. A batch may span passes."""
        taken: list[int] = []
        while len(taken) < sizes[self._rank]:
            if not len(self._left):
                own = self.partitions[self._rank]
                self._left = own[self._shuffle(len(self.moves), self._passes, len(own))]
                self._passes += 1
            wanted = sizes[self._rank] - len(taken)
            taken += self._left[:wanted].tolist()
            self._left = self._left[wanted:]
        held = [len(part) for part in self.partitions]
        self._traversals += np.array(sizes) / np.array(held)
        move, _ = migrate(held, self._traversals.tolist(), sizes, self._threshold)
        if move is not None:
            source, target = self.partitions[move.source], self.partitions[move.target]
            self.partitions[move.target] = np.concatenate([target, source[-move.samples :]])
            self.partitions[move.source] = source[: -move.samples]
            self.moves.append(move)
            self._begin()
        return taken
