"""`python tests/campaigns/fuzz.py TARGET --inputs N --seed S [--guided]`: hostile input for what reads the network or files.

Prints inputs per second and how much memory grew between a tenth of the inputs and the end. A crash shows the input; what takes
longer than HANG_S is a hang; growth beyond `most_growth_mb` is a leak, and the exit code is 1. `shim` compiles the shim's C code
with sanitizers around a scripted libzmq (tests/fuzz/fuzz_shim.c).
--guided: libFuzzer chooses the inputs by the code that they reach, and reports by itself. It needs atheris (extra `fuzz`), for
`shim` clang in its place; `control` (decoded by msgspec's C) and `coordinator` (drawn, not given) have nothing to guide.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.fuzz.targets import TARGETS, steps  # noqa: E402 - the repository is not a package that is installed

HANG_S = 20  # for 1,000 inputs
LEAST_BYTES = 16  # that an allocator hands out: what leaks anything with every input grows by this much for each
NOISE_MB = 8.0  # growth without a leak: caches that fill, and memory that the allocator keeps
SHIM_FLAGS = (
    "-std=c11",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fno-sanitize-recover=all",
    f"-I{ROOT}/kvstore_patch/shim",
)
SHIM_SOURCE = str(ROOT / "tests/fuzz/fuzz_shim.c")
SMALL = {"ASAN_OPTIONS": "quarantine_size_mb=1"}  # what is freed must not look like growth
LONGEST_BYTES = 8192  # of a guided input


def resident_mb() -> float:
    """Of this process."""
    return psutil.Process().memory_info().rss / 1e6


def most_growth_mb(count: int) -> float:
    """The most that memory may grow over so many inputs."""
    return NOISE_MB + LEAST_BYTES * count / 1e6


def fuzz(target: str, count: int, seed: int, folder: Path) -> tuple[str, float]:
    """Run so many inputs; the line to print, and the growth in MB."""
    step, start_s, early_mb = steps(target, seed, folder), time.monotonic(), 0.0
    for number in range(count):
        if number % 1000 == 0:
            signal.alarm(HANG_S)  # its default action ends us
        if number == count // 10:
            early_mb = resident_mb()
        step()
    signal.alarm(0)
    took_s, grew_mb = time.monotonic() - start_s, resident_mb() - early_mb
    return f"{target}: {count} inputs, {count / took_s:.0f}/s, grew {grew_mb:.1f} MB", grew_mb


def build_shim(folder: Path, compiler: str, *flags: str) -> Path:
    """The shim's fuzzer."""
    program = folder / "shim"
    build = [os.environ.get("CC", compiler), *SHIM_FLAGS, *flags, SHIM_SOURCE, "-o", str(program), "-ldl", "-lpthread"]
    subprocess.run(build, check=True)
    return program


def fuzz_shim(count: int, seed: int, folder: Path) -> tuple[str, float]:
    """The same in C."""
    program = build_shim(folder, "gcc", "-fsanitize=address,undefined")
    done = subprocess.run(
        [program, str(count), str(seed)], capture_output=True, text=True, check=False, env=os.environ | SMALL
    )
    if done.returncode:
        raise SystemExit(f"shim: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip(), float(done.stdout.split()[-2])


def fuzz_guided(target: str, count: int, seed: int, folder: Path) -> tuple[str, float]:
    """libFuzzer's own summary, without growth: libFuzzer itself ends a program that takes 2 GB."""
    if target == "shim":
        program = build_shim(folder, "clang", "-DGUIDED", "-fsanitize=fuzzer,address,undefined")
        (folder / "corpus").mkdir()
        run = [str(program), str(folder / "corpus")]
    else:
        run = [sys.executable, "-m", "tests.fuzz.guided", target, str(folder)]
    flags = [f"-runs={count}", f"-seed={seed}", f"-timeout={HANG_S}", f"-max_len={LONGEST_BYTES}", "-len_control=0"]
    start_s = time.monotonic()
    done = subprocess.run(
        [*run, *flags], cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | SMALL, errors="replace"
    )
    summary = [line for line in done.stderr.splitlines() if "cov: " in line]
    if done.returncode or not summary:
        raise SystemExit(f"{target}: exit code {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    per_s = count / (time.monotonic() - start_s)
    return f"{target}, guided: {per_s:.0f}/s; first {summary[0]}; last {summary[-1]}", 0.0


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description="broken and hostile input")
    parser.add_argument("target", choices=(*TARGETS, "shim", "all"))
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--guided", action="store_true", help="by coverage")
    args, leaks = parser.parse_args(), 0
    for target in (*TARGETS, "shim") if args.target == "all" else (args.target,):
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
            how = (
                partial(fuzz_guided, target)
                if args.guided
                else fuzz_shim
                if target == "shim"
                else partial(fuzz, target)
            )
            line, grew_mb = how(args.inputs, args.seed, Path(folder))
        is_leak = grew_mb > (most_mb := most_growth_mb(args.inputs))
        print(line + (f": a leak, since more than {most_mb:.1f} MB" if is_leak else ""), flush=True)
        leaks += is_leak
    return int(leaks > 0)


if __name__ == "__main__":
    sys.exit(main())
