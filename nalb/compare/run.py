"""Runs whole comparisons and writes their files: of schemes by replay or training, of batchings, and of ways to divide the work."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from nalb.compare.batch_comparison import run_batching
from nalb.compare.comparison import SAMPLES_PER_BATCH, Series, compare
from nalb.compare.parallel_comparison import run_parallel
from nalb.compare.progress import Runs, progress_of, runs_of, say
from nalb.compare.ring import RING, Ring, require_torch, ring_program
from nalb.compare.variants import Variant
from nalb.errors import InputError, JobError, as_text
from nalb.events import IterationEvent, LayoutEvent
from nalb.launch.encryption import Encryption
from nalb.launch.frameworks import MXNET, TORCH, chosen
from nalb.launch.network import NAMESPACE_PORT, configured_bound_s, goodput_bound_s, job_nodes
from nalb.launch.ranks import replay_program, torch_program
from nalb.launch.roles import Place, Program, mxnet_program, sites_of
from nalb.launch.run_dir import failure_noted
from nalb.launch.signals import ending_on_signals
from nalb.launch.supervisor import print_line
from nalb.launch.venue import PLAIN, Emulated, JobOrder, RunningJob, Where
from nalb.options import DEFAULT_PRECISION, JobOptions
from nalb.planning.nodes import Node
from nalb.planning.precisions import ASKED
from nalb.planning.shares import bound_s
from nalb.process.own_program import own_argv
from nalb.protocol import wire
from nalb.reporting.batching_file import BatchingFile, write_batchings
from nalb.reporting.parallel_file import ParallelFile, write_parallels
from nalb.reporting.record import values_bytes
from nalb.reporting.run_file import RunFile, write_run
from nalb.schemes import AUTO, STOCK
from nalb.tokens.policies import MODEL_PARALLEL
from nalb.workloads import bytes_of
from netem.network import Network

TEST_IMAGES = 2000  # images by which a comparison of batchings tests the accuracy; few, since a slow machine may test
UNPLANNED_STEPS = {MXNET: 1, TORCH: 3}  # the first steps of a training, by which nalb learns what it sums
P3_PORT = NAMESPACE_PORT + 10  # the root port of the job for p3, in the same namespaces
RING_PORT = NAMESPACE_PORT + 20  # the port at which the ring's workers find each other
SITES_PORT = NAMESPACE_PORT + 30  # the root port of the job that sums by sites
PRECISION_PORTS = 50  # between root ports of jobs that send float32 in different precisions


@dataclass(frozen=True)
class CompareRequest:
    """The arguments of `nalb compare`; one of `replay`, `train` and `command` is given."""

    where: Where  # only a user's own training runs elsewhere than in a network
    options: JobOptions  # the options of every job, but for its scheme
    replay: str | None  # the workload to replay
    train: str | None  # the model to train
    iterations: int | None  # the iterations of each scheme; None: the user's own training decides
    run_dir: Path
    compute_ms: float = 0.0  # the computing time of an iteration of a replay
    framework: str = MXNET
    command: tuple[str, ...] = ()  # a user's own training
    test_every: int | None = None  # in a comparison of batchings, the iterations between two tests of the accuracy
    micro: int | None = None  # likewise: how many samples are computed at a time; None: a whole batch
    rounds: int = 1  # how often each scheme trains
    samples: int | None = None  # of an iteration of the user's own training, over all workers; None: not known
    encryption: Encryption = PLAIN

    @property
    def network(self) -> Network:
        """The network on which all but a user's own training runs."""
        assert self.where.network is not None, "a replay runs in a network"
        return self.where.network

    @property
    def pushes_zeros(self) -> bool:
        """As of Sites."""
        return self.framework == MXNET

    @property
    def num_workers(self) -> int:
        """The number of the network's nodes that have a worker."""
        return sum(node.is_worker for node in self.where.nodes())

    @property
    def training_command(self) -> list[str]:
        """The command that each worker runs to train for the request's iterations. Raises InputError without the source tree."""
        if self.command:
            return list(self.command)
        assert self.iterations is not None, "only a user's own training decides"
        steps = ["--steps", str(self.iterations + UNPLANNED_STEPS[self.framework])]
        if self.framework == TORCH:
            return [sys.executable, example("train_torch.py"), *steps]
        return [sys.executable, example("train_fashion_mnist.py"), "--model", str(self.train), *steps]

    @property
    def training(self) -> str:
        """What trains, for people."""
        words = (word if word.startswith("-") else os.path.basename(word) for word in self.command)
        return self.train or as_text(shlex.join(words))

    @property
    def training_program(self) -> Program:
        """The processes of a training."""
        return (torch_program if self.framework == TORCH else mxnet_program)(self.training_command)


def example(name: str) -> str:
    """The path of an example script. Raises InputError where it is missing, as outside the source tree."""
    script = Path(__file__).resolve().parents[2] / "examples" / name
    if not script.exists():
        raise InputError(
            f"--train needs the source tree: {script} is missing; use --replay, or `pip install -e .` in a clone"
        )
    return str(script)


def require(request: CompareRequest, schemes: Sequence[Variant]) -> None:
    """Raise MachineError where this machine lacks what the schemes' processes need."""
    if request.replay is None:
        if not request.command:
            if request.framework == TORCH:
                require_torch()
            chosen(request.framework, request.training_command)
    elif any(variant.scheme is None for variant in schemes):
        require_torch()
    is_here = request.where.hosts is None
    if request.framework == MXNET and is_here and any(variant.scheme is not None for variant in schemes):
        mxnet_program(()).require()


def compare_schemes(request: CompareRequest, schemes: Sequence[Variant]) -> None:
    """Run each scheme's iterations and write run.json. Raises JobError."""
    network = request.where.network
    with ending_on_signals():
        if request.replay:
            workload, model_bytes = f"replay {request.replay}", bytes_of(request.replay)
            series = _replay(request, request.replay, schemes)
        else:
            workload = f"train {request.training}"
            series, model_bytes = _train(request, schemes)
    samples = request.samples if request.command else SAMPLES_PER_BATCH * request.num_workers
    run = RunFile(
        request.where.name,
        workload,
        len(request.where.nodes()),
        model_bytes,
        None if network is None else configured_bound_s(network, model_bytes, request.pushes_zeros),
        {name: one.result(samples) for name, one in series.items()},
        None if network is None else goodput_bound_s(network, model_bytes, request.pushes_zeros),
    )
    write_run(request.run_dir, run)


def compare_batchings(request: CompareRequest, batchings: Sequence[str]) -> BatchingFile:
    """Train once under each batching and write batching.json. The options' scheme applies unless a batching names its own."""
    command = [*request.training_command, "--test-images", str(TEST_IMAGES)]
    command += ["--max-batches", str(request.test_every)] if request.test_every else []
    command += ["--micro", str(request.micro)] if request.micro else []
    options = request.options
    results = {}
    with ending_on_signals():
        for name in batchings:
            say(f"training {request.train} with batching {name}")
            results[name] = run_batching(name, request.network, command, options, request.run_dir / name)
            total = sum(results[batchings[0]].sizes[0])
            run = BatchingFile(request.network.name, f"train {request.train}", options.scheme, total, dict(results))
            write_batchings(request.run_dir, run)  # now: the next training may fail
    return run


def compare_parallels(request: CompareRequest, ways: Sequence[str], total: int) -> ParallelFile:
    """Train once by each way to divide the work and write parallel.json. total: samples of an iteration."""
    command = [sys.executable, example("train_fela.py"), "--steps", str(request.iterations), "--total", str(total)]
    options = request.options
    results = {}
    with ending_on_signals():
        for way in ways:
            say(f"training {request.train} by {way}")
            is_cut_by_time = way.partition("@")[0] == MODEL_PARALLEL
            job = [*command, "--stages", str(request.num_workers)] if is_cut_by_time else command
            results[way] = run_parallel(way, request.network, job, options, request.run_dir / way)
            run = ParallelFile(request.network.name, f"train {request.train}", options.stragglers, dict(results))
            write_parallels(request.run_dir, run)  # now: the next training may fail
    return run


def _replay(request: CompareRequest, replay: str, schemes: Sequence[Variant]) -> dict[str, Series]:
    network = request.network
    bound_s = configured_bound_s(network, bytes_of(replay), request.pushes_zeros)
    own = ",".join(dict.fromkeys(variant.name for variant in schemes if variant.is_own))
    options = replace(request.options, own_schemes=own or None)
    with failure_noted(request.run_dir), Emulated(network) as venue:
        jobs: dict[str, RunningJob] = {}  # by name
        lanes: list[tuple[Variant, RunningJob]] = []
        for variant in schemes:
            order = _held_job(request, replay, variant, options, venue.places)
            if order.name not in jobs:
                jobs[order.name] = venue.start(order)
                say(f"starting {len(jobs[order.name].processes.children)} processes on {len(network.nodes)} nodes")
            lanes.append((variant, jobs[order.name]))
        iterations = request.iterations
        assert iterations is not None, "only a user's own training decides"
        with progress_of([variant.word for variant in schemes], iterations, network.is_static, bound_s) as progress:
            return compare(lanes, venue.emulation, network, iterations, progress, request.run_dir, bound_s)


def _held_job(
    request: CompareRequest, replay: str, variant: Variant, options: JobOptions, places: Sequence[Place]
) -> JobOrder:
    """The held job that runs the variant. Held jobs share the network and take turns; each has a name and ports of its own."""
    if variant.scheme is None:
        ring = ring_program(replay, request.compute_ms)
        nodes, samples = job_nodes(request.network), request.run_dir / "samples.jsonl"
        bound_of = partial(_bound_s, nodes, bytes_of(replay), request.pushes_zeros)
        peer = partial(Ring, nodes=nodes, bound_of=bound_of, samples_path=samples)
        return JobOrder(ring, JobOptions(root_port=RING_PORT), request.run_dir, RING, peer=peer)
    options = replace(options, scheme=AUTO, one_level=True, hold=True, in_store=True)
    name, port = "", NAMESPACE_PORT
    if variant.scheme.ps_lite_kind:
        name, port, options = "p3", P3_PORT, replace(options, scheme=variant.name)
    elif sites_of(places, replace(options, scheme=variant.name, one_level=variant.one_level)) is not None:
        # The variant sums within sites first. Its servers count other workers.
        name, port, options = "sites", SITES_PORT, replace(options, one_level=False)
    if variant.precision != DEFAULT_PRECISION:  # a job of its own learns its own times
        name = "-".join(filter(None, (name, variant.precision)))
        port += PRECISION_PORTS * ASKED.index(variant.precision)
        options = replace(options, precision=variant.precision)
    if request.framework == TORCH:
        program = replay_program(replay, request.compute_ms)
    else:
        program = mxnet_program(own_argv("kvstore_patch.roles.replay", replay, "--compute-ms", str(request.compute_ms)))
    return JobOrder(program, replace(options, root_port=port), request.run_dir, name)


def _bound_s(nodes: Sequence[Node], model_bytes: int, pushes_zeros: bool, configured: wire.Configured) -> float:
    """The lossless bound of an iteration at configured rates, seconds."""
    return bound_s(nodes, model_bytes, configured.for_bound(nodes, pushes_zeros))


def _train(request: CompareRequest, schemes: Sequence[Variant]) -> tuple[dict[str, Series], int]:
    """Train under each scheme in turn, each time in a job of its own and from the same seed.

    Returns the series by the schemes' words, and the model's bytes.
    """
    series = {variant.word: Series() for variant in schemes}
    model_bytes = 0
    with runs_of(request.rounds * len(schemes), request.iterations) as progress:
        for number in range(request.rounds):
            for variant in schemes:
                model_bytes = _train_once(request, variant, number, series[variant.word], progress)
    return series, model_bytes


def _train_once(request: CompareRequest, variant: Variant, number: int, series: Series, progress: Runs) -> int:
    """Train once under a scheme, add the iterations to its series, and return the model's bytes. number: of the round, from 0.

    Raises JobError where the training fails or makes no iteration.
    """
    name = f"{variant.word}-{number + 1}" if number else variant.word
    checkpoints = None if request.where.hosts else str(request.run_dir / "checkpoints" / name)  # each begins anew
    options = replace(
        request.options,
        scheme=(variant.scheme or STOCK).name,
        one_level=variant.one_level,
        precision=variant.precision,
        label=variant.word,
        in_store=True,
        checkpoints=checkpoints,
    )
    order = JobOrder(
        request.training_program,
        options,
        request.run_dir,
        name,
        request.encryption,
        show=print_line,
        show_unfinished=progress.show_unfinished,
    )
    model_bytes, before = 0, len(series.iteration_s)
    with failure_noted(request.run_dir), request.where.venue(request.encryption.is_on) as venue:
        job = venue.start(order)
        progress.begin(
            variant.word, f"{request.training} in {len(job.processes.children)} processes on {request.where.name}"
        )
        for event in job.follow():
            if isinstance(event, LayoutEvent) and not model_bytes:
                series.begin(event.at_s)
                model_bytes = values_bytes(event)
            if isinstance(event, IterationEvent):
                series.add(event)
                progress.iteration(event)
        series.printed = job.processes.printed
    if len(series.iteration_s) == before:
        logs = request.run_dir / "logs" / name
        raise JobError(
            f"under {variant.word} the script summed no gradients often enough to see an iteration; its logs: {logs}"
        )
    series.end_round()
    return model_bytes
