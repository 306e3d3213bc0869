"""Schemes with options, as `nalb compare --schemes` names them: SCHEME[-probes][+forecasts|-forecasts][@SLICE_BYTES].

average-probes+forecasts    equal shares, no probe slices cut, every message announced and timed
oracle@46416                slices of 46,416 bytes in place of what alpha gives
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nalb.errors import InputError
from nalb.protocol.messages import RunBlock
from nalb.schemes import SCHEMES, Scheme

_WORD = re.compile(
    r"(?P<scheme>[a-z0-9]+)(?P<probes>-probes)?(?P<forecasts>[+-]forecasts)?(?:@(?P<slice>[0-9]{1,12}))?"
)
LOW_SLICE_BYTES = 256  # below, a model's slices outgrow MXNet's keys


@dataclass(frozen=True)
class Variant:
    """A scheme and what differs from its usual way."""

    word: str  # as the user wrote it; names it in the run's files
    name: str  # of the scheme
    probes: bool = True
    forecasts: bool | None = None  # None: as the scheme needs
    slice_bytes: float | None = None  # None: from alpha

    def block(self, iterations: int) -> RunBlock:
        """So many iterations of it."""
        return RunBlock(
            self.name,
            iterations,
            slice_bytes=self.slice_bytes,
            probes=self.probes,
            forecasts=self.forecasts,
            label=self.word,
        )


def parse_variant(word: str, schemes: Mapping[str, Scheme] = SCHEMES, peers: Sequence[str] = ()) -> Variant:
    """InputError for what is not a scheme with options, and for options that a scheme cannot have.

    peers: what is compared with schemes and is none.
    """
    match = _WORD.fullmatch(word)
    name = match["scheme"] if match else word
    if match is None or name not in (*schemes, *peers):
        raise InputError(
            f"--schemes: unknown scheme {word!r}: choose of {', '.join((*schemes, *peers))}, with -probes, +forecasts, "
            "-forecasts or @SLICE_BYTES behind it"
        )
    variant = Variant(
        word,
        name,
        match["probes"] is None,
        None if match["forecasts"] is None else match["forecasts"] == "+forecasts",
        float(match["slice"]) if match["slice"] else None,
    )
    if (name in peers or schemes[name].ps_lite_kind) and word != name:
        raise InputError(f"--schemes {word!r}: {name} runs in a job of its own and has no options")
    if name in peers:
        return variant
    if schemes[name].routes_itself and (not variant.probes or variant.slice_bytes):
        raise InputError(f"--schemes {word!r}: MXNet cuts the tensors by itself")
    if schemes[name].needs_forecasts and variant.forecasts is False:
        raise InputError(f"--schemes {word!r}: {name} plans on what forecasts measure")
    if variant.slice_bytes is not None and variant.slice_bytes < LOW_SLICE_BYTES:
        raise InputError(
            f"--schemes {word!r}: slices of {variant.slice_bytes:g} bytes: give at least {LOW_SLICE_BYTES}"
        )
    return variant
