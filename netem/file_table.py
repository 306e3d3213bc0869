"""One table of a network file, read field by field: it knows its place, so that each mistake can name file and field."""

import re
from collections.abc import Mapping
from typing import Any

from nalb.errors import InputError

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,14}")  # Linux allows 15 characters in an interface name
LOW_MBPS = 0.01  # below this one packet takes more than a second
HIGH_MBPS = 34_000.0  # tc's byte rates are 32-bit: 2^32 bytes/s is 34,359 Mbit/s
HIGH_TIME_S = 1e7  # about four months: longer is a typing mistake


class Table:
    """A table whose unknown fields are errors; every method raises InputError of one line."""

    def __init__(self, source: str, place: str, values: object, known: set[str]):
        self.source, self.place = source, place
        if not isinstance(values, Mapping):
            raise InputError(f"{source}: {place} is {values!r}: make it a table")
        self.values: Mapping[str, Any] = values
        for field in values:
            if field not in known:
                raise self.wrong(field, "is not a field of a network file", f"use {', '.join(sorted(known))}")

    def wrong(self, field: str, what: str, remedy: str) -> InputError:
        """The error that says what is wrong with a field."""
        place = f"{self.place}.{field}" if self.place else field
        return InputError(f"{self.source}: {place} {what}: {remedy}")

    def table(self, field: str, known: set[str]) -> "Table":
        """The table under a field; an empty one where it is absent."""
        return Table(self.source, field, self.values.get(field, {}), known)

    def tables(self, field: str, known: set[str]) -> list["Table"]:
        """The tables of a [[field]], none where it is absent."""
        values = self.values.get(field, [])
        if not isinstance(values, list):
            raise self.wrong(field, "is not a list", f"write each as [[{field}]]")
        return [Table(self.source, f"{field}[{index}]", value, known) for index, value in enumerate(values)]

    def name(self, field: str) -> str:
        """The field, a name that may be part of a namespace's."""
        value = self.values.get(field)
        remedy = "use 1 to 15 of a-z, 0-9 and '-', not starting with '-'"
        if value is None:
            raise self.wrong(field, "is missing", remedy)
        if not isinstance(value, str) or not NAME_PATTERN.fullmatch(value):
            raise self.wrong(field, f"is {value!r}", remedy)
        return value

    def number(self, field: str, low: float, high: float, unit: str, default: float | None = None) -> float:
        """The field, within [low, high]; `default` where it is absent; an error where neither is there."""
        remedy = f"give a number from {low:g} to {high:g} {unit}"
        value = self.values.get(field, default)
        if value is None:
            raise self.wrong(field, "is missing", remedy)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(field, f"is {value!r}, not a number", remedy)
        if not low <= value <= high:  # false for NaN too
            raise self.wrong(field, f"is {value}", remedy)
        return float(value)

    def mbps(self, field: str, default: float | None = None) -> float:
        """The field, a rate."""
        return self.number(field, LOW_MBPS, HIGH_MBPS, "Mbit/s", default)

    def flag(self, field: str, default: bool) -> bool:
        """The field, true or false; `default` where it is absent."""
        value = self.values.get(field, default)
        if not isinstance(value, bool):
            raise self.wrong(field, f"is {value!r}", "give true or false")
        return value

    def member(self, field: str, names: list[str]) -> str:
        """The field, a node of the file."""
        value = self.values.get(field)
        if value not in names:
            what = "is missing" if value is None else f"is {value!r}, which is no node"
            raise self.wrong(field, what, "name a node of this file")
        return str(value)

    def seed(self) -> int:
        """The field `seed`, a whole number."""
        seed = self.values.get("seed")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            what = "is missing" if seed is None else f"is {seed!r}"
            raise self.wrong("seed", what, "give a whole number of 0 or more")
        return seed
