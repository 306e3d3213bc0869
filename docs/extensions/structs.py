"""Directive `structs`: a table for each msgspec Struct, made from the Struct itself.

    ```{structs} nalb.reporting.run_file
    RunFile
        network: name of the network file
    LinkError
    ```

The argument is a module. A line without indentation names one of its Structs, or says `NAME as TITLE`. Indented lines below it
say what fields mean. A field without such a line has the comment on its own line of code. A field that has neither is a warning,
and so is a line for a field that the Struct does not have: `sphinx-build -W` then fails, so tables and code cannot part.
"""

import importlib
import inspect
import io
import tokenize
import typing
from collections.abc import Iterable

import msgspec
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

LOG = logging.getLogger(__name__)


def table(struct: type[msgspec.Struct], title: str, meanings: dict[str, str]) -> str:
    """The Struct as Markdown: its title, its docstring, a row for each field."""
    head = [f"**{title}.** {inspect.getdoc(struct)}", "", "| field | type | default | meaning |"]
    rows = [
        f"| `{field.encode_name}` | {type_name(field.type)} | {default_of(field)} | {meanings.get(field.name, '')} |"
        for field in msgspec.structs.fields(struct)
    ]
    return "\n".join([*head, "|---|---|---|---|", *rows])


def comments(struct: type) -> dict[str, str]:
    """The comment behind each field, by the field's name; those of the Structs that it extends too."""
    found: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base in (object, msgspec.Struct) or not issubclass(base, msgspec.Struct):
            continue
        first_words: dict[int, str] = {}
        for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(base)).readline):
            if token.type == tokenize.NAME:
                first_words.setdefault(token.start[0], token.string)
            elif token.type == tokenize.COMMENT and token.start[0] in first_words:
                found[first_words[token.start[0]]] = token.string.lstrip("# ").replace("|", "\\|")
    return found


def type_name(kind: object) -> str:
    """The type in words: `list of float`, `float or null`, `float by text`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is type(None):
        return "null"
    if origin is typing.Annotated:
        return type_name(arguments[0])
    if origin is dict:
        return f"{type_name(arguments[1])} by {type_name(arguments[0])}"
    if origin in (list, set, frozenset):
        return f"list of {type_name(arguments[0])}"
    if origin is tuple:
        return "[" + ", ".join("..." if one is ... else type_name(one) for one in arguments) + "]"
    if arguments:  # a union
        return " or ".join(type_name(one) for one in arguments)
    name = getattr(kind, "__name__", str(kind))
    return {"str": "text", "Any": "anything", "bool": "true or false"}.get(name, name)


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """`required`, or the value where the field is left out."""
    if field.required:
        return "required"
    if field.default_factory is not msgspec.NODEFAULT:
        return "empty"
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
        tables = []
        for line, said in chosen(self.content).items():
            name, _, title = line.partition(" as ")
            struct = getattr(module, name)
            tables.append(table(struct, title or name, self._meanings(struct, said)))
        holder = nodes.container()
        text = StringList("\n\n".join(tables).splitlines(), source=self.get_source_info()[0])
        self.state.nested_parse(text, 0, holder)
        return holder.children

    def _meanings(self, struct: type[msgspec.Struct], said: dict[str, str]) -> dict[str, str]:
        meanings = comments(struct) | said
        fields = {field.name for field in msgspec.structs.fields(struct)}
        for field in sorted(fields - meanings.keys()):
            self._warn(f"{struct.__name__}.{field} has no meaning: add a line `{field}: ...` below {struct.__name__}")
        for field in sorted(said.keys() - fields):
            self._warn(f"{struct.__name__} has no field {field}: remove its line")
        return meanings

    def _warn(self, message: str) -> None:
        LOG.warning(message, location=self.get_location(), type="structs")


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's entry point."""
    app.add_directive("structs", Structs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
