"""Files from users: their text, and what is said of a place within tables of tables."""

import os
import threading
from typing import Annotated

import pytest
from msgspec import Meta, Struct

from nalb import toml_file
from nalb.errors import InputError

Few = Annotated[int, Meta(le=9, description="at most 9")]


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """In tables of tables."""

    sizes: dict[Annotated[str, Meta(max_length=3, description="3 letters at most")], list[Few]] = {}
    low: int = 0

    def __post_init__(self) -> None:
        if self.low > 5:
            raise ValueError("low is above 5: give less")


class Whole(Struct, frozen=True, forbid_unknown_fields=True):
    """A file."""

    parts: dict[str, list[dict[str, Part]]] = {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[parts.x]]\n[[parts.y]]\n[[parts.y]]\na.low = 1\nb.sizes = {k = [1], l = [2, 10]}",
         "parts.y[1].b.sizes.l[1] is 10: give at most 9"),
        ("[[parts.y]]\na.sizes = {k = [1], long = []}", "parts.y[0].a.sizes has the key 'long': give 3 letters at most"),
        ("[[parts.y]]\na.low = 3\nb.low = 6", "parts.y[0].b.low is above 5: give less"),
        ("[[parts.y]]\na.low = 3\nb.hi = 6", "parts.y[0].b.hi is unknown: use sizes, low"),
        ("[[parts.y]]\na.low = 3\nb = 6", "parts.y[0].b is 6: give a table of sizes, low"),
        ("parts = {x = [], y = {}}", "parts.y: Expected `array`, got `object`: give what the manual says"),
    ],
)  # fmt: skip
def test_a_place_is_named_with_all_its_keys(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        toml_file.convert(toml_file.parse(text, "f"), Whole, "f")
    assert str(caught.value) == f"f: {says}"


def test_a_pipe_is_read_as_often_as_it_is_asked_for(tmp_path):
    """As of `--hosts <(...)`, which a command reads more than once."""
    os.mkfifo(pipe := tmp_path / "pipe")
    writer = threading.Thread(target=pipe.write_text, args=("low = 1\n",), daemon=True)
    texts: list[str] = []
    reader = threading.Thread(
        target=lambda: texts.extend(toml_file.read_text(pipe, "file") for _ in range(2)), daemon=True
    )
    for one in (writer, reader):
        one.start()
    reader.join(20)
    assert texts == ["low = 1\n"] * 2
