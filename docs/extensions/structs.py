"""Directive `structs`: a table for each msgspec Struct or Enum, made from the class itself.

    ```{structs} nalb.reporting.run_file
    RunFile
        network: name of the network file
    LinkError
    ```

The argument is a module. A line without indentation names one of its classes, or says `NAME as TITLE`. Indented lines below it
say what fields or values mean. Where such a line is missing, the comment on the field's line of code counts. A field that has
neither is a warning, and so is a line for what the class does not have. `sphinx-build -W` then fails, so tables follow the code.
"""

import importlib
import inspect
import io
import tokenize
import types
import typing
from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

LOG = logging.getLogger(__name__)


def table(kind: type, title: str, meanings: Mapping[str, str], titles: Mapping[object, str]) -> str:
    """The class as Markdown: its title, its docstring, a row for each field or value. Classes in `titles` are called so."""
    lines = [f"**{title}.** {inspect.getdoc(kind)}", ""]
    if issubclass(kind, Enum):
        lines += ["| value | meaning |", "|---|---|"]
        lines += [f"| `{one.value}` | {meanings.get(one.name, '')} |" for one in kind]
    else:
        lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
        for field in msgspec.structs.fields(kind):
            name, type_ = field.encode_name, type_name(without_default(field), titles)
            lines.append(f"| `{name}` | {type_} | {default_of(field)} | {meanings.get(field.name, '')} |")
    return "\n".join(lines)


def without_default(field: msgspec.structs.FieldInfo) -> object:
    """The field's type less `None` where that is the default, and less `UnsetType`: the next column says both."""
    kinds = [one for one in typing.get_args(field.type) if one is not msgspec.UnsetType]
    if not isinstance(field.type, types.UnionType) and typing.get_origin(field.type) is not typing.Union:
        return field.type
    return typing.Union[tuple(one for one in kinds if one is not type(None) or field.default is not None)]  # noqa: UP007  # of a list


def comments(struct: type) -> dict[str, str]:
    """The comment behind each field, by the field's name; those of the classes that it extends too."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base.__module__ in ("builtins", "enum", "msgspec", "msgspec._core"):
            continue
        first_words: dict[int, str] = {}
        for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(base)).readline):
            if token.type == tokenize.NAME:
                first_words.setdefault(token.start[0], token.string)
            elif token.type == tokenize.COMMENT and token.start[0] in first_words:
                found[first_words[token.start[0]]] = token.string.lstrip("# ").replace("|", "\\|")
    return found


def type_name(kind: object, titles: Mapping[object, str]) -> str:
    """The type in words: `list of float`, `float or null`, `float by text`; a described one by its description."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in titles:
        return titles[kind]
    if kind is type(None):
        return "null"
    if origin is typing.Annotated:
        described = [one.description for one in arguments[1:] if isinstance(one, msgspec.Meta) and one.description]
        return described[0] if described else type_name(arguments[0], titles)
    if origin is dict:
        return f"{type_name(arguments[1], titles)} by {type_name(arguments[0], titles)}"
    if origin in (list, set, frozenset) or arguments[1:] == (...,):
        return f"list of {type_name(arguments[0], titles)}"
    if origin is tuple:
        return "[" + ", ".join(type_name(one, titles) for one in arguments) + "]"
    if arguments:  # a union
        return " or ".join(type_name(one, titles) for one in arguments)
    name = getattr(kind, "__name__", str(kind))
    return {"str": "text", "Any": "anything", "bool": "true or false"}.get(name, name)


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """`required`, or the value where the field is left out."""
    if field.required:
        return "required"
    if field.default_factory is not msgspec.NODEFAULT or field.default == ():
        return "empty"
    if field.default in (None, msgspec.UNSET):
        return "left out"
    return f"`{msgspec.json.encode(field.default).decode()}`"


def chosen(lines: Iterable[str]) -> dict[str, dict[str, str]]:
    """What the directive's content says: meanings by field, by the line that names the Struct."""
    structs: dict[str, dict[str, str]] = {}
    for line in filter(str.strip, lines):
        if not line[0].isspace():
            structs[line.strip()] = {}
        else:
            field, _, meaning = line.strip().partition(": ")
            structs[list(structs)[-1]][field] = meaning
    return structs


class Structs(SphinxDirective):
    """See the module's docstring."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """One table after another."""
        module = importlib.import_module(self.arguments[0])
        self.env.note_dependency(str(module.__file__))
        said = {}
        titles: dict[object, str] = {}
        for line, meanings in chosen(self.content).items():
            name, _, title = line.partition(" as ")
            said[getattr(module, name)] = meanings
            titles[getattr(module, name)] = title or name
        tables = [table(kind, titles[kind], self._meanings(kind, said[kind]), titles) for kind in said]
        holder = nodes.container()
        text = StringList("\n\n".join(tables).splitlines(), source=self.get_source_info()[0])
        self.state.nested_parse(text, 0, holder)
        return holder.children

    def _meanings(self, kind: type, said: dict[str, str]) -> dict[str, str]:
        meanings = comments(kind) | said
        names = {one.name for one in (kind if issubclass(kind, Enum) else msgspec.structs.fields(kind))}
        for name in sorted(names - meanings.keys()):
            self._warn(f"{kind.__name__}.{name} has no meaning: add a line `{name}: ...` below {kind.__name__}")
        for name in sorted(said.keys() - names):
            self._warn(f"{kind.__name__} has no field {name}: remove its line")
        return meanings

    def _warn(self, message: str) -> None:
        LOG.warning(message, location=self.get_location(), type="structs")


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's entry point."""
    app.add_directive("structs", Structs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
