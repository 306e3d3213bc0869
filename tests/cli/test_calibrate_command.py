import pytest

from nalb.cli.main import run


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--rounds", "0", "--rounds 0: choose 1 to 1000"),
        ("--rounds", "-1", "--rounds -1: choose 1 to 1000"),
        ("--low", "2e5", "--low 200000 --high 120000: give 0.001 <= low < high <= 1e+12"),
        ("--low", "1e-308", "--low 1e-308 --high 120000: give 0.001 <= low < high <= 1e+12"),
        ("--high", "1e308", "--low 300 --high 1e+308: give 0.001 <= low < high <= 1e+12"),
    ],
)
def test_mistakes_are_refused_before_anything_is_made(tmp_path, capsys, flag, value, says):
    out = tmp_path / "run"
    assert run(["calibrate", flag, value, "--network", "nowhere", "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nalb calibrate: ")
    assert line.endswith(says)
    assert not out.exists()


@pytest.mark.parametrize(("flag", "value"), [("--alpha-bytes", "1000"), ("--estimator", "paper")])
def test_what_is_looked_for_is_no_flag(capsys, flag, value):
    assert run(["calibrate", flag, value]) == 2
    assert capsys.readouterr().err.startswith(f"nalb calibrate: '{flag}' is not understood: ")
