"""What several commands' flags have in common."""

import argparse

import pytest

from nalb.cli.flags import add_encryption_flags, encryption_of, without_encryption


@pytest.mark.parametrize("leaves_here", [False, True])
@pytest.mark.parametrize("given", [[], ["--encrypt"], ["--keys", "folder"]])
def test_the_advice_to_turn_encryption_off_does(given: list[str], leaves_here: bool) -> None:
    parser = argparse.ArgumentParser()
    add_encryption_flags(parser)
    args = parser.parse_args(given)
    if not encryption_of(args, leaves_here).is_on:
        return
    advice = without_encryption(args, leaves_here)
    assert (
        advice
        == {
            (False, True): "add --plain",
            (True, True): f"give --plain in place of {''.join(given[:1])}",
            (True, False): f"leave out {''.join(given[:1])}",
        }[bool(given), leaves_here]
    )
    followed = (given if advice.startswith("add") else []) + ["--plain"] * ("--plain" in advice)
    assert not encryption_of(parser.parse_args(followed), leaves_here).is_on
