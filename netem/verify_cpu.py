"""Burns CPU in every node that has a quota, and compares the CPU time that the node gets with its quota.

All nodes burn at once, as in a job, so quotas that this machine cannot give together show. A node burns with as many processes
as its quota has cores, rounded up.
"""

import math
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nalb.errors import MachineError
from nalb.process.exhaustion import explained
from nalb.process.own_program import own_code_argv
from netem.emulation import Emulation
from netem.verify import REPEATS, TOLERANCE

WARM_S = 1.0  # left out: processes start, and a duty cycle finds them and recovers what they have used before
MEASURE_S = 2.0  # with bursts (cgroups.py), 10 periods of the smallest quota and 500 of half a core
DEADLINE_S = 60.0
BURN = """
import sys, time
def burn_until(end_s):
    while time.monotonic() < end_s:
        pass
warm_s, measure_s = map(float, sys.argv[1:])
burn_until(time.monotonic() + warm_s)
start_s, used_s = time.monotonic(), time.process_time()
burn_until(start_s + measure_s)
print((time.process_time() - used_s) / (time.monotonic() - start_s))
"""


@dataclass(frozen=True)
class CpuMeasurement:
    """The CPU time that a node's processes got."""

    node: str
    configured_cores: float
    measured_cores: float  # CPU seconds per second, all burning processes together

    @property
    def deviation(self) -> float:
        """The measured cores divided by the configured ones, minus 1."""
        return self.measured_cores / self.configured_cores - 1

    @property
    def passed(self) -> bool:
        return abs(self.deviation) <= TOLERANCE


def verify_cpu(emulation: Emulation, on_measurement: Callable[[CpuMeasurement], None]) -> list[CpuMeasurement]:
    """Measure every node that has a quota now, and call on_measurement with each result.

    A node whose result is off is measured again alone, up to REPEATS times in all, since a busy machine does not make its quota
    wrong. Raises MachineError if a process that burns CPU cannot start or does not end.
    """
    quotas = {name: quota for name, quota in emulation.cpu_quotas().items() if quota is not None}
    found = measure_cpu(emulation, quotas)
    for name, quota in quotas.items():
        for _ in range(REPEATS - 1):
            if not found[name].passed:
                found |= measure_cpu(emulation, {name: quota})
        on_measurement(found[name])
    return [found[name] for name in quotas]


def measure_cpu(
    emulation: Emulation, quotas: Mapping[str, float], warm_s: float = WARM_S, measure_s: float = MEASURE_S
) -> dict[str, CpuMeasurement]:
    """Burn CPU in the nodes of `quotas`, all at once; return what each got, by name."""
    burn = own_code_argv(BURN, str(warm_s), str(measure_s))
    with explained("the processes that burn CPU"):
        burning = {
            name: [
                subprocess.Popen(emulation.command(name, burn), stdout=subprocess.PIPE, text=True)
                for _ in range(math.ceil(quota))
            ]
            for name, quota in quotas.items()
        }
    return {
        name: CpuMeasurement(name, quota, sum(_cores_of(process, name) for process in burning[name]))
        for name, quota in quotas.items()
    }


def _cores_of(process: "subprocess.Popen[str]", name: str) -> float:
    with process:
        try:
            said, _ = process.communicate(timeout=DEADLINE_S)
            return float(said)
        except (subprocess.TimeoutExpired, ValueError):
            process.kill()
            raise MachineError(
                f"{name}: the measurement does not end: run `nalb net down`, then `nalb doctor`"
            ) from None
