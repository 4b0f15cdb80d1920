"""A recipe's YAML: plain values, read by PyYAML's safe loader with its gaps closed."""

import re
from collections.abc import Hashable
from pathlib import Path

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from fednnnn_plugin.errors import UserError, printable

MAX_BYTES = 1 << 18
_MAX_DIGITS = 100

_TAG = "tag:yaml.org,2002:"
_NUMBERS = {f"{_TAG}int", f"{_TAG}float"}
# An escaped half of a character, which no file can hold.
_SURROGATE = re.compile("[\ud800-\udfff]")

# PyYAML lets these through, for instance for "\\UFFFFFFFF", %YAML 1.1e9, !!int x or [[[[….
_SLIPS = (ValueError, ArithmeticError, LookupError, AttributeError, TypeError, RecursionError)


class NotReadableError(Exception):
    """The text is not YAML, or not YAML that a recipe may contain; one line, with its place."""


def read_file(path: Path) -> str:
    """Read a text file.

    Raises:
        UserError: no such file, not a regular file, unreadable, too large, or not UTF-8.
    """
    where = printable(path)
    try:
        if not path.exists():
            raise UserError(f"{where}: no such file; a recipe is a YAML file")
        if not path.is_file():
            kind = "a directory" if path.is_dir() else "not a regular file"
            raise UserError(f"{where}: {kind}; a recipe is a YAML file")
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{where}: cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise UserError(f"{where}: larger than {MAX_BYTES // 1024} KiB; not a recipe")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not text in UTF-8 (byte {error.start})") from None


def read_yaml(text: str) -> object:
    """Read one YAML document; the keys of its mappings are text.

    Raises:
        NotReadableError: not YAML; an alias, a tag of Python's, or a key that is given twice.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.reader.ReaderError as error:
        place = text.count("\n", 0, error.position) + 1
        raise NotReadableError(f"line {place}: not YAML: {printable(error.reason)}") from None
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark.line + 1 if error.problem_mark else 1
        kind = "" if isinstance(error, ComposerError | ConstructorError) else "not YAML: "
        problem = printable(error.problem or error.context or "cannot be read")
        raise NotReadableError(f"line {place}: {kind}{problem}") from None
    except _SLIPS as error:
        deep = "nested too deep" if isinstance(error, RecursionError) else error
        raise NotReadableError(f"not YAML: {printable(deep)}") from None


class _Loader(yaml.SafeLoader):
    """Reads ``5e-4`` as a number and a date as text; refuses aliases and keys given twice."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):  # a few lines of them make gigabytes
            mark = self.peek_event().start_mark
            raise ComposerError(None, None, "aliases are not accepted; repeat the value", mark)
        return super().compose_node(parent, index)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        text: str = super().construct_scalar(node)
        if node.tag in _NUMBERS and len(text) > _MAX_DIGITS:
            problem = f"a number of more than {_MAX_DIGITS} digits is not accepted"
            raise ConstructorError(None, None, problem, node.start_mark)
        if _SURROGATE.search(text):
            problem = f"half a character is not accepted: {text}"
            raise ConstructorError(None, None, problem, node.start_mark)
        return text

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConstructorError(None, None, "a key must be a word", key.start_mark)
            if key.value in seen:
                raise ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(key.value)
            key.tag = f"{_TAG}str"  # also 1, true, and << which would merge
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# YAML 1.1, and so PyYAML, wants a dot and a sign: 5.0e-4.
_EXPONENT = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+\Z", re.ASCII)
_Loader.add_implicit_resolver(f"{_TAG}float", _EXPONENT, list("-+.0123456789"))
