"""TOML files in, checked Structs out. Every mistake is an InputError of one line: file, field, what is wrong, what to do.

A field's type has its limits, and in `Meta(description=...)` what to give there. What one field cannot know of others, a Struct
checks in `__post_init__`, by a ValueError whose message begins with the field and ends with what to do.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from nalb.errors import InputError

T = TypeVar("T")
ABOUT_A_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.+)`\Z")


def read_text(path: str | Path, kind: str, form: str = "TOML") -> str:
    """A file's text; `kind` is what it should be and `form` what in, for messages. Raises InputError."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{path}: cannot be read ({reason}): give a {kind} in {form}") from None


def parse(text: str, source: str) -> dict[str, Any]:
    """The tables of a text; `source` names it in messages. Raises InputError."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: not TOML, or a number of thousands of digits
        raise InputError(f"{source}: is not TOML ({error}): correct that line") from None


def convert(document: Mapping[str, Any], kind: type[T], source: str) -> T:
    """The tables as a Struct of that kind. Raises InputError."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `")
        place = re.sub(r"`|\$\.?", "", where)
        if error.__cause__ is not None:  # a Struct's own check
            message = f"{place}.{error.__cause__}" if place else str(error.__cause__)
        else:
            message = _explained(document, inspect.type_info(kind), where.partition("$")[2], place or "top level", what)
        raise InputError(f"{source}: {message}") from None


def _explained(given: Any, wanted: inspect.Type, path: str, place: str, what: str) -> str:
    """`what` msgspec says of a place, with the value that is there and what to give. `path` leads to it."""
    for step in re.findall(r"\w+", path):
        table = _bare(wanted)[0]
        if isinstance(table, inspect.StructType):
            wanted, given = next(field.type for field in table.fields if field.encode_name == step), given[step]
        elif isinstance(table, inspect.ListType | inspect.VarTupleType):
            wanted, given = table.item_type, given[int(step)]
    wanted, advice = _bare(wanted)
    if isinstance(wanted, inspect.StructType):
        fields = {field.encode_name: field.type for field in wanted.fields}
        if (about := ABOUT_A_FIELD.match(what)) is not None:
            field = f"{place}.{about[2]}" if path else about[2]
            if about[2] in fields:
                return f"{field} is missing: give {_bare(fields[about[2]])[1]}"
            return f"{field} is unknown: use {', '.join(fields)}"
        advice = f"a table of {', '.join(fields)}"
    if isinstance(given, Mapping | list):
        return f"{place}: {what}: give {advice}"
    is_huge = isinstance(given, int) and given.bit_length() > 64  # Python refuses to print far larger ones
    return f"{place} is {'beyond all limits' if is_huge else repr(given)}: give {advice}"


def _bare(wanted: inspect.Type) -> tuple[inspect.Type, str]:
    """The type under its limits and beside null, and its description."""
    advice = "what the manual says"
    while isinstance(wanted, inspect.Metadata | inspect.UnionType):
        if isinstance(wanted, inspect.Metadata):
            advice = (wanted.extra_json_schema or {}).get("description", advice)
            wanted = wanted.type
        else:
            wanted = next(one for one in wanted.types if not isinstance(one, inspect.NoneType))
    return wanted, advice
