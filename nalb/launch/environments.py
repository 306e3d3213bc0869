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
from nalb.process.own_program import own_argv
from netem.emulation import Emulation


def env_line(environment: Mapping[str, str], argv: Sequence[str]) -> str:
    """A line for any POSIX shell that runs `argv` with these variables added to its environment."""
    variables = [f"{name}={value}" for name, value in sorted(environment.items())]
    return f"{shlex.join(['env', *variables])} {' '.join([quote(argv[0]), *map(shlex.quote, argv[1:])])}"


def local_lines(specs: Iterable[ProcessSpec], inherited: Mapping[str, str]) -> list[str]:
    """The lines for a job on loopback: a comment and a command for each process, all to be started on this machine."""
    lines = ["# Start every process on this machine; any order will do."]
    for spec in specs:
        environment = spec.environment | machine_environment(spec.environment, inherited)
        lines += [f"# {spec.name}", env_line(environment, spec.argv)]
    return lines


def network_lines(emulation: Emulation, specs: Iterable[ProcessSpec], inherited: Mapping[str, str]) -> list[str]:
    """The lines for a job in an emulated network that `nalb net up` has left standing."""
    lines = [f"# Start every process on this machine, as root, after `nalb net up` of {emulation.network.name}."]
    for spec in specs:
        environment = spec.environment | machine_environment(spec.environment, inherited)
        lines += [
            f"# {spec.name} in namespace {emulation.namespace(spec.node)}",
            env_line(environment, emulation.command(spec.node, spec.argv)),
        ]
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
