"""Parses schemes with options for `nalb compare --schemes`.

A word is SCHEME[-sites][-probes][+forecasts|-forecasts][+PRECISION][@SLICE_BYTES]:

exact-sites                 sums over all machines at once, although the machines name their sites
average-probes+forecasts    equal shares without probe slices; every message is announced and timed
exact+int8                  gradients travel as 8 bits, on the plane for PyTorch
oracle@46416                slices of 46,416 bytes in place of the size that alpha gives
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nalb.errors import InputError, did_you_mean
from nalb.extensions import SCHEME_GROUP, is_own, own_names, schemes_with
from nalb.options import DEFAULT_PRECISION
from nalb.planning.precisions import ASKED
from nalb.planning.slices import LEAST_SLICE_BYTES
from nalb.protocol.wire import RunBlock
from nalb.schemes import SCHEMES, Scheme

_WORD = re.compile(
    r"(?P<scheme>[\w.:-]+?)(?P<sites>-sites)?(?P<probes>-probes)?(?P<forecasts>[+-]forecasts)?"
    rf"(?:\+(?P<precision>{'|'.join(ASKED)}))?(?:@(?P<slice>[0-9]{{1,12}}))?"
)
ONE_LEVEL = "-sites"


@dataclass(frozen=True)
class Variant:
    """A scheme with the options that differ from its usual ones."""

    word: str  # the variant as the user wrote it; the run's files call it so
    name: str  # the scheme's name
    scheme: Scheme | None  # None: a peer, such as the ring, which is no scheme of nalb
    one_level: bool = False  # whether it sums over all machines at once, although there are sites
    probes: bool = True  # whether probe slices are cut
    forecasts: bool | None = None  # whether messages are announced; None: where the scheme needs that
    slice_bytes: float | None = None  # the size of slices; None: alpha gives it
    precision: str = DEFAULT_PRECISION  # in which float32 values travel

    @property
    def is_of_training(self) -> bool:
        """Whether a training can run the variant: no option but -sites and the precision is changed, and it is not MXNet's p3."""
        has_own_blocks = not self.probes or self.forecasts is not None or self.slice_bytes is not None
        return self.scheme is not None and not self.scheme.ps_lite_kind and not has_own_blocks

    @property
    def is_own(self) -> bool:
        """Whether the scheme is the user's own and not one of nalb's."""
        return self.scheme is not None and self.name not in SCHEMES

    def block(self, iterations: int) -> RunBlock:
        """The message that orders this many iterations of the variant."""
        return RunBlock(
            self.name,
            iterations,
            slice_bytes=self.slice_bytes,
            probes=self.probes,
            forecasts=self.forecasts,
            label=self.word,
        )


def parse_variants(words: Sequence[str], peers: Sequence[str] = ()) -> list[Variant]:
    """Parse the words of --schemes, also for the user's own schemes. `peers`: as in parse_variant. Raises InputError."""
    own = own_names(SCHEME_GROUP)
    matches = [None if word in own else _WORD.fullmatch(word) for word in words]
    names = [match["scheme"] if match else word for word, match in zip(words, matches, strict=True)]
    schemes = schemes_with([name for name in names if name not in (*SCHEMES, *peers) and is_own(name, SCHEME_GROUP)])
    return [parse_variant(word, schemes, peers) for word in words]


def parse_variant(word: str, schemes: Mapping[str, Scheme] = SCHEMES, peers: Sequence[str] = ()) -> Variant:
    """Parse a scheme with options. Raises InputError for an unknown word and for options that the scheme cannot have.

    peers: names that may stand in place of a scheme, such as the ring's.
    """
    if word in (*schemes, *peers):
        return Variant(word, word, schemes.get(word))
    match = _WORD.fullmatch(word)
    name = match["scheme"] if match else word
    if match is None or name not in (*schemes, *peers):
        raise InputError(
            f"--schemes: unknown scheme {word!r}: {did_you_mean(word, (*schemes, *peers))}choose of "
            f"{', '.join((*schemes, *peers))}, with -sites, -probes, "
            "+forecasts, -forecasts, +PRECISION or @SLICE_BYTES behind it; or your own, package.module:NAME"
        )
    variant = Variant(
        word,
        name,
        schemes.get(name),
        match["sites"] is not None,
        match["probes"] is None,
        None if match["forecasts"] is None else match["forecasts"] == "+forecasts",
        float(match["slice"]) if match["slice"] else None,
        match["precision"] or DEFAULT_PRECISION,
    )
    scheme = variant.scheme
    if (scheme is None or scheme.ps_lite_kind) and word != name:
        raise InputError(f"--schemes {word!r}: {name} runs in a job of its own and has no options")
    if scheme is None:
        return variant
    if variant.one_level and not scheme.sums_by_sites:
        raise InputError(f"--schemes {word!r}: {name} has one level anyway: leave out {ONE_LEVEL}")
    if scheme.routes_itself and (not variant.probes or variant.slice_bytes):
        raise InputError(f"--schemes {word!r}: MXNet cuts the tensors by itself")
    if scheme.needs_forecasts and variant.forecasts is False:
        raise InputError(f"--schemes {word!r}: {name} plans on what forecasts measure")
    if variant.slice_bytes is not None and variant.slice_bytes < LEAST_SLICE_BYTES:
        raise InputError(
            f"--schemes {word!r}: slices of {variant.slice_bytes:g} bytes: give at least {LEAST_SLICE_BYTES}"
        )
    return variant
