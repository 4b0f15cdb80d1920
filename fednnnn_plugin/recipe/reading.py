"""Bounded reading of YAML: plain values only, and never more work than a recipe needs."""

import re
from pathlib import Path

import yaml
from yaml.constructor import SafeConstructor
from yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe.wording import printable

MAX_BYTES = 1 << 18
MAX_DEPTH = 10
MAX_EVENTS = 5_000
MAX_DIGITS = 100

_TAG = "tag:yaml.org,2002:"
_CONSTRUCTOR = SafeConstructor()
_NUMBERS = {
    f"{_TAG}int": _CONSTRUCTOR.construct_yaml_int,
    f"{_TAG}float": _CONSTRUCTOR.construct_yaml_float,
}
# A date, a merge sign or a value sign is text here: no key takes one.
_TEXT = {f"{_TAG}{name}" for name in ("str", "timestamp", "merge", "value")}
# An escaped half of a character, which no file can hold.
_SURROGATE = re.compile("[\ud800-\udfff]")

# PyYAML lets these through, for instance for the escape "\\UFFFFFFFF" or the version %YAML 1.1e9.
_SCANNER_SLIPS = (ValueError, OverflowError, IndexError)


class NotReadableError(Exception):
    """The text is not YAML, or not YAML that a recipe may contain; one line, with its place."""


def read_file(path: Path) -> str:
    """Read a text file.

    Raises:
        UserError: no such file, not a regular file, unreadable, too large, or not UTF-8.
    """
    where = printable(str(path))
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
    """Read one YAML document of mappings, lists, text, numbers, true, false and null.

    Raises:
        NotReadableError: not YAML; an alias, a tag or a duplicate key; too deep or too long.
    """
    try:
        _check_bounds(text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as error:
        place = text.count("\n", 0, error.position) + 1
        raise NotReadableError(f"line {place}: not YAML: {printable(error.reason)}") from None
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark.line + 1 if error.problem_mark else 1
        reason = printable(error.problem or error.context or "cannot be read")
        raise NotReadableError(f"line {place}: not YAML: {reason}") from None
    except _SCANNER_SLIPS as error:
        raise NotReadableError(f"not YAML: {printable(str(error))}") from None
    return None if node is None else _value(node)


def _check_bounds(text: str) -> None:
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        if isinstance(event, AliasEvent):
            raise NotReadableError(f"{_line(event)}: aliases are not accepted; repeat the value")
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise NotReadableError(f"{_line(event)}: nested more than {MAX_DEPTH} deep")
        if count > MAX_EVENTS:
            raise NotReadableError(f"{_line(event)}: more than {MAX_EVENTS} entries")


def _line(where: yaml.Event | Node) -> str:
    return f"line {where.start_mark.line + 1}" if where.start_mark else "line 1"


def _value(node: Node) -> object:
    if isinstance(node, ScalarNode):
        return _scalar(node)
    if isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq":
        return [_value(item) for item in node.value]
    if isinstance(node, MappingNode) and node.tag == f"{_TAG}map":
        return _mapping(node)
    raise NotReadableError(f"{_line(node)}: the tag {printable(node.tag)} is not accepted")


def _mapping(node: MappingNode) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in node.value:
        if not isinstance(key, ScalarNode):
            raise NotReadableError(f"{_line(key)}: a key must be a word")
        if key.value in values:
            raise NotReadableError(f"{_line(key)}: {printable(key.value)} is given twice")
        values[key.value] = _value(value)
    return values


def _scalar(node: ScalarNode) -> object:
    if node.tag in _TEXT and not _SURROGATE.search(node.value):
        return str(node.value)
    if node.tag == f"{_TAG}null":
        return None
    if node.tag == f"{_TAG}bool" and node.value.lower() in SafeConstructor.bool_values:
        return SafeConstructor.bool_values[node.value.lower()]
    if node.tag in _NUMBERS and len(node.value) <= MAX_DIGITS:
        try:
            number: int | float = _NUMBERS[node.tag](node)
        except (ValueError, IndexError, OverflowError):
            pass
        else:
            return number
    what = printable(f"{node.tag.removeprefix(_TAG)} {node.value}")
    raise NotReadableError(f"{_line(node)}: {what} is not accepted")
