"""Synthetic run directories, with the events that a coordinator writes."""

import json
from pathlib import Path
from typing import Any

from nalb.reporting.run_file import LinkError, RunFile, SchemeResult, write_run
from nalb.schemes import SCHEMES

MODEL_BYTES = 12_000_000
GOODPUT_PART = 1448 / 1514  # written again here, so that the tests hold the report to it
UNMEASURED = {name for name, scheme in SCHEMES.items() if not scheme.measures}


def write_fake_run(
    run_dir: Path,
    schemes: tuple[str, ...] = ("stock", "average", "aware"),
    nodes: int = 4,
    iterations: int = 5,
    workload: str = "replay mobilenet",
    network: str = "wan4-static",
    names: list[str] | None = None,
    changes: bool = False,
) -> RunFile:
    """Every scheme's iterations in turn; node k has (k + 1) x 5 MB/s both ways, the first is always saturated."""
    run_dir.mkdir(parents=True, exist_ok=True)
    names = names or [f"n{k}" for k in range(nodes)]
    configured = {name: 5e6 * (k + 1) for k, name in enumerate(names)}
    events: list[dict[str, Any]] = [{"event": "ready", "at_s": 100.0, "nodes": names}]
    now_s, number, results = 100.0, 0, {}
    for place, scheme in enumerate(schemes):
        series = []
        for k in range(iterations):
            took_s = 4.0 / (1 + 0.3 * place) + 0.05 * (k % 3)
            measured = scheme not in UNMEASURED
            if measured:
                rows = [[s, t, 1, 90_000, 1000 * s, 1000 * s + 200_000] for s in range(nodes) for t in range(nodes)]
                events.append({"event": "samples", "at_s": now_s, "iteration": number, "rows": rows})
            if changes and k == 2:
                change = {"at_s": 8.0, "nodes": {names[0]: {"up_mbps": 20, "down_mbps": 20}}, "links": []}
                events.append({"event": "change", "at_s": now_s + took_s / 2, "elapsed_s": 8.0, "change": change})
            now_s += took_s
            events.append(iteration_event(now_s, number, scheme, took_s, names, configured, measured, k))
            series.append(took_s)
            number += 1
        results[scheme] = SchemeResult(
            communication_s=series,
            iteration_s=[value + 0.1 for value in series],
            samples_per_min=1000.0 + place,
            plan_wait_s=[0.01] * iterations,
            link_error=None if scheme in UNMEASURED else LinkError(0.02, 0.08),
        )
    run = RunFile(network, workload, nodes, MODEL_BYTES, 2.0, results, goodput_bound_s=2.1)
    write_run(run_dir, run)
    write_events(run_dir, events)
    return run


def iteration_event(
    now_s: float,
    number: int,
    scheme: str,
    took_s: float,
    names: list[str],
    configured: dict[str, float],
    measured: bool,
    k: int,
) -> dict[str, Any]:
    """As Coordinator and Planner write it."""
    event: dict[str, Any] = {
        "event": "iteration", "at_s": now_s, "iteration": number, "scheme": scheme,
        "communication_s": dict.fromkeys(names, took_s), "iteration_s": dict.fromkeys(names, took_s + 0.1),
        "plan_wait_s": dict.fromkeys(names, 0.01), "samples": 9, "drops": 0, "rejected": {}, "measured": measured,
        "reason": scheme, "bound_s": 2.0 + 0.1 * (k // 3), "configured": {"up": configured, "down": configured},
        "estimate": {side: {name: (GOODPUT_PART * rate if measured else None) for name, rate in configured.items()}
                     for side in ("up", "down")},
    }  # fmt: skip
    if scheme not in ("stock", "p3"):
        share = MODEL_BYTES / len(names)
        load = 2 * 5e6 * 4.0
        event |= {"shares": dict.fromkeys(names, share), "load_bytes": dict.fromkeys(names, load), "planned_s": 2.1}
    return event


def write_events(run_dir: Path, events: list[dict[str, Any]]) -> None:
    """samples.jsonl."""
    (run_dir / "samples.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
