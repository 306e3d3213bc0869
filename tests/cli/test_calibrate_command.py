import pytest

from nalb.cli.main import run


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--rounds", "0", "--rounds 0: choose 1 to 1000"),
        ("--rounds", "-1", "--rounds -1: choose 1 to 1000"),
        ("--alpha-bytes", "1000", "leave them out"),
        ("--estimator", "paper", "leave them out"),
    ],
)
def test_mistakes_are_refused_before_anything_is_made(tmp_path, capsys, flag, value, says):
    out = tmp_path / "run"
    assert run(["calibrate", flag, value, "--network", "nowhere", "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nalb calibrate: ")
    assert line.endswith(says)
    assert not out.exists()
