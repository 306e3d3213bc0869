"""Libraries of extras: what is missing is said in one line."""

import sys

import pytest

from nalb.errors import MachineError
from nalb.extras import EXTRA_OF, require, require_mxnet


@pytest.mark.parametrize(("library", "extra"), EXTRA_OF.items())
def test_what_is_missing_is_named_with_its_extra(library: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)  # as where it is not installed
    with pytest.raises(MachineError) as told:
        require(library, "this", ", or do without")
    assert (
        str(told.value)
        == f"this needs the extra {extra} ({library}): pip install -e '.[{extra}]' in nalb's folder, or do without"
    )


def test_what_is_there_is_not_told() -> None:
    require("sys", "this")


@pytest.mark.parametrize("python", [(3, 10), (3, 12)])
def test_another_python_than_mxnets_is_told_first(python: tuple[int, int]) -> None:
    """There, to install the extra would end in an error of numpy's build."""
    with pytest.raises(
        MachineError, match=rf"this needs the extra mxnet, which is for Python 3\.11, and this is 3\.{python[1]}: "
    ):
        require_mxnet("this", python)
