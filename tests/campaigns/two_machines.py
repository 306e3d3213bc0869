"""Follows docs/recipes/two-machines.md on two machines of an emulated network, command by command, as the page has them.

Each machine has a network namespace, a host name, a home at /root and an sshd of its own. The set-up of section 1 is replaced by a
link to this environment, and `ssh-copy-id`, which asks for a password, by copying the key and ssh-keyscan. All that was made is
removed.

It needs root, MXNet, and Debian's openssh-server and dataset-fashion-mnist.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from netem.emulation import Emulation, network_up
from netem.network_file import parse_network

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/recipes/two-machines.md"
MACHINES = {"192.0.2.10": "n0", "192.0.2.11": "n1"}  # the page's addresses
NETWORK = 'name = "{}"\n[defaults]\nup_mbps = 200\ndown_mbps = 200\n' + "".join(
    f'[[nodes]]\nname = "{node}"\n' for node in MACHINES.values()
)
SSHD, HOME = "/usr/sbin/sshd", Path("/root")
SSHD_CONFIG = "HostKey {key}\nPidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin prohibit-password\n"
LIMIT_S = 240.0
REPLACED = ("sudo apt", "python3.11 -m venv", "~/venv/bin/pip", "ssh-copy-id")


def commands() -> Iterator[tuple[str, str]]:
    """(heading, command) of the page, in order."""
    heading = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif re.match(r" {4}\S", line):
            yield heading, line.strip()


class Machine:
    """A machine of the network: a command runs there with a host name and a home of its own."""

    def __init__(self, emulation: Emulation, node: str, home: Path):
        self._emulation, self._node, self._home = emulation, node, home
        (home / ".ssh").mkdir(mode=0o700, parents=True)
        (home / "venv").symlink_to(sys.prefix)
        (home / "nalb").symlink_to(ROOT)
        self._kept = [path for path in {sys.base_prefix, sys.prefix, str(ROOT)} if Path(path).is_relative_to(HOME)]
        for path in self._kept:
            (home / Path(path).relative_to(HOME)).mkdir(parents=True)

    def argv(self, command: str) -> list[str]:
        """The command line, run by bash at the machine's home."""
        mounts = [f"mount --bind {path} {self._home / Path(path).relative_to(HOME)}" for path in self._kept]
        mounts += [f"mount --rbind {self._home} {HOME}"]
        become = " && ".join([f"hostname {self._node}", *mounts, f"cd {HOME}", 'exec bash -c "$0"'])
        return self._emulation.command(self._node, ["unshare", "--uts", "--mount", "sh", "-c", become, command])


def main() -> int:
    """Follow the page; returns 1 where a command fails."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    failures = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        emulation = stack.enter_context(network_up(parse_network(NETWORK.format(f"tm{os.getpid() % 10**6}"), "two")))
        machines = {node: Machine(emulation, node, folder / node) for node in MACHINES.values()}
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "host_key"], check=True)
        (folder / "sshd_config").write_text(SSHD_CONFIG.format(key=folder / "host_key"))
        for machine in machines.values():
            daemon = subprocess.Popen(
                machine.argv(f"exec {SSHD} -D -f {folder / 'sshd_config'} -E {folder / 'sshd.log'}")
            )
            stack.callback(daemon.wait)
            stack.callback(daemon.terminate)
        time.sleep(1.0)

        def run(node: str, command: str) -> "subprocess.Popen[str]":
            environment = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ} | {
                "OMP_NUM_THREADS": "1"
            }
            return subprocess.Popen(
                machines[node].argv(command),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )

        def end(command: str, process: "subprocess.Popen[str]") -> None:
            nonlocal failures
            output, _ = process.communicate(timeout=LIMIT_S)
            failures += process.returncode != 0
            print(f"{'ok  ' if process.returncode == 0 else 'FAIL'} {command}", flush=True)
            print("\n".join(f"     {line}" for line in output.splitlines()[-6:]), flush=True)

        together: list[tuple[str, subprocess.Popen[str]]] = []
        stays = ""  # cd and the environment, which last to the end of the page
        for heading, command in commands():
            if command.startswith("ssh-copy-id"):
                (address,) = (one for one in MACHINES if one in command)
                shutil.copy(folder / "n0/.ssh/nalb.pub", folder / MACHINES[address] / ".ssh/authorized_keys")
                scan = f"ssh-keyscan {emulation.address(MACHINES[address])} >> ~/.ssh/known_hosts"
                end(scan, run("n0", scan))
            if command.endswith("~/job/hosts.toml"):  # and "put your addresses there"
                command += "".join(f" && sed -i s/{told}/{{{told}}}/ ~/job/hosts.toml" for told in MACHINES)
                for told, name in MACHINES.items():
                    command = command.replace(f"{{{told}}}", emulation.address(name))
            else:
                for told, name in MACHINES.items():
                    command = command.replace(told, emulation.address(name))
            if command.startswith(REPLACED):
                print(f"left {command}", flush=True)
            elif heading.startswith("1."):
                for node in machines:
                    end(f"{node}: {command}", run(node, command))
            elif command.startswith(("cd ", ". ")):
                stays += f"{command} && "
            elif "--rank" in command:  # one line on each machine
                node = "n0" if "--rank 0" in command else "n1"
                together.append((f"{node}: {command}", run(node, stays + command)))
            else:
                end(command, run("n0", stays + command))
        for command, process in together:
            end(command, process)
    print(f"{failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
