"""Runs whole comparisons and writes their files: of schemes by replay or training, of batchings, and of ways to divide the work."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from nalb.compare.batch_comparison import run_batching
from nalb.compare.comparison import SAMPLES_PER_BATCH, Series, compare
from nalb.compare.parallel_comparison import run_parallel
from nalb.compare.progress import Lines, progress_of, say
from nalb.compare.ring import RING, Ring, require_torch, ring_program
from nalb.compare.variants import Variant
from nalb.errors import InputError
from nalb.events import IterationEvent, LayoutEvent
from nalb.launch.frameworks import MXNET, TORCH, chosen
from nalb.launch.network import NAMESPACE_PORT, configured_bound_s, goodput_bound_s, job_nodes
from nalb.launch.ranks import replay_program, torch_program
from nalb.launch.roles import Place, Program, mxnet_program, sites_of
from nalb.launch.signals import ending_on_signals
from nalb.launch.supervisor import print_line, print_unfinished
from nalb.launch.venue import Emulated, JobOrder, RunningJob
from nalb.options import DEFAULT_PRECISION, JobOptions
from nalb.planning.precisions import ASKED
from nalb.process.own_program import own_argv
from nalb.reporting.batching_file import BatchingFile, write_batchings
from nalb.reporting.parallel_file import ParallelFile, write_parallels
from nalb.reporting.run_file import RunFile, write_run
from nalb.schemes import AUTO, STOCK
from nalb.tokens.policies import MODEL_PARALLEL
from nalb.workloads import bytes_of
from netem.network_file import Network
from netem.wires import NODE_INTERFACE

TEST_IMAGES = 2000  # images by which a comparison of batchings tests the accuracy; few, since a slow machine may test
UNPLANNED_STEPS = {MXNET: 1, TORCH: 3}  # the first steps of a training, by which nalb learns what it sums
P3_PORT = NAMESPACE_PORT + 10  # the root port of the job for p3, in the same namespaces
RING_PORT = NAMESPACE_PORT + 20  # the port at which the ring's workers find each other
SITES_PORT = NAMESPACE_PORT + 30  # the root port of the job that sums by sites
PRECISION_PORTS = 50  # between root ports of jobs that send float32 in different precisions


@dataclass(frozen=True)
class CompareRequest:
    """The arguments of `nalb compare`; one of `replay`, `train` and `command` is given."""

    network: Network
    options: JobOptions  # the options of every job, but for its scheme
    replay: str | None  # the workload to replay
    train: str | None  # the model to train
    iterations: int  # the iterations of each scheme
    run_dir: Path
    compute_ms: float = 0.0  # the computing time of an iteration of a replay
    framework: str = MXNET
    command: tuple[str, ...] = ()  # a user's own training
    test_every: int | None = None  # in a comparison of batchings, the iterations between two tests of the accuracy
    micro: int | None = None  # likewise: how many samples are computed at a time; None: a whole batch

    @property
    def num_workers(self) -> int:
        """The number of the network's nodes that have a worker."""
        return sum(node.is_worker for node in self.network.nodes)

    @property
    def training_command(self) -> list[str]:
        """The command that each worker runs to train for the request's iterations. Raises InputError without the source tree."""
        if self.command:
            return list(self.command)
        steps = ["--steps", str(self.iterations + UNPLANNED_STEPS[self.framework])]
        if self.framework == TORCH:
            return [sys.executable, example("train_torch.py"), *steps]
        return [sys.executable, example("train_fashion_mnist.py"), "--model", str(self.train), *steps]

    @property
    def training(self) -> str:
        """What trains, for people."""
        return self.train or " ".join(map(os.path.basename, self.command))

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
        if request.framework == TORCH and not request.command:
            require_torch()
        chosen(request.framework, request.training_command)
    elif any(variant.scheme is None for variant in schemes):
        require_torch()
    if request.framework == MXNET and any(variant.scheme is not None for variant in schemes):
        mxnet_program(()).require()


def compare_schemes(request: CompareRequest, schemes: Sequence[Variant]) -> None:
    """Run each scheme's iterations and write run.json. Raises JobError."""
    network = request.network
    with ending_on_signals():
        if request.replay:
            workload, model_bytes = f"replay {request.replay}", bytes_of(request.replay)
            series = _replay(request, request.replay, schemes)
        else:
            workload = f"train {request.training}"
            series, model_bytes = _train(request, schemes)
    run = RunFile(
        network.name,
        workload,
        len(network.nodes),
        model_bytes,
        configured_bound_s(network, model_bytes),
        {name: one.result(request.num_workers, SAMPLES_PER_BATCH) for name, one in series.items()},
        goodput_bound_s(network, model_bytes),
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
    run = BatchingFile(request.network.name, f"train {request.train}", options.scheme, total, results)
    write_batchings(request.run_dir, run)
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
    run = ParallelFile(request.network.name, f"train {request.train}", options.stragglers, results)
    write_parallels(request.run_dir, run)
    return run


def _replay(request: CompareRequest, replay: str, schemes: Sequence[Variant]) -> dict[str, Series]:
    network = request.network
    bound_s = configured_bound_s(network, bytes_of(replay))
    own = ",".join(dict.fromkeys(variant.name for variant in schemes if variant.is_own))
    options = replace(request.options, own_schemes=own or None)
    with Emulated(network) as venue:
        jobs: dict[str, RunningJob] = {}  # by name
        lanes: list[tuple[Variant, RunningJob]] = []
        for variant in schemes:
            order = _held_job(request, replay, variant, options, venue.places)
            if order.name not in jobs:
                jobs[order.name] = venue.start(order)
                say(f"starting {len(jobs[order.name].processes.children)} processes on {len(network.nodes)} nodes")
            lanes.append((variant, jobs[order.name]))
        with progress_of(
            [variant.word for variant in schemes], request.iterations, network.is_static, bound_s
        ) as progress:
            return compare(lanes, venue.emulation, network, request.iterations, progress, request.run_dir, bound_s)


def _held_job(
    request: CompareRequest, replay: str, variant: Variant, options: JobOptions, places: Sequence[Place]
) -> JobOrder:
    """The held job that runs the variant. Held jobs share the network and take turns; each has a name and ports of its own."""
    if variant.scheme is None:
        ring = ring_program(replay, request.compute_ms, NODE_INTERFACE)
        nodes, samples = job_nodes(request.network), request.run_dir / "samples.jsonl"
        peer = partial(Ring, nodes=nodes, model_bytes=bytes_of(replay), samples_path=samples)
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


def _train(request: CompareRequest, schemes: Sequence[Variant]) -> tuple[dict[str, Series], int]:
    """Train under each scheme in turn, each in a job of its own and from the same seed; return the series and the model's bytes."""
    network, program = request.network, request.training_program
    series: dict[str, Series] = {}
    model_bytes = 0
    for variant in schemes:
        scheme, one, has_begun = variant.word, Series(), False
        options = replace(
            request.options,
            scheme=(variant.scheme or STOCK).name,
            one_level=variant.one_level,
            precision=variant.precision,
            label=scheme,
            in_store=True,
        )
        order = JobOrder(program, options, request.run_dir, scheme, show=print_line, show_unfinished=print_unfinished)
        with Emulated(network) as venue:
            job = venue.start(order)
            say(
                f"training {request.training} under {scheme}: {len(job.processes.children)} processes on {len(network.nodes)} nodes"
            )
            with Lines([scheme], request.iterations, takes_turns=False, bound_s=None) as progress:
                for event in job.follow():
                    if isinstance(event, LayoutEvent) and not has_begun:
                        has_begun = True
                        one.begin(event.at_s)
                        model_bytes = event.model_bytes
                    if isinstance(event, IterationEvent):
                        one.add(event)
                        progress.iteration(scheme, event)
        series[scheme] = one
    return series, model_bytes
