"""Burns CPU in every node that has a quota, and holds the CPU time that it gets against what was configured.

All nodes burn at once, as in a job, so quotas that this machine cannot give together show. As many processes burn in a node
as its quota has cores, begun or whole.
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

WARM_S = 1.0  # discarded: starting, and what a node has used before it is noticed or has to pay back
MEASURE_S = 2.0  # 20 periods of the smallest quota, 1,000 of half a core
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
    """What a node's processes got."""

    node: str
    configured_cores: float
    measured_cores: float  # CPU seconds per second, all burning processes together

    @property
    def deviation(self) -> float:
        """Measured over configured, less one."""
        return self.measured_cores / self.configured_cores - 1

    @property
    def passed(self) -> bool:
        return abs(self.deviation) <= TOLERANCE


def verify_cpu(emulation: Emulation, on_measurement: Callable[[CpuMeasurement], None]) -> list[CpuMeasurement]:
    """Measure every node that has a quota now; on_measurement is called with each. Raises MachineError where none burns.

    A node that is off is measured again by itself, up to REPEATS times in all: a busy machine is not a wrong quota.
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
    """Burn in the nodes named, all at once."""
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
