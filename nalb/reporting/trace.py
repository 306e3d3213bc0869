"""Makes a timeline of a run for Perfetto or Chrome's DevTools, and measures the communication that computing did not hide.

The timeline has a process per node. Each process has rows for the worker's iterations, its computing, its exchange, the tokens
that it computed and the waits for their inputs, and a row for the messages per peer and direction. Pushes are on a row of the
server that received them, answers on a row of the worker that did. Messages of one row that overlap in time (because of several
connections or clock errors) are spread over several rows. A counter per node shows what it sent and received over time. Times are
rounded to RESOLUTION_US before rows are chosen, so rounding makes no two spans overlap; no span is shorter than that.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nalb.events import Row, TokensEvent
from nalb.reporting.link_figures import binned_rates
from nalb.reporting.record import Step, Timeline, TokenTimes, after_warm_up
from nalb.reporting.run_file import LONGEST_S
from nalb.units import bytes_per_s_to_mbps

Event = dict[str, Any]
ITERATIONS, COMPUTING, EXCHANGE = "worker: iterations", "worker: computing", "worker: exchange"
TOKENS, INPUTS = "worker: tokens", "worker: inputs of tokens"
RESOLUTION_US = 1  # of spans: samples.jsonl has no finer times
COUNTED_MOST = 50  # values of a node's counter in an iteration
LEAST_BIN_US = 1000.0  # that a counter's value is a mean over, at least
COUNTERS = "throughput (Mbit/s)"
FIRST = (ITERATIONS, COMPUTING, EXCHANGE, TOKENS, INPUTS)


@dataclass(frozen=True)
class Exposure:
    """One scheme's exposed communication: medians over the iterations after the warm-up, each of the worker with most exposed.

    All times are in seconds.
    """

    scheme: str
    iteration_s: float
    communication_s: float  # the worker's exchange, from its first push to its last sum
    exposed_s: float  # the time from the worker's last complete gradient to its last sum
    hidden_part: float  # the part of the exchange during which the worker still computed


def exposures(record: Timeline) -> list[Exposure]:
    """A row for each scheme whose iterations state when gradients were complete, in the order of the schemes' first iterations.

    Worker w's exchange lasts from its first push to its last sum. The part after the completion of its last gradient is exposed:
        exposed_w = finished_w - min(max(computed_w, started_w), finished_w).
    """
    rows = []
    for scheme, steps in record.steps.items():
        told = [step for step in steps if step.event.computed_s]
        warm = [step for step in after_warm_up(steps) if step.event.computed_s]
        if told:
            counted = [_most_exposed(step) for step in warm or told]
            iteration_s, communication_s, exposed_s = (statistics.median(row[k] for row in counted) for k in range(3))
            hidden = statistics.median(1 - row[2] / row[1] if row[1] else 0.0 for row in counted)
            rows.append(Exposure(scheme, iteration_s, communication_s, exposed_s, hidden))
    return rows


def _most_exposed(step: Step) -> tuple[float, float, float]:
    """(iteration, communication, exposed) in seconds, of the worker with most exposed."""
    event = step.event
    rows = []
    for node, computed_s in event.computed_s.items():
        start_s, end_s = event.started_s.get(node, computed_s), event.finished_s.get(node, computed_s)
        exposed_s = end_s - min(max(computed_s, start_s), end_s)
        rows.append((exposed_s, step.worker_iteration_s.get(node, 0.0), end_s - start_s))
    exposed_s, iteration_s, communication_s = max(rows)
    return iteration_s, communication_s, exposed_s


def chrome_trace(record: Timeline) -> dict[str, Any]:
    """The run as a JSON object in Chrome's trace event format ('X' events, in microseconds since the run's first event)."""
    zero_s = min([*(step.begin_s for step in record.ordered()), *(event.at_s for event in record.tokens)], default=0.0)
    rows = _Rows(record.nodes, zero_s)
    finished_s: dict[str, float] = {}  # the end of each worker's last iteration so far
    for step in record.ordered():
        event = step.event
        label = f"{event.scheme} {event.iteration}"
        for node, end_s in event.finished_s.items():
            if node not in event.started_s:
                continue
            start_s, before_s = event.started_s[node], end_s - step.worker_iteration_s.get(node, 0.0)
            before_s = max(before_s, finished_s.get(node, before_s))
            computed_s = event.computed_s.get(node)
            rows.add(node, ITERATIONS, label, before_s, end_s, {"scheme": event.scheme})
            rows.add(node, EXCHANGE, label, start_s, end_s, {})
            if computed_s is not None:
                rows.add(node, COMPUTING, label, before_s, computed_s, {})
            finished_s[node] = end_s
        messages = list(step.rows)
        for source, target, is_push, size_bytes, start_us, end_us in messages:
            sender, receiver = step.nodes[source], step.nodes[target]
            row = f"server: pushes from {sender}" if is_push else f"worker: sums from {sender}"
            start_s, end_s = step.rows_at_s + start_us * 1e-6, step.rows_at_s + end_us * 1e-6
            rows.add(receiver, row, "push" if is_push else "sum", start_s, end_s, {"bytes": size_bytes, "of": label})
        rows.count(step, messages)
    for tokens in record.tokens:
        _add_tokens(rows, tokens)
    return {"displayTimeUnit": "ms", "traceEvents": list(rows.events())}


def _add_tokens(rows: "_Rows", event: TokensEvent) -> None:
    """Add the listed tokens of one iteration."""
    for row in event.rows or ():
        given_s, inputs_s, start_s, done_s = (event.at_s + one for one in TokenTimes.of(row))
        worker, name = event.workers[row.worker], f"{row.level}.{row.number}"
        told = {"iteration": event.iteration, "samples": row.samples, "bucket of": event.workers[row.owner]}
        if inputs_s > given_s:
            rows.add(worker, INPUTS, name, given_s, inputs_s, {"bytes": row.fetched_bytes})
        rows.add(worker, TOKENS, name, start_s, done_s, told)


class _Rows:
    """Collects the spans of all rows, and gives numbers to the rows; spans that overlap in a row are spread over several."""

    def __init__(self, nodes: list[str], zero_s: float):
        self._nodes, self._zero_s = nodes, zero_s
        self._spans: dict[tuple[str, str], list[tuple[int, int, str, Event]]] = {}
        self._counters: list[Event] = []

    def add(self, node: str, row: str, name: str, start_s: float, end_s: float, args: Event) -> None:
        """Add a span to a node's row; a span that ends before it starts is drawn as the shortest one."""
        start_us, end_us = self._us(start_s), self._us(end_s)
        self._spans.setdefault((node, row), []).append((start_us, max(start_us + RESOLUTION_US, end_us), name, args))

    def count(self, step: Step, messages: Sequence[Row]) -> None:
        """Add each node's throughput during an iteration whose messages were timed."""
        if not messages:
            return
        first_us, last_us = min(row[4] for row in messages), max(max(row[5], row[4] + 1) for row in messages)
        bins = max(1, min(COUNTED_MOST, int((last_us - first_us) / LEAST_BIN_US)))
        edges_us = np.linspace(first_us, last_us, bins + 1)
        up, down = (bytes_per_s_to_mbps(1) * one for one in binned_rates(messages, len(step.nodes), edges_us))
        for index, node in enumerate(step.nodes):
            pid = self._nodes.index(node)
            values = [*zip(up[index].tolist(), down[index].tolist(), strict=True), (0.0, 0.0)]
            for edge_us, (sent, received) in zip(edges_us.tolist(), values, strict=True):
                told = {"sent": round(sent, 2), "received": round(received, 2)}
                at_us = self._us(step.rows_at_s + 1e-6 * edge_us)
                self._counters.append({"ph": "C", "name": COUNTERS, "pid": pid, "ts": at_us, "args": told})

    def _us(self, at_s: float) -> int:
        """A time as the trace has it; one that no run has, of a damaged file, is drawn at the edge."""
        at_s = min(max(at_s, self._zero_s - LONGEST_S), self._zero_s + LONGEST_S)
        return round(1e6 * (at_s - self._zero_s) / RESOLUTION_US) * RESOLUTION_US

    def events(self) -> Iterator[Event]:
        """Yield the trace events: the processes' names, the spans, the rows' names, and the counters."""
        for pid, node in enumerate(self._nodes):
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": node}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
            tid = 0
            own = [(row, spans) for (owner, row), spans in self._spans.items() if owner == node]
            for row, spans in sorted(own, key=lambda one: (one[0] not in FIRST, one[0])):
                ends: list[int] = []  # the last end on each of the rows over which this row is spread
                for start_us, end_us, name, args in sorted(spans, key=lambda span: span[:2]):
                    place = next((k for k, last_us in enumerate(ends) if last_us <= start_us), len(ends))
                    ends[place : place + 1] = [end_us]
                    yield {
                        "ph": "X", "name": name, "cat": row.split(":")[0], "pid": pid, "tid": tid + place,
                        "ts": start_us, "dur": end_us - start_us, "args": args,
                    }  # fmt: skip
                for place in range(len(ends)):
                    title = row if place == 0 else f"{row} ({place + 1})"
                    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid + place, "args": {"name": title}}
                    yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid + place,
                           "args": {"sort_index": tid + place}}  # fmt: skip
                tid += len(ends)
        yield from self._counters
