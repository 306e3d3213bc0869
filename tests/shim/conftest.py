"""Builds the shim with its C scenarios, plain and under sanitizers, and runs one scenario in one process."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvstore_patch.shim import Sample, library_path, pyzmq_library_path

SOURCES = Path(__file__).parent / "c"
SHIM = Path(__file__).parents[2] / "kvstore_patch" / "shim"
STRICT = ("-std=c11", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", f"-I{SHIM}")
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
SCENARIO_LIMIT_S = 60.0


@dataclass
class Outcome:
    """What one scenario printed."""

    lines: list[str] = field(default_factory=list)  # what the scenario itself saw
    counters: dict[str, int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    self_id: int = -1
    transport: str = ""


@dataclass(frozen=True)
class Build:
    """The shim and its callers, compiled alike."""

    shim: Path
    folder: Path
    preload_first: tuple[str, ...] = ()

    def run(self, scenario: str, caller: str = "libdriver.so", **extra: str) -> Outcome:
        """Run one scenario under the shim in a process of its own; fails on any sanitizer report."""
        environment = {
            "PATH": os.environ["PATH"],
            "LD_PRELOAD": " ".join((*self.preload_first, str(self.shim))),
            "NALB_SHIM_CALLER": caller,
            **extra,
        }
        done = subprocess.run(
            [self.folder / "launcher", self.folder / caller, scenario],
            env=environment,
            capture_output=True,
            text=True,
            timeout=SCENARIO_LIMIT_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        outcome = Outcome()
        for line in done.stdout.splitlines():
            match line.split(" "):
                case ["counter", name, value]:
                    outcome.counters[name] = int(value)
                case ["sample", *numbers]:
                    outcome.samples.append(Sample(*map(int, numbers)))
                case ["self", value]:
                    outcome.self_id = int(value)
                case ["transport", path]:
                    outcome.transport = path
                case _:
                    outcome.lines.append(line)
        return outcome


def compile_c(output: Path, *arguments: object) -> None:
    """Run the C compiler; its complaint is the test's failure."""
    done = subprocess.run(
        ["gcc", *STRICT, *map(str, arguments), "-o", str(output)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def compile_callers(folder: Path, *flags: str) -> None:
    """The launcher, the caller on the real libzmq, and the caller that carries a scripted one."""
    libzmq = pyzmq_library_path()
    compile_c(folder / "launcher", *flags, SOURCES / "launcher.c")
    compile_c(
        folder / "libdriver.so",
        *flags,
        "-shared",
        SOURCES / "driver.c",
        libzmq,
        f"-Wl,-rpath,{libzmq.parent}",
        "-pthread",
    )
    compile_c(folder / "libcarrier.so", *flags, "-O0", "-fno-strict-aliasing", "-shared", SOURCES / "carrier.c")


def require_compiler() -> None:
    """Skip where there is no gcc."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc: the shim's C scenarios cannot be built")


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The installed shim under scenarios without sanitizers."""
    require_compiler()
    folder = tmp_path_factory.mktemp("shim-plain")
    compile_callers(folder, "-O2")
    return Build(library_path(), folder)


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Shim and scenarios with AddressSanitizer (leaks too) and UndefinedBehaviorSanitizer."""
    require_compiler()
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    libasan = runtime.stdout.strip()
    if not Path(libasan).is_absolute():
        pytest.skip("gcc has no AddressSanitizer runtime")
    folder = tmp_path_factory.mktemp("shim-sanitized")
    compile_callers(folder, "-O1", *SANITIZE)
    compile_c(folder / "shim.so", "-O1", *SANITIZE, "-fvisibility=hidden", "-shared", SHIM / "shim.c")
    return Build(folder / "shim.so", folder, (libasan,))


@pytest.fixture(params=["plain", "sanitized"])
def build(request: pytest.FixtureRequest) -> Build:
    """Each scenario once as installed and once under sanitizers."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def python_under_shim():
    """Run Python code in a process that has the shim preloaded; returns its standard output."""

    def run(code: str, **extra: str) -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(SHIM.parents[1]),
            "LD_PRELOAD": str(library_path()),
        }
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env=environment | extra,
            capture_output=True,
            text=True,
            timeout=SCENARIO_LIMIT_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run
