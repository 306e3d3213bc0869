"""Reads TOML files into checked Structs. Every mistake is an InputError of one line: file, field, what is wrong, what to do.

A field's type holds its limits, and says in `Meta(description=...)` what to give there. A Struct checks fields against each other
in `__post_init__`, by a ValueError whose message begins with the field and ends with what to do.
"""

import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from nalb.errors import InputError, did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
Step = str | int  # leads to a field or key, or to an element of a list
OF_LENGTH = "`array` of length"
ABOUT_A_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.+)`\Z")


def read_text(path: str | Path, kind: str, form: str = "TOML") -> str:
    """Read a file's text. Raises InputError, which says what to give: a `kind` in `form`, as 'network file' in 'TOML'.

    A byte order mark at its beginning, as editors on Windows write, is no part of the text.
    """
    try:
        return _read_once(Path(path)) if Path(path).is_fifo() else _read(Path(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): give a {kind} in {form}") from None
    except ValueError as error:  # the path has a zero byte, or the text is not UTF-8
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise InputError(f"{path}: cannot be read ({reason}): give a {kind} in {form}") from None


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8-sig")


_read_once = cache(_read)  # a pipe, as of <(...), is empty for whoever reads it again


def parse(text: str, source: str) -> dict[str, Any]:
    """Parse a text into its tables; `source` names it in messages. Raises InputError."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: not TOML, or a number of thousands of digits
        raise InputError(f"{source}: is not TOML ({error}): correct that line") from None


def convert(document: Mapping[str, Any], kind: type[T], source: str) -> T:
    """Convert the tables to a Struct of that kind; `source` names them in messages. Raises InputError."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `")
        about, _, path = where.partition("$")
        words = re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path + "[...]" * bool(about))
        steps = _located(
            document, kind, str(error), [name or (int(key) if key.isdigit() else None) for name, key in words]
        )
        place = _place(steps)
        if error.__cause__ is not None:  # a Struct's own check
            message = f"{place}.{error.__cause__}" if place else str(error.__cause__)
        elif about:
            message = _explained_key(inspect.type_info(kind), steps)
        else:
            message = _explained(document, inspect.type_info(kind), steps, place or "top level", what)
        raise InputError(f"{source}: {message}") from None


def _located(document: Any, kind: type[Any], said: str, steps: list[Step | None]) -> list[Step]:
    """The steps to the place that msgspec's message `said` is about, with the tables' keys that msgspec leaves out (None).

    Such a key is found by trial: msgspec says the same of a table that has this key alone.
    """
    located: list[Step] = []
    given = document
    for step in steps:
        known = (
            step
            if step is not None
            else next(key for key in given if _says(_alone(document, located, key), kind) == said)
        )
        located.append(known)
        given = given[known]
    return located


def _alone(given: Any, steps: list[Step], key: str) -> Any:
    """A copy of `given` in which the table at the steps has this key alone."""
    if not steps:
        return {key: given[key]}
    copy = given.copy()
    copy[steps[0]] = _alone(given[steps[0]], steps[1:], key)
    return copy


def _says(document: Any, kind: type[Any]) -> str:
    try:
        msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _place(steps: list[Step]) -> str:
    """The steps as messages show them: 'nodes[0].up_mbps'."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


def _explained_key(wanted: inspect.Type, steps: list[Step]) -> str:
    """A message about a table's wrong key, the last of the steps, that says what to give instead."""
    *before, key = steps
    table = _bare(_type_at(wanted, before))[0]
    assert isinstance(table, inspect.DictType)
    return f"{_place(before)} has the key {key!r}: give {_bare(table.key_type)[1]}"


def _type_at(wanted: inspect.Type, steps: list[Step]) -> inspect.Type:
    for step in steps:
        table = _bare(wanted)[0]
        if isinstance(table, inspect.StructType):
            wanted = next(field.type for field in table.fields if field.encode_name == step)
        elif isinstance(table, inspect.ListType | inspect.VarTupleType):
            wanted = table.item_type
        elif isinstance(table, inspect.DictType):
            wanted = table.value_type
    return wanted


def _explained(given: Any, wanted: inspect.Type, steps: list[Step], place: str, what: str) -> str:
    """A message about the place that the steps lead to: msgspec's complaint (`what`) or the value there, and what to give."""
    wanted, advice = _bare(_type_at(wanted, steps))
    for step in steps:
        given = given[step]
    if isinstance(wanted, inspect.StructType):
        fields = {field.encode_name: field.type for field in wanted.fields}
        if (about := ABOUT_A_FIELD.match(what)) is not None:
            field = f"{place}.{about[2]}" if steps else about[2]
            if about[2] in fields:
                return f"{field} is missing: give {_bare(fields[about[2]])[1]}"
            return f"{field} is unknown: {did_you_mean(about[2], fields)}use {', '.join(fields)}"
        advice = f"a table of {', '.join(fields)}"
    if isinstance(given, list) and OF_LENGTH in what:
        return f"{place} has {len(given)}: give {advice}"
    if isinstance(given, Mapping | list):
        return f"{place}: {what}: give {advice}"
    is_huge = isinstance(given, int) and given.bit_length() > 64  # Python refuses to print far larger ones
    return f"{place} is {'beyond all limits' if is_huge else repr(given)}: give {advice}"


def _bare(wanted: inspect.Type) -> tuple[inspect.Type, str]:
    """The type without its limits and without null, and its description."""
    advice = "what the manual says"
    while isinstance(wanted, inspect.Metadata | inspect.UnionType):
        if isinstance(wanted, inspect.Metadata):
            advice = (wanted.extra_json_schema or {}).get("description", advice)
            wanted = wanted.type
        else:
            wanted = next(one for one in wanted.types if not isinstance(one, inspect.NoneType))
    return wanted, advice
