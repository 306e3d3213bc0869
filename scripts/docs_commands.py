"""Runs each command that README and docs show, once, in a fresh clone, and says which ones fail or print something else.

    python scripts/docs_commands.py                           all pages; needs root, and .venv and .venv-torch beside this clone
    python scripts/docs_commands.py --pages docs/tutorial.md  these alone
    python scripts/docs_commands.py --list                    what would run, and what would not, and why

Commands are the lines of code blocks that begin with a program's name. TOO_LONG and ELSEWHERE name those that do not run, each with
its reason. Numbers of iterations are cut to ITERATIONS. `train.py` is a short training by one of the examples. What `nalb plan` and
`nalb simulate` print must be what the page shows below them, since both only compute.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ITERATIONS = 4
LIMIT_S = 240.0
PROGRAMS = (
    "nalb|bash|python3?(?:\\.\\d+)?|pip|torchrun|sphinx-build|curl|mkdir|cd|srun|sbatch|docker|kubectl|sky|\\.venv\\S*"
)
COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:{PROGRAMS})(?: |$)")
SHELL = ("", "sh", "bash", "shell", "console")  # fences of these languages have commands
COMPUTED = ("nalb plan", "nalb simulate")

# beginning of a command, or words of it: why it does not run here
TOO_LONG = {
    "bash scripts/demo.sh": "sets up two environments: CI does so by scripts/test.sh, and a person runs it",
    "bash scripts/test.sh": "runs all tests: CI itself",
    "-m pytest": "runs tests, as CI does",
    "scripts/docs_commands.py": "is this script",
    "tests/campaigns/": "a campaign of minutes or hours",
    "scripts/figures/": "an experiment of minutes or hours; test_docs.py runs those that draw from stored runs",
    "benchmarks/": "timings of minutes, which need a quiet machine",
    "--replay resnet50 --schemes stock": "94 MB an iteration, under stock up to 30 s each",
    "--replay resnet50 --schemes exact,gloo": "94 MB an iteration, by sites a minute each",
    "--train vgg": "trains VGG on one machine for minutes",
    "--train mobilenet": "trains MobileNet on one machine for minutes",
}
ELSEWHERE = {
    "hosts.toml": "needs hosts that answer ssh: tests/launch/test_ssh.py",
    "--schemes exact,gloo,exact-sites": "needs the extra peers beside MXNet: tests/compare/test_ring.py",
    "torchrun": "needs four machines: tests/torch, tests/campaigns/slurm.py",
    "NALB_PRECISION=": "needs four machines, under torchrun",
    "scontrol": "needs a Slurm: tests/campaigns/slurm.py",
    "srun": "needs a Slurm: tests/campaigns/slurm.py",
    "sbatch": "needs a Slurm: tests/campaigns/slurm.py",
    "docker": "needs a Docker daemon",
    "kubectl": "needs a cluster",
    "sky ": "needs an account at a cloud",
    "--root": "one line of several, on several machines: tests/launch/test_one_node.py",
    "curl": "asks a job while it runs: tests/campaigns/watched.py",
    "pip install": "changes the environment: tests/test_package.py",
    "-m venv": "makes an environment: scripts/setup.sh",
    "python3.13": "needs another Python",
    ".venv313": "needs another Python",
    "nalb --print-completion": "writes into the home: tests/cli/test_main.py prints it",
    "mkdir -p ~": "writes into the home",
    "cd ~": "a folder on two machines: tests/campaigns/two_machines.py",
    "runs/first": "a job on two machines: tests/campaigns/two_machines.py",
    "-- python ...": "a pattern of a command",
    "--network NET": "a pattern of a command",
    "--network FILE": "a pattern of a command",
    "--network F.toml": "a pattern of a command",
    "--family F ": "a pattern of a command",
    "fast4.toml": "the page describes its network in words",
    "runs/lb-bsp/networks": "the network of an experiment of hours",
    "nalb report runs/DIR": "a pattern of a command",
}
COMPARED = "nalb compare --network wan4-static --replay mobilenet --schemes average,exact,stock --iterations 4 --out "
BEFORE = {  # commands that a page takes for granted
    "README.md": [COMPARED + "runs/a"],
    "docs/simulation.md": [COMPARED + "DIR"],
    "docs/what-sets-the-pace.md": [COMPARED + "runs/c"],
    "docs/network-files.md": [],
}
TORCH_PAGES = ("docs/pytorch.md", "docs/precision.md")
FELA_PAGES = ("docs/fela.md",)
TRAIN = """import runpy, sys
sys.argv[1:] = {words}
sys.path.insert(0, "{folder}")
runpy.run_path("{folder}/{script}", run_name="__main__")
"""


@dataclass(frozen=True)
class Command:
    """A command of a page."""

    page: str
    text: str  # without its comment
    prints: tuple[str, ...] = ()  # lines that the page shows below it

    @property
    def why_not(self) -> str | None:
        """Why it does not run; None: it runs."""
        return next((why for words, why in (TOO_LONG | ELSEWHERE).items() if words in self.text), None)


def pages() -> list[Path]:
    """README, CONTRIBUTING and all of docs."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands_of(page: Path) -> list[Command]:
    """The commands of a page, in order. A fenced block that follows a command and has none shows what that prints."""
    found: list[Command] = []
    name = str(page.relative_to(ROOT))
    for block, is_fenced in _blocks(page.read_text(encoding="utf-8")):
        lines = [line.strip() for line in block]
        commands = [
            line for line in lines if COMMAND.match(line) and not line.partition(" ")[2].partition(" ")[0].endswith(":")
        ]
        if commands:
            found += [Command(name, re.sub(r"\s+#(?!\S).*$", "", line).strip()) for line in commands]
        elif is_fenced and found and not found[-1].prints:
            found[-1] = Command(name, found[-1].text, tuple(lines))
    return found


def _blocks(text: str) -> Iterator[tuple[list[str], bool]]:
    """(lines, whether it is fenced) of the code blocks that may have commands; lines that a backslash continues are joined."""
    language, block = None, list[str]()
    for line in text.replace("\\\n", " ").splitlines():
        fence = re.match(r"```(.*)", line)
        if fence or (language is None and not line.startswith("    ")):
            if block and (language is None or language in SHELL):
                yield block, language is not None
            block = []
            if fence:
                language = fence[1] if language is None else None
        else:
            block.append(line)
    if block:
        yield block, False


def shortened(text: str) -> str:
    """The command with fewer iterations."""
    fewer = re.sub(r"--iterations (\d+)", lambda match: f"--iterations {min(int(match[1]), ITERATIONS)}", text)
    is_told = "--iterations" in fewer or " -- " in fewer  # a script decides itself
    if fewer.startswith("nalb compare") and not is_told:
        fewer = fewer.replace("nalb compare", f"nalb compare --iterations {ITERATIONS}", 1)
    fewer = re.sub(r"(train_(?:fashion_mnist|federated)\.py)(.*)$", _short_training, fewer)
    return fewer.replace("--epochs 3", "--epochs 1")


def _short_training(match: re.Match[str]) -> str:
    script, rest = match.groups()
    if "federated" in script:
        return match[0] + " --rounds 3"
    return match[0] + ("" if "--max-batches" in rest else " --max-batches 12") + " --test-images 200 --epochs 1"


def run_page(page: Path, clone: Path, limit_s: float) -> list[Command]:
    """Run a page's commands; returns those that failed."""
    failed: list[Command] = []
    commands = commands_of(page)
    name = str(page.relative_to(ROOT))
    example, words = (
        ("train_torch.py", ["--steps", "8"])
        if name in TORCH_PAGES
        else ("train_fela.py", ["--steps", "8", "--test-images", "200"])
        if name in FELA_PAGES
        else ("train_fashion_mnist.py", ["--epochs", "1", "--max-batches", "12", "--test-images", "200"])
    )
    (clone / "train.py").write_text(TRAIN.format(words=words, script=example, folder=clone / "examples"))
    for left in ("runs", "DIR", "keys"):
        shutil.rmtree(clone / left, ignore_errors=True)
    folder = clone
    for command in [*(Command(name, text) for text in BEFORE.get(name, ())), *commands]:
        if command.why_not is not None:
            print(f"left  {name}: {command.text}: {command.why_not}", flush=True)
            continue
        if command.text.startswith("cd "):
            folder = clone / command.text[3:]
            continue
        if out := re.search(r"--out (\S+)", command.text):
            shutil.rmtree(folder / out[1], ignore_errors=True)
        start_s = time.monotonic()
        is_torch = name in TORCH_PAGES or "--framework torch" in command.text
        venv = ROOT / (".venv-torch" if is_torch else ".venv")
        code, output = _run(shortened(command.text), folder, venv, limit_s)
        missing = [
            line
            for line in command.prints
            if command.text.startswith(COMPUTED)
            and line != "..."
            and line.split() not in map(str.split, output.splitlines())
        ]
        is_right = code == 0 and not missing
        print(
            f"{'ok   ' if is_right else 'FAIL '} {name}: {command.text} ({time.monotonic() - start_s:.0f} s)",
            flush=True,
        )
        if not is_right:
            failed.append(command)
            tail = "\n".join(output.splitlines()[-15:])
            print(
                f"      exit code {code}" + (f"; not printed: {missing}" if missing else "") + f"\n{tail}", flush=True
            )
    return failed


def _run(text: str, folder: Path, venv: Path, limit_s: float) -> tuple[int, str]:
    environment = os.environ | {
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    process = subprocess.Popen(
        ["bash", "-c", text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        output, _ = process.communicate()
        return 124, output
    return process.returncode, output


def main() -> int:
    """Run the pages that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", nargs="+", type=Path, help="default: all")
    parser.add_argument("--list", action="store_true", help="print what would run, and why the rest would not")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help=f"of one command (default: {LIMIT_S:g})")
    args = parser.parse_args()
    chosen = [page.resolve() for page in args.pages] if args.pages else pages()
    if args.list:
        for page in chosen:
            for command in commands_of(page):
                print(f"{command.why_not or 'runs'}: {command.page}: {command.text}")
        return 0
    failed: list[Command] = []
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "nalb"
        subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
        for venv in (".venv", ".venv-torch"):
            (clone / venv).symlink_to(ROOT / venv)
        for page in chosen:
            failed += run_page(page, clone, args.limit_s)
    print(f"{len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
