"""The options of a job: one record that goes from the command line to every process.

`JobOptions` declares each option once: its name, its environment variable, the values that the variable may have, and what it
means. `nalb launch` writes the variables from it (`variables_of`), and every process reads them into it again (nalb/settings.py).
So another launcher may set them too, and `nalb launch --print-env` shows all. ps-lite's own DMLC_* variables stand beside them.

If a field is None or False, its option was not asked for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from nalb.batching.schemes import BASELINES
from nalb.batching.schemes import PREDICTORS as PLAIN_PREDICTORS
from nalb.batching.schemes import SCHEMES as BATCH_SCHEMES
from nalb.errors import InputError, misspelt
from nalb.extensions import ESTIMATOR_GROUP, SCHEME_GROUP, is_own
from nalb.measurement.estimators import DEFAULT_ESTIMATOR, ESTIMATORS
from nalb.planning.precisions import ASKED
from nalb.schemes import AUTO, GLOO, JOINT, SCHEMES, by_name
from nalb.tokens.policies import PARALLELS
from nalb.tokens.shape import read_weights
from nalb.tokens.stragglers import FORMS, Stragglers

PREFIX = "NALB_"  # of all environment variables of nalb's
OF_PROCESS = (  # variables that say who a process is
    "NALB_NODE", "NALB_ADDRESS", "NALB_ADDRESSES", "NALB_COORDINATOR", "NALB_KEYS", "NALB_LEVEL",
)  # fmt: skip
BATCH_MOST = 1 << 31  # samples
STALENESS_MOST = 1_000_000_000  # iterations: as good as without end
JOINT_BATCHING = JOINT.name  # the batch scheme that belongs to the distribution scheme of that name
BATCHINGS = (*(name for name in BATCH_SCHEMES if name != JOINT_BATCHING), *BASELINES)
NETWORK_PREDICTORS = ("rnn", "lstm", "narx")  # made of networks (kvstore_patch/roles/speed_networks.py)
PREDICTORS = (*PLAIN_PREDICTORS, *NETWORK_PREDICTORS)
DEFAULT_PRECISION = ASKED[0]


class Wording(Protocol):
    """The values that a variable may have."""

    def read(self, name: str, text: str) -> Any:
        """Read a value from the text of the variable `name`. Raises InputError, which names the variable."""
        ...

    def __str__(self) -> str: ...


@dataclass(frozen=True)
class AnyText:
    """Any text; `kind` describes it for people."""

    kind: str

    def read(self, name: str, text: str) -> str:
        del name
        return text

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True)
class Checked:
    """Text that `check` can read; `kind` describes it for people. `check` raises InputError for other text."""

    kind: str
    check: Callable[[str], object]

    def read(self, name: str, text: str) -> str:
        try:
            self.check(text)
        except InputError as error:
            raise InputError(f"environment variable {name}: {error}") from None
        return text

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True)
class Flag:
    """1 for yes, anything else for no."""

    def read(self, name: str, text: str) -> bool:
        del name
        return text == "1"

    def __str__(self) -> str:
        return "1"


@dataclass(frozen=True)
class Number:
    """A number within bounds."""

    low: float
    high: float
    is_whole: bool = False

    def read(self, name: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not self.low <= value <= self.high:
            raise InputError(f"environment variable {name}={text!r} is not a number in [{self.low:g}, {self.high:g}]")
        return int(value) if self.is_whole else value

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Choice:
    """One of the known names. With a group of entry points, also the word for a user's own, which only the coordinator loads."""

    known: tuple[str, ...]
    group: str | None = None

    def read(self, name: str, text: str) -> str:
        if text not in self.known and not (self.group and is_own(text, self.group)):
            raise InputError(f"environment variable {name}={text!r} is not one of {', '.join(self.known)}")
        return text

    def __str__(self) -> str:
        return ", ".join(self.known) + (", package.module:NAME" if self.group else "")


@dataclass(frozen=True)
class Variable:
    """An option's environment variable."""

    name: str
    words: Wording
    meaning: str
    is_coordinators: bool = False  # only the coordinator uses it
    is_always_told: bool = False  # written even if not asked for, so that what the launcher inherited does not count


def _option(default: Any, name: str, words: Wording, meaning: str, **more: bool) -> Any:
    """Declare a field of JobOptions with its variable."""
    return field(default=default, metadata={"variable": Variable(name, words, meaning, **more)})


def read_sites(text: str) -> dict[str, str]:
    """Read each node's site from text such as 'n0=west,n1=east'. Raises InputError."""
    site_of_node: dict[str, str] = {}
    for word in text.split(","):
        node, _, site = word.partition("=")
        if not node or not site or "=" in site or node in site_of_node:
            raise InputError(f"sites {text!r}: give each node once, as NODE=SITE, with commas")
        site_of_node[node] = site
    return site_of_node


@dataclass(frozen=True)
class JobOptions:
    """The options that all processes of a job share, as they were asked for."""

    root_port: int = 0  # DMLC_PS_ROOT_PORT; the coordinator listens on the next one; 0: not chosen yet
    scheme: str = _option(AUTO, "NALB_SCHEME", Choice((*SCHEMES, GLOO.name), SCHEME_GROUP), "the distribution scheme")
    own_schemes: str | None = _option(
        None,
        "NALB_OWN_SCHEMES",
        AnyText("words with commas"),
        "your own schemes that `nalb compare` runs in this job; set by nalb",
        is_coordinators=True,
    )
    estimator: str = _option(
        DEFAULT_ESTIMATOR,
        "NALB_ESTIMATOR",
        Choice(tuple(ESTIMATORS), ESTIMATOR_GROUP),
        "what turns samples into capacities",
    )
    alpha_bytes: float | None = _option(
        None,
        "NALB_ALPHA_BYTES",
        Number(1e-3, 1e12),
        "alpha of x = sqrt(M alpha / N), for the whole job; default: it follows how fast links drain",
    )
    inflight_bytes: int | None = _option(
        None,
        "NALB_INFLIGHT_BYTES",
        Number(0, 1e12, is_whole=True),
        "how much of a worker's gradients is under way at a time, in bytes; 0: all; default: by servers, uplink and delay",
    )
    precision: str | None = _option(
        None,
        "NALB_PRECISION",
        Choice(ASKED),
        "the form in which PyTorch's float32 gradients travel; default: float32; auto: the plan chooses",
    )
    heartbeat_s: float | None = _option(
        None,
        "NALB_HEARTBEAT_S",
        Number(0.01, 60),
        "between signs of life; default: 0.25, at most a quarter of the silence that is allowed",
    )
    startup_s: float | None = _option(
        None, "NALB_STARTUP_S", Number(1, 86400), "until all processes must have come; default: 120"
    )
    deadline_s: float | None = _option(
        None,
        "NALB_DEADLINE_S",
        Number(0.1, 86400),
        "from a fault that does not heal to the end of everyone else; default: 10. 0.6 of it is silence",
    )
    batching: str | None = _option(
        None,
        "NALB_BATCHING",
        Choice(BATCHINGS),
        "how batch sizes are chosen; default: nobody chooses, they stay as the script has them",
    )
    batch_total: int | None = _option(
        None,
        "NALB_BATCH_TOTAL",
        Number(1, BATCH_MOST, is_whole=True),
        "samples of one iteration over all workers; default: what the workers begin with",
    )
    batch_most: str | None = _option(
        None,
        "NALB_BATCH_MOST",
        AnyText("numbers with commas"),
        "the most samples of a worker: one number for all, or one each, by rank, separated by commas",
    )
    predictor: str | None = _option(
        None,
        "NALB_PREDICTOR",
        Choice(PREDICTORS),
        "how lb-bsp foresees speeds; default: memoryless, the last speed again",
    )
    predictor_models: str | None = _option(
        None,
        "NALB_PREDICTOR_MODELS",
        AnyText("a folder"),
        "folder on the coordinator's machine from which networks that predict begin, and where they are stored at the end",
        is_coordinators=True,
    )
    parallel: str | None = _option(
        None,
        "NALB_PARALLEL",
        Choice(PARALLELS),
        "which worker may compute which part of the model, for scripts that use fela.Trainer; default: fela",
    )
    token_weights: str | None = _option(
        None,
        "NALB_TOKEN_WEIGHTS",
        Checked("numbers with commas", read_weights),
        "how many of the first sub-model's batches one of each sub-model's covers; default: tuned while training",
    )
    token_subset: int | None = _option(
        None,
        "NALB_TOKEN_SUBSET",
        Number(1, BATCH_MOST, is_whole=True),
        "how many workers compute the last sub-model, where the weights are given; default: all",
    )
    token_apart: bool = _option(
        False,
        "NALB_TOKEN_APART",
        Flag(),
        "those that compute the last sub-model compute nothing else",
    )
    staleness: int | None = _option(
        None,
        "NALB_STALENESS",
        Number(0, STALENESS_MOST, is_whole=True),
        "iterations that a worker may lead the last complete one by; default: 0, all wait for each other",
    )
    stragglers: str | None = _option(
        None,
        "NALB_STRAGGLERS",
        Checked(FORMS, Stragglers.read),
        "workers sleep at the start of iterations: experiments",
    )
    first_workers: int | None = _option(
        None,
        "NALB_FIRST_WORKERS",
        Number(1, BATCH_MOST, is_whole=True),
        "how many workers the job began with, where it goes on with fewer: the global batch stays",
    )
    one_level: bool = False  # sums have one level, whatever the nodes say of their sites
    sites: str | None = _option(
        None,
        "NALB_SITES",
        Checked("NODE=SITE with commas", read_sites),
        "each node's site, where sums are made within sites first, then between them; default: all workers push to every server",
    )
    checkpoints: str | None = _option(
        None,
        "NALB_CHECKPOINTS",
        AnyText("a folder"),
        "folder for checkpoints on the machine of each process (Checkpoints of nalb.mxnet and nalb.torch)",
    )
    checkpoints_job: str | None = _option(
        None,
        "NALB_CHECKPOINTS_JOB",
        AnyText("a name"),
        "what the folder's lock calls the job, as no other is called; default: the scheduler's address, with PyTorch the master's",
    )
    verify_sums: bool = _option(
        False,
        "NALB_VERIFY_SUMS",
        Flag(),
        "the sum of every slice is checked against an independent one (nalb/services/exchange/sums.py)",
    )
    is_stock: bool = _option(
        False, "NALB_STOCK", Flag(), "MXNet runs alone; the coordinator, if any, sizes batches and plans nothing"
    )
    transport: str | None = _option(
        None,
        "NALB_SHIM_TRANSPORT",
        AnyText("mxnet or pyzmq"),
        "libzmq under ps-lite: mxnet or pyzmq; default: mxnet, encrypted pyzmq (kvstore_patch/shim)",
    )
    observers: str | None = _option(
        None,
        "NALB_OBSERVERS",
        AnyText("an ipc:// address"),
        "address where the coordinator also listens, for launcher and compare",
        is_coordinators=True,
    )
    hold: bool = _option(
        False, "NALB_HOLD", Flag(), "iterate only as observers ask (compare)", is_coordinators=True, is_always_told=True
    )
    in_store: bool = (
        False  # a scheme that routes by itself does so in nalb's store, as in comparisons; else MXNet runs alone
    )
    label: str | None = _option(
        None,
        "NALB_LABEL",
        AnyText("a name"),
        "what events call the iterations; default: the scheme",
        is_coordinators=True,
    )
    samples_path: str | None = _option(
        None,
        "NALB_SAMPLES",
        AnyText("a file"),
        "file for one JSON line per event (the run's samples.jsonl)",
        is_coordinators=True,
    )

    @property
    def sizes_batches(self) -> bool:
        """Whether the coordinator chooses batch sizes, or watches them."""
        return self.batching is not None or by_name(self.scheme).sizes_batches

    @property
    def is_pure(self) -> bool:
        """Whether MXNet runs alone, without shim and plans. Such a job has a coordinator only if batch sizes are chosen."""
        return by_name(self.scheme).routes_itself and not self.in_store


DECLARED: dict[str, Variable] = {
    one.name: one.metadata["variable"] for one in fields(JobOptions) if "variable" in one.metadata
}


def variables_of(options: JobOptions, coordinators: bool) -> dict[str, str]:
    """The environment variables of these options: those of the coordinator alone, or those of every process."""
    told = {}
    for name, variable in DECLARED.items():
        value = getattr(options, name)
        if variable.is_coordinators != coordinators or (
            (value is None or value is False) and not variable.is_always_told
        ):
            continue
        told[variable.name] = str(int(value)) if isinstance(value, bool) else str(value)
    return told


def options_in(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the declared options from an environment, by field. Raises InputError, which names the variable.

    A variable whose name looks like that of an option is an error: what was asked for would be left out, and nobody would know.
    """
    known = [*(variable.name for variable in DECLARED.values()), *OF_PROCESS]
    options = [name.removeprefix(PREFIX) for name in known]  # which alone tells names apart
    for name, value in environ.items():
        if (
            value
            and name.startswith(PREFIX)
            and name not in known
            and (meant := misspelt(name.removeprefix(PREFIX), options))
        ):
            raise InputError(f"environment variable {name} is unknown: write {PREFIX}{meant}, or unset it")
    return {
        name: variable.words.read(variable.name, environ[variable.name])
        for name, variable in DECLARED.items()
        if environ.get(variable.name)
    }
