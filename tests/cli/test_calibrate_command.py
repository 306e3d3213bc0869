import pytest

from nalb.cli.main import run


@pytest.mark.parametrize("rounds", ["0", "-1"])
def test_no_rounds_are_refused_before_anything_is_made(tmp_path, capsys, rounds):
    out = tmp_path / "run"
    assert run(["calibrate", "--rounds", rounds, "--out", str(out)]) == 2
    assert capsys.readouterr().err == f"nalb calibrate: --rounds {rounds}: choose 1 to 1000\n"
    assert not out.exists()
