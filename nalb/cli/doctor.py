"""`nalb doctor`: checks this machine before a job, with a line per check. The exit code is 1 where a check fails.

The command leaves nothing behind on the machine.
"""

import argparse
import dataclasses
import json
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec

from nalb.doctor import emulation, host, software
from nalb.doctor.finding import Check, Finding, one_line
from nalb.errors import InputError, MachineError
from nalb.launch.hosts import Host, load_hosts
from nalb.launch.ssh import ask, why_no_answer
from nalb.process.own_program import own_argv
from netem.rootless import has_privilege

LIMIT_S = 120.0  # for the checks of a host


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--json", action="store_true", help="print a JSON list of name, verdict, detail, advice")
    parser.add_argument(
        "--hosts",
        nargs="?",
        const="",
        metavar="FILE",
        help="check every host of a hosts file for a job over ssh; without FILE, this machine for such a job",
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
    """Run every check and print the findings; returns the exit code. Raises InputError for a wrong hosts file."""
    if args.hosts:
        if args.json:
            raise InputError("--json is of one machine: leave it out, or run `nalb doctor --hosts --json` on each host")
        return max(map(_report_host, load_hosts(args.hosts).hosts))
    return report(checks(args.hosts is not None), args.json)


def _report_host(host: Host) -> int:
    """Run `nalb doctor --hosts` on a host and print what it prints there. Returns 1 where a check fails, or nobody answers."""
    print(f"{host.name} ({host.address}):", flush=True)
    try:
        done = ask(host, own_argv("nalb.cli.main", "doctor", "--hosts", python=host.python), LIMIT_S)
    except OSError as error:
        raise MachineError(f"cannot start ssh ({error.strerror}): install the OpenSSH client") from None
    except subprocess.TimeoutExpired:
        print(_line(Finding("ssh", "FAIL", f"no answer within {LIMIT_S:g} s", "look at the host")))
        return 1
    if not done.stdout:
        print(_line(Finding("ssh", "FAIL", why_no_answer(host, done.returncode), one_line(done.stderr))))
        return 1
    print(done.stdout, end="")
    return done.returncode


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
        print("this machine can run a job" + (f" ({warned} warning{'s' * (warned > 1)})" if warned else ""))
    return 1 if failed else 0


def _line(finding: Finding) -> str:
    advice = f" -> {finding.advice}" if finding.advice else ""
    return f"{finding.verdict:<5}{finding.name:<24}{finding.detail}{advice}"
