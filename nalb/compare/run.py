"""Runs whole comparisons and writes their files: of schemes by replay or training, of batchings, and of ways to divide the work."""

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from nalb.compare.batch_comparison import run_batching
from nalb.compare.comparison import SAMPLES_PER_BATCH, Lane, Series, compare
from nalb.compare.parallel_comparison import run_parallel
from nalb.compare.progress import Lines, progress_of, say
from nalb.compare.ring import RING, Ring, ring_specs
from nalb.compare.variants import Variant
from nalb.errors import InputError
from nalb.events import BatchEvent, IterationEvent, LayoutEvent, TokensEvent
from nalb.launch.network import (
    NAMESPACE_PORT,
    Changes,
    configured_bound_s,
    configured_message,
    followed,
    goodput_bound_s,
    inside,
    job_network,
    job_nodes,
    places_in,
)
from nalb.launch.roles import process_specs, sites_of
from nalb.launch.run_dir import observer_address
from nalb.launch.signals import ending_on_signals
from nalb.launch.supervisor import Job, print_line, print_unfinished
from nalb.options import JobOptions
from nalb.process.own_program import own_argv
from nalb.reporting.batching_file import BatchingFile, write_batchings
from nalb.reporting.parallel_file import ParallelFile, write_parallels
from nalb.reporting.run_file import RunFile, write_run
from nalb.schemes import AUTO
from nalb.tokens.policies import MODEL_PARALLEL
from nalb.transport.observer import Observer
from nalb.workloads import bytes_of
from netem.emulation import Emulation
from netem.network_file import Network
from netem.wires import NODE_INTERFACE

TEST_IMAGES = 2000  # images by which a comparison of batchings tests the accuracy; few, since a slow machine may test
P3_PORT = NAMESPACE_PORT + 10  # the root port of the job for p3, in the same namespaces
RING_PORT = NAMESPACE_PORT + 20  # the port at which the ring's workers find each other
SITES_PORT = NAMESPACE_PORT + 30  # the root port of the job that sums by sites
LOGS = {NAMESPACE_PORT: "", P3_PORT: "p3", SITES_PORT: "sites"}  # each job's folder below the run's logs, by its port


@dataclass(frozen=True)
class CompareRequest:
    """The arguments of `nalb compare`; either `replay` or `train` is given."""

    network: Network
    options: JobOptions  # the options of every job, but for its scheme
    replay: str | None  # the workload to replay
    train: str | None  # the model to train
    iterations: int  # the iterations of each scheme
    run_dir: Path
    compute_ms: float = 0.0  # the computing time of an iteration of a replay
    test_every: int | None = None  # in a comparison of batchings, the iterations between two tests of the accuracy

    @property
    def num_workers(self) -> int:
        """The number of the network's nodes that have a worker."""
        return sum(node.is_worker for node in self.network.nodes)

    @property
    def training_command(self) -> list[str]:
        """The command that each worker runs to train for the request's iterations. Raises InputError without the source tree."""
        steps = self.iterations + 1  # the first step only records which tensors are pushed
        return [sys.executable, example("train_fashion_mnist.py"), "--model", str(self.train), "--steps", str(steps)]


def example(name: str) -> str:
    """The path of an example script. Raises InputError where it is missing, as outside the source tree."""
    script = Path(__file__).resolve().parents[2] / "examples" / name
    if not script.exists():
        raise InputError(
            f"--train needs the source tree: {script} is missing; use --replay, or `pip install -e .` in a clone"
        )
    return str(script)


def compare_schemes(request: CompareRequest, schemes: Sequence[Variant]) -> None:
    """Run each scheme's iterations and write run.json. Raises JobError."""
    network = request.network
    with ending_on_signals():
        if request.replay:
            workload, model_bytes = f"replay {request.replay}", bytes_of(request.replay)
            series = _replay(request, request.replay, schemes)
        else:
            workload = f"train {request.train}"
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
    options = replace(request.options, root_port=NAMESPACE_PORT)
    results = {}
    with ending_on_signals():
        for name in batchings:

            def show(event: BatchEvent, name: str = name) -> None:
                times = " ".join(f"{one:.3f}" for one in event.compute_s)
                say(f"{name}, iteration {event.iteration + 1}: compute s {times}")

            say(f"training {request.train} with batching {name}")
            results[name] = run_batching(name, request.network, command, options, request.run_dir / name, show)
    total = sum(results[batchings[0]].sizes[0])
    run = BatchingFile(request.network.name, f"train {request.train}", options.scheme, total, results)
    write_batchings(request.run_dir, run)
    return run


def compare_parallels(request: CompareRequest, ways: Sequence[str], total: int) -> ParallelFile:
    """Train once by each way to divide the work and write parallel.json. total: samples of an iteration."""
    command = [sys.executable, example("train_fela.py"), "--steps", str(request.iterations), "--total", str(total)]
    options = replace(request.options, root_port=NAMESPACE_PORT)
    results = {}
    with ending_on_signals():
        for way in ways:

            def show(event: TokensEvent, way: str = way) -> None:
                say(f"{way}, iteration {event.iteration}: {event.iteration_s:.3f} s, tokens {event.tokens}")

            say(f"training {request.train} by {way}")
            is_cut_by_time = way.partition("@")[0] == MODEL_PARALLEL
            job = [*command, "--stages", str(request.num_workers)] if is_cut_by_time else command
            results[way] = run_parallel(way, request.network, job, options, request.run_dir / way, show)
    run = ParallelFile(request.network.name, f"train {request.train}", options.stragglers, results)
    write_parallels(request.run_dir, run)
    return run


def _replay(request: CompareRequest, replay: str, schemes: Sequence[Variant]) -> dict[str, Series]:
    network = request.network
    bound_s = configured_bound_s(network, bytes_of(replay))
    with ExitStack() as stack:
        emulation = stack.enter_context(job_network(network))
        jobs: dict[int, Lane] = {}  # by port
        lanes: list[tuple[Variant, Lane]] = []
        own = ",".join(dict.fromkeys(variant.name for variant in schemes if variant.is_own))
        request = replace(request, options=replace(request.options, own_schemes=own or None))
        for variant in schemes:
            if variant.scheme is None:
                lanes.append((variant, _start_ring(request, replay, emulation, stack)))
                continue
            options = replace(request.options, scheme=AUTO, one_level=True)
            port = NAMESPACE_PORT
            if variant.scheme.ps_lite_kind:
                port, options = P3_PORT, replace(options, scheme=variant.name)
            elif _has_levels(variant, request.options, emulation):
                port, options = SITES_PORT, replace(options, one_level=False)
            if port not in jobs:
                jobs[port] = _start_lane(replace(request, options=options), replay, emulation, stack, port)
            lanes.append((variant, jobs[port]))
        with progress_of(
            [variant.word for variant in schemes], request.iterations, network.is_static, bound_s
        ) as progress:
            return compare(lanes, emulation, network, request.iterations, progress, request.run_dir, bound_s)


def _has_levels(variant: Variant, options: JobOptions, emulation: Emulation) -> bool:
    """Whether the variant sums within sites first. Such variants need a job of their own: its servers count other workers."""
    asked = replace(options, scheme=variant.name, one_level=variant.one_level)
    return sites_of(places_in(emulation), asked) is not None


def _start_lane(request: CompareRequest, replay: str, emulation: Emulation, stack: ExitStack, port: int) -> Lane:
    """Start a held job whose root port is `port`. Several held jobs share the network and take turns."""
    address = observer_address(stack, request.run_dir, f"observers-{port}")
    options = _job_options(request, port, address, hold=True)
    command = own_argv("kvstore_patch.roles.replay", replay, "--compute-ms", str(request.compute_ms))
    specs = process_specs(places_in(emulation), command, options, os.environ)
    say(f"starting {len(specs)} processes on {len(emulation.network.nodes)} nodes")
    logs = request.run_dir / "logs" / LOGS[port]
    job = stack.enter_context(Job(specs, inside(emulation), os.environ, logs, check=emulation.check))
    return Lane(job, stack.enter_context(Observer(address)))


def _start_ring(request: CompareRequest, replay: str, emulation: Emulation, stack: ExitStack) -> Lane:
    """Start the ring's processes, which wait for their turns as a held job does."""
    address = observer_address(stack, request.run_dir, RING)
    places = [place for place in places_in(emulation) if place.is_worker]
    ring = Ring(address, job_nodes(emulation.network), bytes_of(replay), request.run_dir / "samples.jsonl")
    ring = stack.enter_context(ring)
    specs = ring_specs(places, replay, request.compute_ms, address, RING_PORT, NODE_INTERFACE)
    say(f"starting {len(specs)} processes of a ring on {len(places)} nodes")
    job = stack.enter_context(
        Job(specs, inside(emulation), os.environ, request.run_dir / "logs" / RING, check=emulation.check)
    )
    return Lane(job, ring)


def _train(request: CompareRequest, schemes: Sequence[Variant]) -> tuple[dict[str, Series], int]:
    """Train under each scheme in turn, each in a job of its own and from the same seed; return the series and the model's bytes."""
    command, network, run_dir = request.training_command, request.network, request.run_dir
    series: dict[str, Series] = {}
    model_bytes = 0
    for variant in schemes:
        scheme, one = variant.word, Series()
        with ExitStack() as stack:
            address = observer_address(stack, run_dir)
            options = replace(request.options, scheme=variant.name, one_level=variant.one_level, label=scheme)
            options = _job_options(replace(request, options=options), NAMESPACE_PORT, address)
            emulation = stack.enter_context(job_network(network))
            specs = process_specs(places_in(emulation), command, options, os.environ)
            say(f"training {request.train} under {scheme}: {len(specs)} processes on {len(network.nodes)} nodes")
            progress = stack.enter_context(Lines([scheme], request.iterations, takes_turns=False, bound_s=None))
            job = stack.enter_context(
                Job(
                    specs,
                    inside(emulation),
                    os.environ,
                    run_dir / "logs" / scheme,
                    print_line,
                    check=emulation.check,
                    show_unfinished=print_unfinished,
                )
            )
            observer = stack.enter_context(Observer(address))
            observer.send(configured_message(network, 0.0))
            changes = Changes(network, run_dir)
            for event in followed(job, observer, changes, emulation, stack):
                if isinstance(event, LayoutEvent) and not changes.started:
                    one.begin(event.at_s)
                    model_bytes = event.model_bytes
                if isinstance(event, IterationEvent):
                    one.add(event)
                    progress.iteration(scheme, event)
        series[scheme] = one
    return series, model_bytes


def _job_options(request: CompareRequest, port: int, address: str, hold: bool = False) -> JobOptions:
    samples = str(request.run_dir / "samples.jsonl")
    return replace(request.options, root_port=port, observers=address, samples_path=samples, hold=hold)
