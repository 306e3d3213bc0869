"""torchft's process group, against its wheel."""

import pytest

from tests.torch import ranks


@pytest.mark.torch
def test_replicas_go_on_without_one_that_died() -> None:
    *left, dead = ranks.run("replicas.py", size=3, within_s=120.0, NALB_SCHEME="average")
    assert dead.code == 9, dead.output
    assert all(one.code == 0 and "ok" in one.output.splitlines() for one in left), [one.output[-3000:] for one in left]
