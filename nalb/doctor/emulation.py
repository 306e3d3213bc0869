"""Checks what an emulated network needs: the right to make namespaces, namespaces, qdiscs, a congestion control, and a mechanism
for the CPU quotas of its nodes.

A child process tries everything. Where this process is not root, the child becomes root in a user namespace of its own, just as
`nalb compare` does. The child removes what it makes; in the user namespace that would vanish with the child anyway.
"""

import json
import os
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from nalb.doctor.finding import Finding, Verdict, one_line
from nalb.doctor.software import Ask, ask, child_environment
from nalb.errors import MachineError
from nalb.process.own_program import own_code_argv
from netem.rootless import REMEDY

QDISCS = ("tbf", "htb", "bfifo")
PROBE = "from nalb.doctor.emulation import probe; probe()"
SYSCTL = Path("/proc/sys/net/ipv4")
EmulationFinding = partial(Finding, is_of_emulation=True)


def probe() -> None:
    """Try everything, in the child, and print as JSON each try's complaint by name; null where the try worked."""
    from netem import build, cgroups, delay_line, namespaces, qdiscs, rootless

    rootless.ensure_privilege()
    name = f"{namespaces.PREFIX}doctor{secrets.token_hex(8)}"  # not the pid, which another PID namespace may have too

    def namespace() -> None:
        namespaces.require_tool()
        try:
            namespaces.create(name)
            namespaces.inside(name, build.disable_ipv6)
            namespaces.inside(name, build.disable_bridge_filter)
        finally:
            namespaces.remove([name])

    tries: dict[str, Callable[[], None]] = {"namespace": namespace}
    tries |= {kind: lambda kind=kind: qdiscs.require((kind,)) for kind in QDISCS}  # type: ignore[misc]
    tries["delay line"] = lambda: namespaces.inside_scratch(delay_line.require)
    hierarchy, why_not = cgroups.usable()
    found = {what: _complaint(attempt) for what, attempt in tries.items()}
    print(json.dumps(found | {"cgroup": hierarchy and hierarchy.label, "no cgroup": why_not}))


def _complaint(attempt: Callable[[], None]) -> str | None:
    try:
        attempt()
    except (MachineError, OSError) as error:
        return str(error)
    return None


def check_emulation(
    needed: bool, privileged: bool, run: Ask = ask, environ: Mapping[str, str] = os.environ
) -> list[Finding]:
    """Check rights, namespaces, qdiscs and CPU quotas. Where no emulated network is `needed`, a lack is a warning."""
    worst: Verdict = "FAIL" if needed else "warn"
    code, out, err = run(own_code_argv(PROBE), child_environment(environ))
    if code != 0:
        detail, advice = _split(one_line(err, 600))
        return [EmulationFinding("right to make networks", worst, detail, advice)]
    found = json.loads(out)
    right = "root" if privileged else "none of its own, but user namespaces work (`nalb net up` alone needs root)"
    findings = [EmulationFinding("right to make networks", "ok", right)]
    if complaint := found["namespace"]:
        findings.append(EmulationFinding("network namespaces", worst, *_split(complaint)))
    else:
        findings.append(EmulationFinding("network namespaces", "ok", "one was made, entered and removed"))
    missing = [kind for kind in QDISCS if found[kind]]
    if missing:
        findings.append(EmulationFinding("traffic shaping", worst, *_split(found[missing[0]])))
    else:
        findings.append(EmulationFinding("traffic shaping", "ok", "qdiscs tbf, htb and bfifo work"))
    if complaint := found["delay line"]:
        detail, advice = _split(complaint)
        detail = f"{detail}: networks with delay or loss cannot be built, all others can"
        findings.append(EmulationFinding("delay and loss", "warn", detail, advice))
    else:
        findings.append(EmulationFinding("delay and loss", "ok", "nalb's delay line works"))
    if found["cgroup"]:
        findings.append(EmulationFinding("CPU quotas of nodes", "ok", found["cgroup"]))
    else:
        detail = f"no group can be made and limited ({found['no cgroup']}): a duty cycle of SIGSTOP and SIGCONT does it"
        advice = "run as root where the cpu controller's hierarchy is writable, for quotas in finer pieces"
        findings.append(EmulationFinding("CPU quotas of nodes", "warn", detail, advice))
    return findings


def _split(complaint: str) -> tuple[str, str]:
    """Split an error's text into (what is wrong, what to do): the remedy stands last, after a colon."""
    text = complaint.removeprefix("nalb.errors.MachineError: ")
    if text.endswith(REMEDY):
        return text.removesuffix(REMEDY).rstrip(": "), REMEDY
    detail, _, advice = text.rpartition(": ")
    return (detail, advice) if detail else (text, "run as root on a kernel with network namespaces")


def check_congestion_control(needed: bool, sysctl: Path = SYSCTL) -> list[Finding]:
    """Check that emulated networks can use cubic (or reno), and what plain jobs use."""
    name = "congestion control"
    try:
        available = (sysctl / "tcp_available_congestion_control").read_text(encoding="ascii").split()
        default = (sysctl / "tcp_congestion_control").read_text(encoding="ascii").strip()
    except OSError as error:
        return [Finding(name, "warn", f"cannot be read ({error.strerror})", "look at sysctl net.ipv4")]
    if "cubic" not in available:
        verdict: Verdict = "FAIL" if needed and "reno" not in available else "warn"
        detail = f"no cubic, only {', '.join(available)}: emulated networks use reno where they can"
        return [EmulationFinding(name, verdict, detail, "load tcp_cubic")]
    if default.startswith("bbr"):
        detail = (
            f"cubic is there; the default is {default}, which drops many packets on a link shaped by a token bucket"
        )
        advice = (
            "nothing for emulated networks, which use cubic unless their file names another; on shaped links between hosts"
            " that are near each other make it cubic"
        )
        return [Finding(name, "warn", detail, advice)]
    return [Finding(name, "ok", f"cubic is there, the default is {default}")]
