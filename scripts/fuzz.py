"""`python scripts/fuzz.py TARGET --inputs N --seed S`: broken and hostile input for what reads the network or files.

Prints inputs per second and how much memory grew between a tenth of the inputs and the end. A crash shows the input; what takes
longer than HANG_S is a hang. `van` compiles the van's C code with sanitizers around a scripted libzmq (tests/fuzz/fuzz_van.c).
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fuzz.targets import TARGETS, steps  # noqa: E402 - the repository is not a package that is installed

HANG_S = 20  # for 1,000 inputs
VAN_FLAGS = (
    "-std=c11",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)


def resident_mb() -> float:
    """Of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def fuzz(target: str, count: int, seed: int, folder: Path) -> str:
    """Run so many inputs; the line to print."""
    step, start_s, early_mb = steps(target, seed, folder), time.monotonic(), 0.0
    for number in range(count):
        if number % 1000 == 0:
            signal.alarm(HANG_S)  # its default action ends us
        if number == count // 10:
            early_mb = resident_mb()
        step()
    signal.alarm(0)
    took_s = time.monotonic() - start_s
    return f"{target}: {count} inputs, {count / took_s:.0f}/s, grew {resident_mb() - early_mb:.1f} MB"


def fuzz_van(count: int, seed: int) -> str:
    """The same in C."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "van"
        build = [
            "gcc",
            *VAN_FLAGS,
            f"-I{ROOT}/kvstore_patch/van",
            str(ROOT / "tests/fuzz/fuzz_van.c"),
            "-o",
            str(program),
        ]
        environment = {**os.environ, "ASAN_OPTIONS": "quarantine_size_mb=1"}  # what is freed must not look like growth
        subprocess.run([*build, "-ldl", "-lpthread"], check=True)
        done = subprocess.run(
            [program, str(count), str(seed)], capture_output=True, text=True, check=False, env=environment
        )
    if done.returncode:
        raise SystemExit(f"van: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description="broken and hostile input")
    parser.add_argument("target", choices=(*TARGETS, "van", "all"))
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for target in (*TARGETS, "van") if args.target == "all" else (args.target,):
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
            is_van = target == "van"
            print(
                fuzz_van(args.inputs, args.seed) if is_van else fuzz(target, args.inputs, args.seed, Path(folder)),
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
