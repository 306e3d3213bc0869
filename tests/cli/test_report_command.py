import html.parser
import os

import pytest

from nalb.cli.main import run
from nalb.reporting.page import FIGURES, number
from tests.reporting.runs import write_fake_run

HOSTILE = "<script>alert('x')</script>"


class Tags(html.parser.HTMLParser):
    """Every tag, and the sources of pictures."""

    def __init__(self):
        super().__init__()
        self.tags, self.sources, self.words = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.words.append(data)


def parsed(run_dir):
    parser = Tags()
    parser.feed((run_dir / "report.html").read_text(encoding="utf-8"))
    parser.close()
    return parser


def complaint(capsys, *words):
    assert run(["report", *map(str, words)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("nalb report: ")
    assert err.count("\n") == 1
    return err


@pytest.fixture
def undrawn(monkeypatch):
    """The beginning of a picture for each: drawing takes seconds, and here only what is around it matters."""
    monkeypatch.setattr("nalb.reporting.page.png", lambda _: b"\x89PNG\r\n\x1a\n")


@pytest.mark.jobs
def test_report_is_one_page_with_all_figures(tmp_path, capsys):
    write_fake_run(tmp_path)
    assert run(["report", str(tmp_path)]) == 0
    assert "report.html" in capsys.readouterr().out
    page = parsed(tmp_path)
    assert len(page.sources) == len(FIGURES)
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert not {"script", "link", "iframe"} & set(page.tags)
    words = "".join(page.words)
    assert "Workload: replay mobilenet." in words
    assert "nalb compare --network wan4-static --replay mobilenet" in words
    assert sorted(os.listdir(tmp_path / "figures")) == sorted(figure.file for figure in FIGURES)
    assert sorted(os.listdir(tmp_path)) == ["figures", "report.html", "run.json", "samples.jsonl"]


@pytest.mark.usefixtures("undrawn")
def test_report_is_written_over_with_force_alone(tmp_path, capsys):
    write_fake_run(tmp_path, schemes=("stock",), iterations=1)
    (tmp_path / "report.html").write_text("mine")
    assert "--force" in complaint(capsys, tmp_path)
    assert (tmp_path / "report.html").read_text() == "mine"
    assert not (tmp_path / "figures").exists()
    assert run(["report", str(tmp_path), "--force"]) == 0
    assert "mine" not in (tmp_path / "report.html").read_text()[:100]


@pytest.mark.usefixtures("undrawn")
def test_link_in_place_of_the_report_is_not_followed(tmp_path):
    run_dir, outside = tmp_path / "run", tmp_path / "outside.txt"
    write_fake_run(run_dir, schemes=("stock",), iterations=1)
    outside.write_text("keep")
    (run_dir / "report.html").symlink_to(outside)
    assert run(["report", str(run_dir), "--force"]) == 0
    assert outside.read_text() == "keep"


@pytest.mark.jobs
def test_names_from_files_are_escaped_everywhere(tmp_path):
    write_fake_run(
        tmp_path,
        schemes=(HOSTILE, "_\"'><img src=x onerror=alert(1)>", "$\\frac{$", "{{ 7*7 }}"),
        nodes=2,
        names=[HOSTILE, "$\\bad$\n"],
        network=f"</title>{HOSTILE}",
        workload=f"train {HOSTILE}",
        iterations=3,
    )
    assert run(["report", str(tmp_path)]) == 0
    page = parsed(tmp_path)
    assert "script" not in page.tags
    assert page.tags.count("img") == len(FIGURES)
    assert HOSTILE in "".join(page.words)
    assert "{{ 7*7 }}" in "".join(page.words)


@pytest.mark.usefixtures("undrawn")
def test_page_without_samples_says_so(tmp_path):
    write_fake_run(tmp_path)
    (tmp_path / "samples.jsonl").unlink()
    assert run(["report", str(tmp_path)]) == 0
    assert "samples.jsonl is missing" in "".join(parsed(tmp_path).words)


def test_what_cannot_be_read_or_written_is_one_line(tmp_path, capsys):
    assert "no such directory" in complaint(capsys, tmp_path / "absent")
    write_fake_run(tmp_path / "run", schemes=("stock",), iterations=1)
    (tmp_path / "run" / "figures").write_text("a file in the way")
    assert "figures" in complaint(capsys, tmp_path / "run", "--force")
    (tmp_path / "run" / "samples.jsonl").unlink()
    (tmp_path / "run" / "samples.jsonl").mkdir()
    assert "samples.jsonl" in complaint(capsys, tmp_path / "run")


@pytest.mark.parametrize(("value", "text"), [(1.234, "1.2"), (float("nan"), "-")])
def test_numbers_that_are_not_known_are_a_dash(value, text):
    assert number(value, ".1f") == text
