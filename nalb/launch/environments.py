"""The output of `nalb launch --print-env`: each process of a job as a shell line, to start by Slurm, Kubernetes, MPI or by hand.

Each line is complete: `env NAME=VALUE... COMMAND`. On loopback and in namespaces the line has this machine's paths. For
hosts the line starts `nalb.launch.machine_env`, which finds the host's own paths and then becomes the command.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence

from nalb.launch.hosts import HostsFile
from nalb.launch.machine_env import machine_environment
from nalb.launch.roles import ProcessSpec
from nalb.launch.ssh import quote
from nalb.process.guardian import VARIABLE
from nalb.process.own_program import own_argv
from netem.emulation import Emulation


def env_line(environment: Mapping[str, str], argv: Sequence[str]) -> str:
    """A line for any POSIX shell that runs `argv` with these variables added to its environment, and without a launcher's mark."""
    variables = [f"{name}={value}" for name, value in sorted(environment.items())]
    return (
        f"{shlex.join(['env', '-u', VARIABLE, *variables])} {' '.join([quote(argv[0]), *map(shlex.quote, argv[1:])])}"
    )


def local_lines(
    specs: Iterable[ProcessSpec], inherited: Mapping[str, str], emulation: Emulation | None = None
) -> list[str]:
    """The lines for a job on this machine: a comment and a command for each process.

    emulation: the emulated network of the job, which `nalb net up` has left standing; None: the job is on loopback.
    """
    up = f", as root, after `nalb net up` of {emulation.network.name}." if emulation else "; any order will do."
    lines = [f"# Start every process on this machine{up}"]
    for spec in specs:
        environment = spec.environment | machine_environment(spec.environment, inherited)
        where = f" in namespace {emulation.namespace(spec.node)}" if emulation else ""
        argv = emulation.command(spec.node, spec.argv) if emulation else spec.argv
        lines += [f"# {spec.name}{where}", env_line(environment, argv)]
    return lines


def hosts_lines(hosts: HostsFile, specs: Iterable[ProcessSpec]) -> list[str]:
    """The lines for a job on hosts: the comment above each command names the host on which to start it."""
    lines = ["# Start every process on its host, where nalb is installed for the python named; any order will do."]
    for spec in specs:
        host = hosts.host(spec.node)
        where = f", in {host.directory}" if host.directory else ""
        argv = own_argv("nalb.launch.machine_env", *spec.argv, python=host.python)
        lines += [f"# {spec.name} on {host.address}{where}", env_line(spec.environment, argv)]
    return lines
