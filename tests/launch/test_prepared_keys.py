"""Keys that were made beforehand, and fit the job or not."""

import re
import shlex
from pathlib import Path

import pytest

from nalb.cli.main import run
from nalb.errors import InputError
from nalb.launch.encryption import Encryption, job_keys
from nalb.launch.roles import Place

PLACES = [Place("a", "10.77.0.1"), Place("b", "10.77.0.2")]


@pytest.mark.parametrize(
    ("made_for", "whose"),
    [
        ("a=10.77.0.1,b=10.0.0.2", "another address of b, 10.0.0.2 instead of 10.77.0.2"),
        ("a=10.77.0.1,b=10.77.0.2,c=10.77.0.3", "other nodes"),
    ],
)
def test_keys_that_do_not_fit_are_told_with_a_command_that_makes_new_ones(
    tmp_path: Path, made_for: str, whose: str
) -> None:
    folder = tmp_path / "two words"
    assert run(["keys", "--nodes", made_for, "--out", str(folder)]) == 0
    encryption = Encryption(True, str(folder))
    with pytest.raises(InputError) as raised:
        job_keys(encryption, PLACES)
    told = re.fullmatch(
        rf"{folder}/a\.keys is for {whose}: `nalb (.*)` makes new ones for all nodes", str(raised.value)
    )
    assert told, raised.value
    assert run(shlex.split(told[1])) == 0
    assert job_keys(encryption, PLACES).keys() == {"a", "b"}
