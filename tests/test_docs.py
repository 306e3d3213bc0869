"""The documentation builds without a warning, and its tables are those of the code."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nalb.events import Event
from nalb.options import DECLARED
from nalb.reporting.run_file import median_s
from tests.test_architecture import ALLOWED

ROOT = Path(__file__).resolve().parents[1]
CONF = """
import sys
sys.path[:0] = [{extensions!r}, {here!r}]
extensions = ["myst_parser", "structs"]
"""
MODULE = '''
from enum import Enum
from typing import Annotated
import msgspec

class Told(msgspec.Struct):
    """What was told."""

    at_s: float  # when
    tone: Annotated[float, msgspec.Meta(ge=0, description="a number from 0 Hz")] | None = None  # how
    words: list[str] = []

class Mood(Enum):
    """How it was told."""

    CALM = "at ease"  # as always
'''


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build the site, where any warning is an error. Python's own warnings about its libraries do not count."""
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", source, out],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
        check=False,
    )


@pytest.mark.jobs
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = build(ROOT / "docs", tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "commands.html").read_text(encoding="utf-8")
    assert "--max-restarts" in page  # the reference is of the parsers
    assert "goodput_bound_s" in (tmp_path / "run-files.html").read_text(encoding="utf-8")  # and of the Structs
    events = (tmp_path / "run-files.html").read_text(encoding="utf-8")
    for kind in Event.__subclasses__():
        assert f">{kind.__struct_config__.tag}</span>" in events, f"docs/run-files.md tells nothing of {kind.__name__}"
    pages = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")]
    assert not any(
        re.search(r'(src|rel="stylesheet"[^>]*href)="https?:', page) for page in pages
    )  # read without a network


def test_every_room_is_told() -> None:
    page = (ROOT / "docs/how-it-works.md").read_text(encoding="utf-8")
    told = page[page.index("## Where things are") :]
    for room in ALLOWED:
        path = room.replace(".", "/")
        assert f"`{path}`" in told or f"`{path}.py`" in told, f"docs/how-it-works.md, Where things are: add {room}"


def test_no_example_writes_into_a_folder_that_users_share() -> None:
    """Another user can plant a link there, under the name that the page tells everyone."""
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").iterdir()]:
        if path.suffix in (".md", ".py", ".toml"):
            assert not re.search(r"(?<!\w)/(var/)?tmp/\w", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("", "Told.words has no meaning"),
        ("    words: said\n    gone: not there", "Told has no field gone"),
        ("    words: said", None),
    ],
)
def test_a_table_of_a_struct_is_whole(tmp_path: Path, lines: str, complaint: str | None) -> None:
    (tmp_path / "told.py").write_text(MODULE)
    (tmp_path / "conf.py").write_text(CONF.format(extensions=str(ROOT / "docs/extensions"), here=str(tmp_path)))
    (tmp_path / "index.md").write_text(f"# Told\n\n```{{structs}} told\nMood\nTold as story\n{lines}\n```\n")
    done = build(tmp_path, tmp_path / "out")
    if complaint:
        assert done.returncode != 0
        assert complaint in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        page = (tmp_path / "out/index.html").read_text(encoding="utf-8")
        text = re.sub(r"(<[^>]+>|\s)+", " ", page)
        assert "story. What was told." in text
        for row in (
            "at_s float required when",
            "tone a number from 0 Hz left out how",
            "words list of text empty said",
            "at ease as always",
        ):
            assert row in text, row


def load(path: str) -> ModuleType:
    """A file of Python that is in no package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    """The script that draws the figures of the results."""
    return load("scripts/figures/results_figures.py")


def commands_shown() -> list[str]:
    """Each `nalb ...` line of code in the pages, without its comment."""
    found = set()
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        is_fenced = False
        for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            if line.startswith("```"):
                is_fenced = not is_fenced
            elif re.match(r"nalb [a-z]+( |$)" if is_fenced else r" {4}nalb [a-z]+( |$)", line):
                found.add(line.partition(" #")[0].partition(" > ")[0].strip())
    return sorted(found)


def test_commands_in_the_pages_are_commands(capsys: pytest.CaptureFixture[str]) -> None:
    parser = load("docs/extensions/commands.py").parser()
    assert len(commands_shown()) > 30
    for command in commands_shown():
        try:
            parser.parse_args(shlex.split(command)[1:])
        except SystemExit:
            pytest.fail(f"{command}: {capsys.readouterr().err.splitlines()[-1]}")


def test_the_table_of_environment_variables_is_that_of_the_options() -> None:
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    rows = [f"| `{one.name}` | {one.words} | {one.meaning} |" for one in DECLARED.values()]
    assert [line for line in page.splitlines() if line.startswith("| `NALB_")] == rows


def test_every_reason_for_not_running_a_command_is_of_one() -> None:
    script = load("scripts/docs_commands.py")
    shown = [command.text for page in script.pages() for command in script.commands_of(page)]
    assert len(shown) > 150
    for words in (*script.TOO_LONG, *script.ELSEWHERE):
        assert any(words in text for text in shown), f"no page has a command with {words}: remove the reason"
    assert sum(command.why_not is None for page in script.pages() for command in script.commands_of(page)) > 70


def test_commands_are_run_with_fewer_iterations_where_they_have_any() -> None:
    shortened = load("scripts/docs_commands.py").shortened
    assert (
        shortened("nalb compare --replay mobilenet --iterations 12") == "nalb compare --replay mobilenet --iterations 4"
    )
    assert shortened("nalb compare --replay mobilenet") == "nalb compare --iterations 4 --replay mobilenet"
    of_a_script = "nalb compare --local 4 --schemes stock,exact -- python train.py"
    assert shortened(of_a_script) == of_a_script, "a script decides itself"


@pytest.mark.jobs
def test_every_figure_of_the_results_is_drawn_and_shown(drawing: ModuleType, tmp_path: Path) -> None:
    drawing.draw(tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    stored = {path.name for path in (drawing.RESULTS / "figures").iterdir()}
    pages = "".join(page.read_text(encoding="utf-8") for page in drawing.RESULTS.glob("*.md"))
    assert drawn == stored == set(re.findall(r"\(figures/([\w.-]+)\)", pages))


def test_tables_of_stored_runs_have_their_numbers(drawing: ModuleType) -> None:
    head, *rows = drawing.table("networks", "family")
    for row in rows:
        run = drawing.run_file(f"family-{row[0].partition(',')[0]}")
        for name in ("oracle", "exact", "average"):
            told = drawing.number(row[head.index(f"{name} s")])
            assert told == pytest.approx(median_s(run.schemes[name].communication_s), rel=0.002), (row[0], name)
    head, *rows = drawing.table("both-balances", "network")
    for (name, label), row in zip(drawing.JOINT.items(), rows, strict=True):
        assert row[0].startswith(label)
        took_s = drawing.last_iterations_s(name)
        for batching, cell in zip(("off@exact", "lb-bsp@average", "joint"), row[1:4], strict=True):
            assert drawing.number(cell) == pytest.approx(took_s[batching], abs=0.006), (name, batching)
    head, *rows = drawing.table("slice-sizes", "gradients")
    for model, row in zip(("mobilenet", "resnet50"), rows, strict=True):
        schemes = drawing.run_file(f"follow-{model}").schemes
        fixed = next(name for name in schemes if name.startswith("average@")).partition("@")[2]
        for name, cell in zip(
            ("stock", f"average@{fixed}", "average", f"exact@{fixed}", "exact"), row[1:], strict=True
        ):
            assert drawing.number(cell) == pytest.approx(median_s(schemes[name].communication_s), abs=0.0006), name
