"""YAML of plain values: PyYAML's safe loader and dumper with their gaps closed."""

import re
import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from fednnnn_plugin.errors import UserError, printable, reason, shown
from fednnnn_plugin.files import read_regular

MAX_BYTES = 1 << 18
_MAX_DIGITS = 100

_TAG = "tag:yaml.org,2002:"
_NUMBERS = {f"{_TAG}int", f"{_TAG}float"}
_PLAIN = {f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map")}
# An escaped half of a character, which no file can hold.
_SURROGATE = re.compile("[\ud800-\udfff]")

# PyYAML lets these through, for instance for "\\UFFFFFFFF", %YAML 1.1e9, !!int x or [[[[….
_SLIPS = (ValueError, ArithmeticError, LookupError, AttributeError, TypeError, RecursionError)


def read_mapping(path: Path, of: str, *, as_pyyaml: bool = False) -> dict[str, Any]:
    """Read a YAML file that holds a mapping; a ``UserError`` says why it cannot be read.

    What another program reads, ``as_pyyaml`` reads alike: with aliases, ``1e-5`` as text.
    """
    where = printable(path)
    try:
        loader = yaml.SafeLoader if as_pyyaml else _Loader
        values = _read(read_regular(path, MAX_BYTES).decode("utf-8-sig"), where, loader)
    except OSError as error:
        raise UserError(where, f"cannot be read: {reason(error)}") from None
    except UnicodeDecodeError as error:
        raise UserError(where, f"not text in UTF-8 (byte {error.start})") from None
    if not isinstance(values, dict):
        what = "empty" if values is None else shown(values)
        raise UserError(where, what, f"must be a mapping of {of}")
    return values


def read_yaml(text: str, where: str = "") -> object:
    """Read one YAML document of plain values; the keys of its mappings are text."""
    return _read(text, where, _Loader)


def read_value(text: str) -> object:
    """Read the YAML of one value; a comment after a scalar or a flow value is refused."""
    value, node = read_yaml(text), yaml.compose(text, _Loader)
    after = text[node.end_mark.index if node else 0 :].strip()
    if after.startswith("#"):
        quoted = f"leave it out, or write text in quotes, as in KEY='\"a {printable(after)}\"'"
        raise UserError("", f"{printable(after)}: a comment in YAML", quoted)
    return value


def _read(text: str, where: str, loader: type[yaml.SafeLoader]) -> object:
    try:
        return yaml.load(text, Loader=loader)
    except yaml.reader.ReaderError as error:
        place = text.count("\n", 0, error.position) + 1
        raise UserError(where, f"line {place}: not YAML: {printable(error.reason)}") from None
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark.line + 1 if error.problem_mark else 1
        kind = "" if isinstance(error, ConstructorError) else "not YAML: "
        problem = printable(error.problem or error.context or "cannot be read")
        raise UserError(where, f"line {place}: {kind}{problem}") from None
    except _SLIPS as error:
        deep = "nested too deep" if isinstance(error, RecursionError) else error
        raise UserError(where, f"not YAML: {printable(deep)}") from None


def write_yaml(values: object) -> str:
    """Write plain values as YAML that :func:`read_yaml` reads back, in their order.

    Escaped to ASCII: PyYAML writes a bare U+0085 that it then reads as another character. A value
    stands on one line, for those who look for it by line.
    """
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=sys.maxsize)
    return text


def _refused(problem: str, mark: yaml.Mark) -> ConstructorError:
    return ConstructorError(None, None, problem, mark)


class _Loader(yaml.SafeLoader):
    """Reads ``5e-4`` as a number, and dates, ``1:30`` and ``010`` as text.

    It refuses aliases, tags of other than plain values, and keys that are given twice.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()
        if self.check_event(yaml.AliasEvent):  # a few lines of them make gigabytes
            raise _refused("aliases are not accepted; repeat the value", event.start_mark)
        tag = getattr(event, "tag", None)
        if tag not in (None, "!", *_PLAIN):
            raise _refused(f"the tag {tag} is not accepted; leave it out", event.start_mark)
        return super().compose_node(parent, index)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        text: str = super().construct_scalar(node)
        # JSON escapes a character beyond 16 bits as two halves.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        if node.tag in _NUMBERS and len(text) > _MAX_DIGITS:
            problem = f"a number of more than {_MAX_DIGITS} digits is not accepted"
            raise _refused(problem, node.start_mark)
        if _SURROGATE.search(text):
            raise _refused(f"half a character is not accepted: {text}", node.start_mark)
        return text

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused("a key must be a word", key.start_mark)
            if key.value in seen:
                raise _refused(f"{key.value} is given twice", key.start_mark)
            seen.add(key.value)
            key.tag = f"{_TAG}str"  # also 1, true, and << which would merge
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes the text that the loader would read as a number, or that has several lines."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = '"' if "\n" in text else None
        return self.represent_scalar(f"{_TAG}str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)
# Of their subclasses too, such as NumPy's float64.
_Dumper.add_multi_representer(str, lambda dumper, text: dumper.represent_text(str.__str__(text)))
_Dumper.add_multi_representer(float, lambda dumper, x: dumper.represent_float(float(x)))


# YAML 1.1, and so PyYAML, reads 1:30 as 90 and 010 as 8.
_OTHER_BASE = re.compile(r"[-+]?(0[0-9_]|[0-9_]+:)")
_Loader.yaml_implicit_resolvers = {
    first: [
        (f"{_TAG}str", _OTHER_BASE),
        *((tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"),
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# It wants a dot and a sign: 5.0e-4.
_EXPONENT = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+\Z", re.ASCII)
for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(f"{_TAG}float", _EXPONENT, list("-+.0123456789"))
