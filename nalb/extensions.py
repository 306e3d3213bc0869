"""Loads schemes and estimators of a user's own, which run without a change to nalb.

A word names one: `package.module:NAME`, or the name of an entry point of the group `nalb.schemes` or `nalb.estimators`. The
coordinator loads it. Where the launcher can see it too, the launcher loads it first, so that a mistake is told before anything
starts. An error that it raises later becomes an InputError that names the word, the file and the line.
"""

import importlib
import os
import reprlib
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from operator import attrgetter
from typing import Any

import numpy as np

from nalb.errors import InputError, as_text, one_line
from nalb.measurement.estimates import Estimate
from nalb.measurement.estimators import ESTIMATORS, Estimator
from nalb.measurement.traffic import Traffic
from nalb.planning.distribution import Situation
from nalb.planning.slices import LEAST_SLICE_BYTES
from nalb.schemes import SCHEMES, ChosenShares, Scheme

SCHEME_GROUP, ESTIMATOR_GROUP = "nalb.schemes", "nalb.estimators"
WORD_MOST = 128  # characters, as names in messages may have
REASON_MOST = 4096  # characters: each plan's event has it
MEETING = 2  # nodes for which an estimator is made on trial


@dataclass(frozen=True)
class Extension:
    """A user's scheme or estimator, as it was loaded by its word."""

    kind: str  # 'scheme' or 'estimator'
    word: str
    file: str  # of its module
    value: Any

    @contextmanager
    def named(self, place: str = "") -> Iterator[None]:
        """A context whose errors become InputErrors that name the line in the user's file, or `place` where none raised them."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # a signal's: others get none
            raise InputError(f"{self.kind} {self.word}: {_told(error, self.file, place)}") from error

    def place_of(self, function: object) -> str:
        """The file and line of a function of the user's; the module's file for what has no line."""
        code = getattr(function, "__code__", None)
        return f"{code.co_filename}, line {code.co_firstlineno}" if code else self.file


def is_own(word: str, group: str) -> bool:
    """Whether the word names a scheme or estimator of a user's own."""
    return ":" in word or word in own_names(group)


def own_names(group: str) -> list[str]:
    """The names of the group's entry points, sorted. Raises InputError for one that nalb has too."""
    known = SCHEMES if group == SCHEME_GROUP else ESTIMATORS
    for one in (found := entry_points(group=group)):
        if one.name in known:
            raise InputError(
                f"entry point {one.name} = {one.value} of {group}: nalb has that name too: give it another one"
            )
    return sorted({one.name for one in found})


def schemes_with(names: Iterable[str]) -> dict[str, Scheme]:
    """nalb's schemes and, loaded by their words, the user's own ones among `names`. Raises InputError."""
    own_names(SCHEME_GROUP)
    return {**SCHEMES, **{name: load_scheme(name) for name in names if name not in SCHEMES}}


def estimators_with(name: str) -> dict[str, Callable[[int], Estimator]]:
    """nalb's estimators and, if `name` is that of a user's own, that one too. Raises InputError."""
    own_names(ESTIMATOR_GROUP)
    return {**ESTIMATORS, **({} if name in ESTIMATORS else {name: load_estimator(name)})}


def own_of(
    scheme: str, more: str | None, estimator: str
) -> tuple[dict[str, Scheme], dict[str, Callable[[int], Estimator]]]:
    """What a coordinator chooses from: schemes_with and estimators_with of a job's options. more: further words, with commas."""
    return schemes_with([scheme, *filter(None, (more or "").split(","))]), estimators_with(estimator)


def load_scheme(word: str) -> Scheme:
    """Load a scheme of a user's own; its name is the word. Raises InputError."""
    found = _load("scheme", word, SCHEME_GROUP, SCHEMES)
    scheme = found.value
    if not isinstance(scheme, Scheme):
        raise InputError(f"scheme {word} is of type {type(scheme).__name__}: name a nalb.Scheme")
    own = scheme.decide
    if own is None or scheme.sizes_batches or scheme.ps_lite_kind:
        raise InputError(
            f"scheme {word}: only nalb's own schemes leave routing to MXNet or size batches: give it a decide"
        )
    if scheme.sums_by_sites:
        raise InputError(f"scheme {word}: only nalb's own schemes sum by sites: leave sums_by_sites out")
    place, size_bytes = found.place_of(own), scheme.fixed_slice_bytes
    with found.named(place):
        if size_bytes is not None and not LEAST_SLICE_BYTES <= size_bytes < np.inf:
            raise ValueError(f"fixed_slice_bytes is {size_bytes}: give at least {LEAST_SLICE_BYTES}, or leave it out")

    def decide(situation: Situation) -> ChosenShares:
        with found.named(place):
            return _checked_decision(own(situation))

    return replace(scheme, name=word, decide=decide, place=place)


def load_estimator(word: str) -> Callable[[int], Estimator]:
    """Load what makes an estimator of a user's own from the number of nodes. Raises InputError."""
    found = _load("estimator", word, ESTIMATOR_GROUP, ESTIMATORS)
    if not callable(found.value):
        raise InputError(f"estimator {word} is of type {type(found.value).__name__}: name what makes one for N nodes")

    def new_estimator(num_nodes: int) -> Estimator:
        return _OwnEstimator(found, num_nodes)

    new_estimator(MEETING).estimate()
    return new_estimator


class _OwnEstimator:
    """An estimator of a user's own, whose errors become InputErrors that name it."""

    def __init__(self, found: Extension, num_nodes: int):
        self._found, self._num_nodes = found, num_nodes
        with found.named():
            self._own = found.value(num_nodes)
        self.place = found.place_of(getattr(self._own, "estimate", None))
        self._observed_at = found.place_of(getattr(self._own, "observe", None))

    def observe(self, traffic: Traffic) -> bool:
        with self._found.named(self._observed_at):
            is_refuted = self._own.observe(traffic)
            if not isinstance(is_refuted, bool | np.bool_ | None):
                raise TypeError(
                    f"observe() gave {type(is_refuted).__name__}: return whether the traffic contradicts what was estimated"
                )
            return bool(is_refuted)

    def estimate(self) -> Estimate:
        with self._found.named(self.place):
            return _checked_estimate(self._own.estimate(), self._num_nodes)


def _checked_decision(decision: object) -> ChosenShares:
    """What a user's `decide` returned, with the shares as an array. Raises TypeError."""
    wanted = "decide must return (shares, reason): one number of bytes per node, or None, and words"
    if not (isinstance(decision, tuple) and len(decision) == 2):
        raise TypeError(f"{wanted}; it gave {type(decision).__name__}")
    shares, reason = decision
    try:
        words = "" if reason is None else as_text(str(reason))[:REASON_MOST]
        if np.iscomplexobj(shares):
            raise TypeError
        return None if shares is None else np.asarray(shares, dtype=np.float64), words
    except (TypeError, ValueError):
        raise TypeError(f"{wanted}; it gave shares {as_text(reprlib.repr(shares))}") from None


def _checked_estimate(estimate: object, num_nodes: int) -> Estimate:
    """What a user's `estimate` returned, with arrays. Raises TypeError and ValueError for what cannot be rates of the nodes."""
    if not isinstance(estimate, Estimate):
        raise TypeError(f"estimate() gave {type(estimate).__name__}, not a nalb.Estimate")
    up, down, least = (np.asarray(one, dtype=np.float64) for one in (estimate.up, estimate.down, estimate.least))
    shapes = up.shape, down.shape, least.shape
    if shapes != ((num_nodes,), (num_nodes,), (2, num_nodes)):
        raise ValueError(f"estimate() has up, down and least of shapes {shapes} for {num_nodes} nodes")
    rates = np.array([up, down])
    if len(wrong := np.argwhere((rates <= 0) | np.isinf(rates))):
        way, node = wrong[0]
        raise ValueError(
            f"estimate() gave node {node} a rate of {rates[way, node]:g}: give a number of bytes per second above 0, NaN where "
            "nothing is known"
        )
    if (least < 0).any():
        raise ValueError(
            "estimate() has a lower bound of a rate below 0: give 0 or more in `least`, NaN where nothing is known"
        )
    return replace(estimate, up=up, down=down, least=least)


def _load(kind: str, word: str, group: str, known: Mapping[str, object]) -> Extension:
    entry = next((one for one in entry_points(group=group) if one.name == word), None)
    module_name, colon, name = (entry.value if entry else word).replace(" ", "").partition(":")
    if not (module_name and colon and name) or len(word) > WORD_MOST:
        choice = "" if colon else f"choose one of {', '.join([*known, *own_names(group)])}, or "
        raise InputError(
            f"unknown {kind} {word!r}: {choice}name your own as package.module:NAME, of at most {WORD_MOST} characters"
        )
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # behind Python's own modules; the coordinator finds the same
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{kind} {word}: module {module_name} cannot be imported: {_told(error)}: correct it, or run where it is found"
        ) from error
    file = getattr(module, "__file__", None) or module_name
    try:
        return Extension(kind, word, file, attrgetter(name)(module))
    except AttributeError:
        raise InputError(f"{kind} {word}: {file} has no {name}: name what it has") from None


def _told(error: BaseException, file: str | None = None, place: str = "") -> str:
    """The error in one line, with the file and line that raised it.

    This is the traceback's last frame in `file`, or else its last frame outside the machinery of imports, or else `place`.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    machinery = (__file__, importlib.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in machinery and not frame.filename.startswith("<frozen importlib")
    ]
    frames = [frame for frame in frames if frame.filename == file] or frames
    where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else place
    return f"{one_line(error)} ({where})" if where else one_line(error)
