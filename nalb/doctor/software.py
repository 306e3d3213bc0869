"""Checks what is installed: Python, numpy, MXNet, the shim, the libzmq of pyzmq, PyTorch, ssh, the dataset.

MXNet, PyTorch and preloaded libraries are tried in processes of their own: this process never imports a framework, and LD_PRELOAD
acts only when a process starts.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import kvstore_patch.shim as shim
from nalb.doctor.finding import Finding, Verdict, one_line
from nalb.errors import MachineError
from nalb.extras import PYTHON_OF_MXNET, how_to_install
from nalb.process.own_program import own_code_argv, python_path

NUMPY = (1, 23)  # the newest that mxnet 1.9.1 imports with
MXNET = "1.9.1"
TORCH = (2, 5)  # the first that knows the entry points of backends
DEADLINE_S = 60.0  # importing mxnet takes 2 to 10 s on a cold disk
DATASET = Path("/usr/share/datasets/fashion-mnist")  # Debian package dataset-fashion-mnist
DATASET_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
IMPORT_MXNET = "import mxnet; print(mxnet.__version__, mxnet.runtime.Features().is_enabled('DIST_KVSTORE'))"
IMPORT_TORCH = (
    "import torch, torch.distributed as d; gloo = d.is_available() and d.is_gloo_available(); "
    "print(torch.__version__, gloo, gloo and hasattr(d.Backend, 'NALB'), torch.cuda.device_count())"
)
ASK_SHIM = "from kvstore_patch.shim import Shim; Shim.loaded()"

Ask = Callable[[Sequence[str], Mapping[str, str]], tuple[int, str, str]]


def ask(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a process; return (exit code, stdout, stderr). The code is -1 if it cannot start, or does not end within DEADLINE_S."""
    try:
        done = subprocess.run(
            argv, env=dict(environ), capture_output=True, text=True, errors="replace", timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, "", f"no answer within {DEADLINE_S:g} s"
    except OSError as error:
        return -1, "", f"{argv[0]}: {error.strerror}"
    return done.returncode, done.stdout, done.stderr


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a child finds these packages and takes no part in a job."""
    kept = {name: value for name, value in environ.items() if not name.startswith(("DMLC_", "NALB_"))}
    return {**kept, "PYTHONPATH": python_path(environ.get("PYTHONPATH", ""))}


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> list[Finding]:
    """Check that this is the one Python on which jobs with MXNet run."""
    found, needed = (".".join(map(str, one)) for one in (version, PYTHON_OF_MXNET))
    if version == PYTHON_OF_MXNET:
        return [Finding("Python", "ok", found)]
    detail = f"{found}: nalb plans, simulates, emulates and reports here, but jobs with MXNet need {needed}"
    return [Finding("Python", "FAIL", detail, f"make an environment with python{needed}")]


def check_numpy(version_of: Callable[[str], str] = importlib.metadata.version) -> list[Finding]:
    """Check that mxnet can be imported with the installed numpy, by its version."""
    advice = "pip install 'numpy>=1.23,<1.24'"
    try:
        version = version_of("numpy")
    except importlib.metadata.PackageNotFoundError:
        return [Finding("numpy", "FAIL", "not installed", advice)]
    try:
        version_of("mxnet")
        is_good = version.split(".")[:2] == [str(part) for part in NUMPY]
    except importlib.metadata.PackageNotFoundError:
        is_good = True
    if is_good:
        return [Finding("numpy", "ok", version)]
    return [Finding("numpy", "FAIL", f"{version} where 1.23 is needed: mxnet {MXNET} does not import with it", advice)]


def check_mxnet(run: Ask = ask, environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Check that the stock wheel can be imported, and can train over several machines."""
    code, out, err = run(own_code_argv(IMPORT_MXNET), child_environment(environ))
    advice = f"{how_to_install('mxnet')}; its libraries also need libgomp1 and libquadmath0 from Debian"
    if code != 0:
        return [Finding("MXNet", "FAIL", f"cannot be imported: {one_line(err)}", advice)]
    version, _, distributed = one_line(out).partition(" ")
    if version != MXNET:
        return [Finding("MXNet", "FAIL", f"{version} where {MXNET} is needed", advice)]
    if distributed != "True":
        advice = f"this build cannot train over several machines: pip install mxnet=={MXNET} from PyPI"
        return [Finding("MXNet", "FAIL", f"{version} without DIST_KVSTORE", advice)]
    return [Finding("MXNet", "ok", f"{version} with DIST_KVSTORE")]


def check_torch(
    run: Ask = ask,
    environ: Mapping[str, str] = os.environ,
    is_there: Callable[[], bool] = lambda: importlib.util.find_spec("torch") is not None,
) -> list[Finding]:
    """Check that PyTorch, if there is one, can be imported, has gloo, and knows the backend nalb."""
    if not is_there():
        return [Finding("PyTorch", "ok", "not installed, as only jobs with PyTorch need it")]
    code, out, err = run(own_code_argv(IMPORT_TORCH), child_environment(environ))
    if code != 0:
        return [Finding("PyTorch", "FAIL", f"cannot be imported: {one_line(err)}", "pip install torch")]
    version, gloo, backend, gpus = one_line(out).split()
    if tuple(int(part) for part in version.split(".")[:2]) < TORCH:
        needed = ".".join(map(str, TORCH))
        return [Finding("PyTorch", "FAIL", f"{version} where {needed} or later is needed", "pip install -U torch")]
    if gloo != "True":
        return [
            Finding("PyTorch", "FAIL", f"{version} without gloo", "install a build for Linux with torch.distributed")
        ]
    if backend != "True":
        advice = "pip install nalb there, unset TORCH_DEVICE_BACKEND_AUTOLOAD, or import nalb.torch in scripts"
        return [Finding("PyTorch", "warn", f"{version} does not know the backend nalb", advice)]
    return [Finding("PyTorch", "ok", f"{version} with gloo and the backend nalb; it sees {gpus} GPUs")]


def check_shim(run: Ask = ask, environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Check that the shim is built, with each transport, and that a process started with it finds it in place, of the right ABI."""
    return [
        _preloaded("shim", "mxnet", "FAIL", run, environ),
        _preloaded("transport pyzmq", "pyzmq", "warn", run, environ),  # only jobs that ask for it need it
    ]


def _preloaded(name: str, transport: str, otherwise: Verdict, run: Ask, environ: Mapping[str, str]) -> Finding:
    try:
        preload = shim.preload_environment(environ, transport)
        library = shim.pyzmq_library_path() if transport == "pyzmq" else shim.library_path()
    except MachineError as error:
        detail, _, advice = str(error).rpartition(": ")
        return Finding(name, otherwise, detail or str(error), advice)
    code, _, err = run(own_code_argv(ASK_SHIM), {**child_environment(environ), **preload})
    if code != 0:
        advice = "reinstall nalb where there is a C compiler (pip install .), and unset LD_PRELOAD"
        return Finding(name, otherwise, f"{library.name} cannot be preloaded: {one_line(err)}", advice)
    if transport == "pyzmq":
        return Finding(name, "ok", f"{library.name} loads under the shim (for --transport pyzmq)")
    return Finding(name, "ok", f"{library.name} loads, ABI {shim.ABI}")


def check_ssh(needed: bool, which: Callable[[str], str | None] = shutil.which) -> list[Finding]:
    """Check for an ssh client, which only --hosts uses."""
    if which("ssh"):
        return [Finding("ssh client", "ok", "found, for --hosts")]
    advice = "apt-get install openssh-client"
    return [Finding("ssh client", "FAIL" if needed else "warn", "none: --hosts cannot be used", advice)]


def check_dataset(folder: Path = DATASET) -> list[Finding]:
    """Check for the images that the example trains on."""
    missing = [name for name in DATASET_FILES if not any((folder / f"{name}{end}").exists() for end in ("", ".gz"))]
    if not missing:
        return [Finding("Fashion-MNIST", "ok", str(folder))]
    detail = f"{len(missing)} of {len(DATASET_FILES)} files missing in {folder}: the training example cannot run"
    return [Finding("Fashion-MNIST", "warn", detail, "apt-get install dataset-fashion-mnist (Debian)")]
