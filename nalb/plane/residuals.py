"""What rounding has taken from gradients on this rank, and is still to be added to its next parts (exchange.py)."""

import logging
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from nalb.errors import one_line
from nalb.plane.pushing import Cut
from nalb.plane.sums import Values
from nalb.process.private_file import open_private

log = logging.getLogger(__name__)


class Residuals:
    """What rounding has taken from each element, by tensor. It is kept while iterations have the same tensors, else dropped.

    Iterations that the ring sums, and parts of iterations that were broken off, leave it for the next one by the plane.
    """

    def __init__(self) -> None:
        self._tensors: list[tuple[int, str]] = []  # elements, and the dtype that the script gives them
        self._values: list[Values] = []

    def fit(self, cut: Cut) -> None:
        """Drop all if the tensors of iterations are others than before."""
        tensors = list(zip(cut.elements, cut.script_dtype, strict=True))
        if tensors != self._tensors:
            self._tensors = tensors
            self._values = [np.zeros(*one) for one in zip(cut.elements, cut.dtype, strict=True)]

    def of(self, cut: Cut, index: int) -> Values:
        """A slice's."""
        return self._values[cut.tensor[index]][cut.start[index] : cut.stop[index]]

    def write(self, path: Path) -> None:
        """Write all to a file of the owner's alone. Where it cannot be written, there is none, and a warning: a restart loses one
        rounding.
        """
        unfinished = path.with_name(f"{path.name}.part")
        names = (f"{k} {dtype}" for k, (_, dtype) in enumerate(self._tensors))
        try:
            with open(unfinished, "wb", opener=open_private) as file:
                np.savez(file, **dict(zip(names, self._values, strict=True)))
            os.replace(unfinished, path)
        except OSError as error:
            log.warning("cannot write what rounding took to %s (%s): free the folder's disk", path, error)
            for one in (
                unfinished,
                path,
            ):  # else a full disk stays full, and an earlier run's file is taken for this one's
                with suppress(OSError):
                    one.unlink()

    @classmethod
    def read(cls, path: Path) -> "Residuals | None":
        """What a file holds; None where there is none, or, with a warning, where it is damaged: that costs one rounding."""
        found = cls()
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                for name in arrays.files:
                    _, dtype = name.split()
                    found._values.append(arrays[name])
                    found._tensors.append((found._values[-1].size, dtype))
        except FileNotFoundError:
            return None
        except Exception as error:  # zipfile has many for damage, as NotImplementedError for an unknown method
            log.warning("%s is damaged and skipped (%s): what one rounding took is lost", path, one_line(error))
            return None
        return found
