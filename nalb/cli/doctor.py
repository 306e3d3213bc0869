"""`nalb doctor`: checks this machine before a job, with a line per check. The exit code is 1 where a check fails.

The command leaves nothing behind on the machine.
"""

import argparse
import dataclasses
import json
from collections.abc import Iterable
from importlib.util import find_spec

from nalb.doctor import emulation, host, software
from nalb.doctor.finding import Check, Finding
from netem.rootless import has_privilege


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--json", action="store_true", help="print a JSON list of name, verdict, detail, advice")
    parser.add_argument(
        "--hosts", action="store_true", help="check this machine for a --hosts job; run it on each host"
    )


def checks(hosts: bool) -> tuple[Check, ...]:
    """All checks, in the order in which they are shown. hosts: whether the machine is checked for a --hosts job.

    Where PyTorch is the only framework, nothing is asked for MXNet.
    """
    has_torch_alone = find_spec("torch") is not None and find_spec("mxnet") is None
    of_mxnet = (software.check_python, software.check_numpy, software.check_mxnet, software.check_shim)
    return (
        *(() if has_torch_alone else of_mxnet),
        software.check_torch,
        lambda: emulation.check_emulation(needed=not hosts, privileged=has_privilege()),
        lambda: emulation.check_congestion_control(needed=not hosts),
        host.check_ports,
        host.check_address,
        host.check_memory,
        host.check_open_files,
        host.check_threads,
        lambda: software.check_ssh(needed=hosts),
        software.check_dataset,
    )


def main(args: argparse.Namespace) -> int:
    """Run every check and print the findings; returns the exit code."""
    return report(checks(args.hosts), args.json)


def report(table: Iterable[Check], as_json: bool) -> int:
    """Run the checks and print each finding as soon as it is known, or all as JSON. Returns 1 where a check fails, else 0."""
    findings: list[Finding] = []
    for check in table:
        found = check()
        findings += found
        if not as_json:
            print("\n".join(map(_line, found)), flush=True)
    failed = [finding.name for finding in findings if finding.verdict == "FAIL"]
    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    elif failed:
        print(f"this machine cannot run a job yet: {', '.join(failed)}")
    else:
        warned = sum(finding.verdict == "warn" for finding in findings)
        print("this machine can run a job" + (f" ({warned} warnings)" if warned else ""))
    return 1 if failed else 0


def _line(finding: Finding) -> str:
    advice = f" -> {finding.advice}" if finding.advice else ""
    return f"{finding.verdict:<5}{finding.name:<24}{finding.detail}{advice}"
