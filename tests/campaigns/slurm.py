"""Runs the recipe of docs/recipes/slurm.md on a real Slurm: one slurmctld, and a slurmd in each node of an emulated network.

Each node has a namespace, an address and a host name of its own. The jobs are submitted by sbatch with the recipe's files: one with
MXNet, one with PyTorch, one that torchrun starts, and one whose second node fails. All that was started or made is removed.

It needs root, MXNet, .venv-torch, and Debian's packages slurm-wlm and munge.
"""

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from nalb.events import IterationEvent, ReadyEvent
from nalb.reporting.run_file import read_events
from netem.emulation import Emulation, network_up
from netem.namespaces import inside_argv
from netem.network_file import parse_network

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "docs/recipes/slurm"
STEPS, TORCH_STEPS = (str(ROOT / "tests/launch" / name) for name in ("steps.py", "torch_steps.py"))
NODES = ("n0", "n1", "n2")
START_LIMIT_S, JOB_LIMIT_S, END_S = 60.0, 240.0, 10.0
NETWORK = 'name = "{name}"\n[defaults]\nup_mbps = 300\ndown_mbps = 300\n' + "".join(
    f'[[nodes]]\nname = "{node}"\n' for node in NODES
)
CONFIG = """
ClusterName=recipe
SlurmctldHost=hub({hub})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
KillWait=10
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def named(host: str, hosts: Path, argv: Sequence[str]) -> list[str]:
    """The command on a host of this name, which knows all hosts of the file `hosts` by name."""
    become = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
    return ["unshare", "--uts", "--mount", "sh", "-c", become, host, str(hosts), *argv]


@dataclass
class Cluster:
    """A Slurm that runs."""

    folder: Path
    hub: list[str]  # before a command: it runs at the hub
    environment: dict[str, str]

    def run(self, *words: str, limit_s: float = JOB_LIMIT_S) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands at the hub."""
        return subprocess.run(
            [*self.hub, *words],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def submit(self, venv: Path, file: Path, *words: str) -> tuple[int, str, Path]:
        """Submit a job on all nodes and wait for its end: its exit code, its output, and the run directory."""
        flags = ["--wait", "--parsable", f"--nodes={len(NODES)}", f"--chdir={self.folder}", "--output=out-%j"]
        done = self.run("env", f"VENV={venv}", "sbatch", *flags, str(file), *words)
        if not (number := done.stdout.strip()):
            raise SystemExit(f"slurm: sbatch failed: {done.stderr}")
        return done.returncode, (self.folder / f"out-{number}").read_text(), self.folder / f"runs/{number}-0"


def start(stack: ExitStack, argv: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start a daemon that ends with the stack."""
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end() -> None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)
    return process


def cluster(stack: ExitStack, emulation: Emulation, folder: Path) -> Cluster:
    """Start munged, slurmctld and each node's slurmd, and wait until all nodes are idle."""
    key, state = folder / "munge.key", folder / "state"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    state.mkdir()
    nodes = "\n".join(f"NodeName={node} NodeAddr={emulation.address(node)} CPUs=1 State=UNKNOWN" for node in NODES)
    (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, hub=emulation.hub_address, nodes=nodes))
    environment = {
        "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        "HOME": str(folder),
        "SLURM_CONF": str(folder / "slurm.conf"),
        "OMP_NUM_THREADS": "1",
    }
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    start(stack, ["munged", "--foreground", "--force", *files, f"--socket={folder}/munge.socket"], environment)
    hosts = folder / "hosts"
    names = {"localhost": "127.0.0.1", "hub": emulation.hub_address} | {node: emulation.address(node) for node in NODES}
    hosts.write_text("".join(f"{address} {name}\n" for name, address in names.items()))
    hub = inside_argv(emulation.hub_namespace(), named("hub", hosts, []))
    daemons = [start(stack, [*hub, "slurmctld", "-D"], environment)]
    for node in NODES:
        (folder / f"spool-{node}").mkdir()
        daemons.append(start(stack, emulation.command(node, named(node, hosts, ["slurmd", "-D"])), environment))
    made, end_s = Cluster(folder, hub, environment), time.monotonic() + START_LIMIT_S
    while made.run("sinfo", "--noheader", "--states=idle", "--format=%D").stdout.strip() != str(len(NODES)):
        if time.monotonic() > end_s or any(one.poll() is not None for one in daemons):
            logs = "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in sorted(folder.glob("*.log")))
            raise SystemExit(f"slurm: the nodes are not idle\n{logs}")
        time.sleep(0.5)
    return made


def main() -> int:
    """Run the jobs and print what each did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    if missing := [name for name in ("munged", "slurmctld", "slurmd") if not shutil.which(name, path="/usr/sbin")]:
        parser.exit(3, f"slurm: there is no {missing[0]} here: apt install slurm-wlm munge\n")
    mxnet_venv, torch_venv = Path(sys.prefix), ROOT / ".venv-torch"
    failures = 0

    def check(what: str, holds: bool, output: str) -> None:
        nonlocal failures
        failures += not holds
        print(f"{'ok  ' if holds else 'FAIL'} {what}" + ("" if holds else f"\n{output}"), flush=True)

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        emulation = stack.enter_context(
            network_up(parse_network(NETWORK.format(name=f"sl{os.getpid() % 10**6}"), "slurm"))
        )
        slurm = cluster(stack, emulation, folder)
        whole = {f"{node} worker" for node in NODES}
        for what, venv, words, last in (
            ("MXNet", mxnet_venv, ("python", STEPS, "--steps", "30"), "last step"),
            ("PyTorch", torch_venv, ("python", TORCH_STEPS, "12"), "step 11"),
        ):
            code, output, run_dir = slurm.submit(venv, RECIPE / "job.sbatch", *words)
            ended = {line[1:].partition("]")[0] for line in output.splitlines() if line.endswith(last)}
            check(
                f"{what}: all {len(NODES)} nodes trained, and the job ended well", (code, ended) == (0, whole), output
            )
            events = list(read_events(run_dir))
            met = next((set(one.nodes) for one in events if isinstance(one, ReadyEvent)), set())
            iterations = sum(isinstance(one, IterationEvent) for one in events)
            check(
                f"{what}: node 0 has the record, of {iterations} iterations", met == set(NODES) and iterations > 3, ""
            )
        code, output, _ = slurm.submit(torch_venv, RECIPE / "torchrun.sbatch", TORCH_STEPS, "12")
        check("torchrun: all ranks trained", (code, output.count("parameters")) == (0, len(NODES)), output)
        code, output, _ = slurm.submit(
            mxnet_venv, RECIPE / "job.sbatch", "python", STEPS, "--fault", "exit-3", "--node", "n1"
        )
        check(
            "a node that fails ends the job, which says which",
            code != 0 and output.count("worker n1") >= len(NODES),
            output,
        )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
