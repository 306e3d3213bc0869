"""The sdist and the wheel, built from the tracked files alone, and fresh environments that the wheel is installed in.

One has no MXNet and the newest numpy that there is, the other MXNet and the numpy that it needs.

pip takes what nalb depends on from the package index of this machine.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from nalb import __version__
from nalb.toml_file import parse

ROOT = Path(__file__).parents[1]
PACKAGES = ("nalb", "netem", "kvstore_patch")
CARRIED = (".py", ".toml", ".trace", ".json", ".html", ".typed")  # what runs, and what type checkers look for
SOURCES = (".c", ".h")
BUILD_BACKEND = "scripts/build_backend.py"
ROOMS = (
    "feedback",
    "measurement",
    "tokens",
)  # whose tests are quick; scripts/test.sh runs all of them with a current numpy
MACHINE_PATH = re.compile(rb"(?<![\w.])/(root|home|work)/\w")

pytestmark = pytest.mark.jobs


def said(*argv: str | Path, cwd: Path) -> str:
    """Run outside the repository's own Python path; what it prints, or a failure with all that it said."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def failed(code: int, *argv: str | Path, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """What a command says that ends with this code."""
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files as they are now, without what an earlier build left beside them."""
    copy = tmp_path_factory.mktemp("tracked") / "nalb"
    for name in said("git", "ls-files", cwd=ROOT).splitlines():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def built(tracked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sdist and of the wheel, which is built from the sdist."""
    folder = tmp_path_factory.mktemp("built")
    said(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, cwd=tracked)
    return folder


@pytest.fixture(scope="module")
def contents(built: Path) -> dict[str, dict[str, bytes]]:
    """kind of archive -> path within -> content."""
    sdist, wheel = built / f"nalb-{__version__}.tar.gz", next(built.glob(f"nalb-{__version__}-cp311-*.whl"))
    with tarfile.open(sdist) as tar:
        files = {member.name.partition("/")[2]: tar.extractfile(member) for member in tar if member.isfile()}
        from_sdist = {name: file.read() for name, file in files.items() if file is not None}
    with zipfile.ZipFile(wheel) as zipped:
        return {"sdist": from_sdist, "wheel": {name: zipped.read(name) for name in zipped.namelist()}}


def test_both_carry_all_files_of_the_packages(tracked: Path, contents: dict[str, dict[str, bytes]]) -> None:
    of_packages = [path for package in PACKAGES for path in (tracked / package).rglob("*") if path.is_file()]
    names = {str(path.relative_to(tracked)) for path in of_packages}
    assert {Path(name).suffix for name in names} == {*CARRIED, *SOURCES}, "a new kind of file: say who carries it"
    assert not names - contents["sdist"].keys()
    assert not {name for name in names if name.endswith(CARRIED)} - contents["wheel"].keys()
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= contents["sdist"].keys()
    assert f"nalb-{__version__}.dist-info/licenses/LICENSE" in contents["wheel"]


@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_neither_carries_tests_or_a_path_of_this_machine(kind: str, contents: dict[str, dict[str, bytes]]) -> None:
    for name, content in contents[kind].items():
        is_others = name.startswith(("tests/", "docs/", "benchmarks/", "scripts/", ".ci/", "build/"))
        assert not is_others or name == BUILD_BACKEND, name
        assert not MACHINE_PATH.search(content), name
        assert b"/build-via-sdist" not in content, f"{name} says where it was built"


def test_python_starts_with_what_names_the_store(
    contents: dict[str, dict[str, bytes]], tracked: Path, tmp_path: Path
) -> None:
    """nalb.pth lies where site-packages will be, and pip knows that it is nalb's: also of `pip install -e`."""
    assert BUILD_BACKEND in contents["sdist"]
    assert BUILD_BACKEND not in contents["wheel"]
    build = "import sys; sys.path.insert(0, 'scripts'); import build_backend; "
    build += f"print(build_backend.build_editable({str(tmp_path)!r}))"
    editable = tmp_path / said(sys.executable, "-c", build, cwd=tracked).splitlines()[-1]
    with zipfile.ZipFile(editable) as zipped:
        wheels = [contents["wheel"], {name: zipped.read(name) for name in zipped.namelist()}]
    for wheel in wheels:
        assert b"kvstore_patch.after_mxnet" in wheel["nalb.pth"]
        digest = base64.urlsafe_b64encode(hashlib.sha256(wheel["nalb.pth"]).digest()).rstrip(b"=")
        record = wheel[f"nalb-{__version__}.dist-info/RECORD"].splitlines()
        assert b"nalb.pth,sha256=%s,%d" % (digest, len(wheel["nalb.pth"])) in record


def test_the_changelog_names_the_version() -> None:
    assert f"\n## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def environment(folder: Path, built: Path, extra: str, *more: str) -> Path:
    """bin/ of a fresh environment that has the wheel, what it and its extra ask for, and more."""
    venv.create(folder, with_pip=True)
    wheel = f"{next(built.glob('*.whl'))}[{extra}]"
    said(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile", wheel, *more, cwd=folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def bare(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of an environment without MXNet, in which the tests of the pure rooms can run."""
    return environment(tmp_path_factory.mktemp("bare"), built, "arima", "pytest", "hypothesis")


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of an environment with MXNet."""
    return environment(tmp_path_factory.mktemp("installed"), built, "mxnet")


def test_without_mxnet_all_works_but_its_jobs(bare: Path, tmp_path: Path) -> None:
    ask = "import importlib.util, numpy; print(numpy.__version__, importlib.util.find_spec('mxnet'))"
    version, mxnet = said(bare / "python", "-c", ask, cwd=tmp_path).split()
    assert (int(version.partition(".")[0]) >= 2, mxnet) == (True, "None")
    nalb = bare / "nalb"
    assert said(nalb, "--version", cwd=tmp_path) == f"nalb {__version__}\n"
    text = said(nalb, "net", "random", "--family", "even", "--nodes", "3", "--seed", "1", cwd=tmp_path)
    assert len(parse(text, "what it printed")["nodes"]) == 3
    numbers = ("--capacities-mbps", "200,100,50", "--model-bytes", "9e6")
    assert "n2" in said(nalb, "plan", *numbers, "--explain", cwd=tmp_path)
    (tmp_path / "random.toml").write_text(text)
    schemes = ("--replay", "mobilenet", "--schemes", "average,exact")
    assert "exact" in said(nalb, "simulate", "--network", "random.toml", *schemes, cwd=tmp_path)
    (tmp_path / "run").mkdir()
    shutil.copy(ROOT / "docs" / "results" / "data" / "family-even.json", tmp_path / "run" / "run.json")
    said(nalb, "report", "run", cwd=tmp_path)
    assert (tmp_path / "run" / "report.html").exists()
    told = json.loads(failed(1, nalb, "doctor", "--json", cwd=tmp_path).stdout)
    assert {one["verdict"] for one in told if one["name"] == "MXNet"} == {"FAIL"}
    assert {one["verdict"] for one in told if one["name"] in ("numpy", "shim")} == {"ok"}


MXNET_ALONE = "a job needs the extra mxnet (mxnet): pip install -e '.[mxnet]' in nalb's folder"
EITHER = (
    "{python} has neither mxnet nor torch: pip install -e '.[mxnet]' in nalb's folder or pip install torch, "
    "or name another Python"
)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("launch", "--local", "2", "--out", "started", "--", "true"), EITHER),
        (("compare", "--network", "wan4-static", "--replay", "mobilenet", "--out", "started"), MXNET_ALONE),
        (("calibrate", "--out", "started"), MXNET_ALONE),
    ],
)
def test_what_needs_a_framework_says_so_in_a_line(
    bare: Path, tmp_path: Path, words: tuple[str, ...], what: str
) -> None:
    done = failed(3, bare / "nalb", *words, cwd=tmp_path)
    assert done.stderr == f"nalb {words[0]}: {what.format(python=bare / 'python')}\n"
    assert not (tmp_path / "started").exists()
    done = failed(1, bare / "python", "-c", "import nalb.mxnet", cwd=tmp_path)
    assert done.stderr.splitlines()[-1].startswith("ImportError: nalb.mxnet needs the extra mxnet")


def test_rooms_keep_their_laws_on_the_wheel_alone(bare: Path, tracked: Path, tmp_path: Path) -> None:
    """The tests of this checkout on the packages of the wheel: tests and pages are there, the packages are not.

    Hypothesis' profile `ci` sets no limits of time.
    """
    for name in ("tests", "docs", "examples", "scripts", "pyproject.toml"):
        (tmp_path / name).symlink_to(tracked / name)
    rooms = [f"tests/{room}" for room in ROOMS]
    pytest_here = (bare / "python", "-m", "pytest", "-p", "no:cacheprovider", "-q", "--hypothesis-profile=ci")
    out = said(*pytest_here, "-m", "not jobs and not mxnet", *rooms, cwd=tmp_path)
    assert re.search(r"^[1-9]\d{2,} passed", out.splitlines()[-1]), out


def test_a_job_runs_from_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    """Two nodes add arrays up, through the C extension of the wheel: without it no job starts."""
    (tmp_path / "train.py").write_text(
        "import mxnet as mx\n"
        "store = mx.kv.create('nalb')\n"
        "array = mx.nd.ones(4) * (store.rank + 1)\n"
        "store.add_up_once('x', array)\n"
        "print('sum', array.asnumpy().tolist())\n"
    )
    python = [installed / "python", "-I"]
    out = said(installed / "nalb", "launch", "--local", "2", "--out", "run", "--", *python, "train.py", cwd=tmp_path)
    assert out.count("sum [3.0, 3.0, 3.0, 3.0]") == 2, out
