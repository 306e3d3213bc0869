"""`nalb doctor`: checks this machine before a job, with a line per check. The exit code is 1 where a check fails, also where only
jobs in an emulated network cannot run.

The command leaves nothing behind on the machine.
"""

import argparse
import dataclasses
import json
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec

import msgspec

from nalb.doctor import emulation, host, software
from nalb.doctor.finding import Check, Finding, one_line
from nalb.errors import InputError, MachineError, listed
from nalb.launch.hosts import Host, HostsFile, load_hosts
from nalb.launch.ssh import ask, why_no_answer
from nalb.process.own_program import own_argv
from netem.rootless import has_privilege

LIMIT_S = 120.0  # for the checks of a host


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list of name, verdict, detail, advice, is_of_emulation"
    )
    parser.add_argument(
        "--hosts",
        nargs="?",
        const="",
        metavar="FILE",
        help="check every host of a hosts file for a job over ssh; without FILE, this machine for such a job",
    )
    # what --hosts FILE runs on each host, with its address and on the first with the root port; the answer is a line of JSON
    parser.add_argument("--as-host", help=argparse.SUPPRESS)
    parser.add_argument("--root-port", type=int, help=argparse.SUPPRESS)


def checks(hosts: bool, address: str | None = None, root_port: int | None = None) -> tuple[Check, ...]:
    """All checks, in the order in which they are shown.

    hosts: whether the machine is checked for a --hosts job. address: this host's in the hosts file; None: no file names it.
    root_port: the file's; None: this is not its first host. Where PyTorch is the only framework, nothing is asked for MXNet.
    """
    has_torch_alone = find_spec("torch") is not None and find_spec("mxnet") is None
    of_mxnet = (software.check_python, software.check_numpy, software.check_mxnet, software.check_shim)
    return (
        *(() if has_torch_alone else of_mxnet),
        software.check_torch,
        lambda: emulation.check_emulation(needed=not hosts, privileged=has_privilege()),
        lambda: emulation.check_congestion_control(needed=not hosts),
        *_of_network(hosts, address, root_port),
        host.check_memory,
        host.check_open_files,
        host.check_threads,
        *(() if address else (lambda: software.check_ssh(needed=hosts),)),  # hosts start no ssh
        software.check_dataset,
    )


def _of_network(hosts: bool, address: str | None, root_port: int | None) -> tuple[Check, ...]:
    if address is None:  # with --hosts a file gives the address
        return (host.check_ports,) if hosts else (host.check_ports, host.check_address)
    of_address = (lambda: host.check_told_address(address),)
    if root_port is None:
        return of_address
    root = host.EVERY_ADDRESS if find_spec("torch") else address
    return (
        lambda: host.check_ports(root, (root_port,), needed=True),
        lambda: host.check_ports(address, (root_port + 1,), needed=True),
        *of_address,
    )


def main(args: argparse.Namespace) -> int:
    """Run every check and print the findings; returns the exit code. Raises InputError for a wrong hosts file."""
    if args.hosts:
        if args.json:
            raise InputError("--json is of one machine: leave it out, or run `nalb doctor --hosts --json` on each host")
        return _report_hosts(load_hosts(args.hosts))
    if args.as_host:
        findings = [finding for check in checks(True, args.as_host, args.root_port) for finding in check()]
        print("\n" + msgspec.json.encode(findings).decode())
        return 0
    return report(checks(args.hosts is not None), args.json)


def _report_hosts(file: HostsFile) -> int:
    """Check the hosts. This machine alone needs ssh, the first host alone the job's two ports."""
    ssh = software.check_ssh(needed=True)
    if any(finding.verdict == "FAIL" for finding in ssh):
        return report([lambda: ssh], as_json=False)
    first, *others = file.hosts
    codes = [_report_host(first, f"--root-port={file.root_port}"), *map(_report_host, others)]
    if failed := [host.name for host, code in zip(file.hosts, codes, strict=True) if code]:
        print(f"these hosts cannot run a job yet: {listed(failed)}")
    else:
        print(f"all {len(codes)} hosts can run a job")
    return max(codes)


def _report_host(host: Host, *more: str) -> int:
    """Run the checks on a host and print the findings. Returns 1 where a check fails, or nobody answers."""
    print(f"{host.name} ({host.address}):", flush=True)
    argv = own_argv("nalb.cli.main", "doctor", f"--as-host={host.ip}", *more, python=host.python)
    try:
        done = ask(host, argv, LIMIT_S)
    except OSError as error:
        raise MachineError(f"cannot start ssh ({error.strerror}): install the OpenSSH client") from None
    except subprocess.TimeoutExpired:
        print(_line(Finding("ssh", "FAIL", f"no answer within {LIMIT_S:g} s", "look at the host")))
        return 1
    last = done.stdout.rstrip().rpartition("\n")[2]  # a login may print lines before it
    try:
        findings = msgspec.json.decode(last, type=list[Finding])
    except msgspec.MsgspecError:
        if done.returncode in (InputError.exit_code, MachineError.exit_code):
            why = f"nalb doctor at {host.address} exited with {done.returncode}"
        else:
            why = why_no_answer(host, done.returncode)
        print(_line(Finding("ssh", "FAIL", why, one_line(done.stderr))))
        return 1
    return report([lambda: findings], as_json=False)


def report(table: Iterable[Check], as_json: bool) -> int:
    """Run the checks and print each finding as soon as it is known, or all as JSON. Returns 1 where a check fails, else 0."""
    findings: list[Finding] = []
    for check in table:
        found = check()
        findings += found
        if not as_json:
            print("\n".join(map(_line, found)), flush=True)
    failed = [finding for finding in findings if finding.verdict == "FAIL"]
    names = ", ".join(finding.name for finding in failed)
    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    elif failed and all(finding.is_of_emulation for finding in failed):
        print(f"this machine can run a job, but not yet one in an emulated network: {names}")
    elif failed:
        print(f"this machine cannot run a job yet: {names}")
    else:
        warned = sum(finding.verdict == "warn" for finding in findings)
        print("this machine can run a job" + (f" ({warned} warning{'s' * (warned > 1)})" if warned else ""))
    return 1 if failed else 0


def _line(finding: Finding) -> str:
    advice = f" -> {finding.advice}" if finding.advice else ""
    return f"{finding.verdict:<5}{finding.name:<24}{finding.detail}{advice}"
