"""The text of the code that runs, from a file or a notebook's cell, and what it refers to."""

import ast
import dis
import inspect
import linecache
import logging
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import SourceFileLoader
from tokenize import TokenError
from types import CodeType, FunctionType
from typing import NamedTuple

from fednnnn_plugin.errors import printable

_log = logging.getLogger(__name__)

_MUTATORS = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "fill", "insert"),
    *("move_to_end", "pop", "popitem", "popleft", "remove", "setdefault", "sort", "update"),
}
# Methods whose result has, or may have, the memory of what they are called on, or is in it.
# `float`, `to` and the like are taken for copies, as they are where they convert: a digest has too
# much rather than too little.
_VIEWS = {
    *("chunk", "detach", "diagonal", "expand", "flatten", "get", "movedim", "narrow", "numpy"),
    *("permute", "ravel", "reshape", "select", "setdefault", "split", "squeeze", "swapaxes", "t"),
    *("tensor_split", "transpose", "unbind", "unfold", "unsqueeze", "view", "view_as"),
}
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
# Where a statement has others, of handlers and cases too.
_BODIES = ("body", "handlers", "orelse", "finalbody", "cases")


class Source(NamedTuple):
    """A function's or a statement's text, without comments and docstrings.

    Attributes:
        names: identifiers in it, of variables and attributes.
        changed: those of them whose values it changes, as ``memo`` in ``self.memo[key] = value``.
        imports: level, module and attribute, or none, of each import; ``from . import x`` has 1.
        inner: those of ``names`` that are no variable of its module: local ones, and attributes.
    """

    text: str
    names: frozenset[str]
    changed: frozenset[str] = frozenset()
    imports: tuple[tuple[int, str, str], ...] = ()
    inner: frozenset[str] = frozenset()


def source_of(function: FunctionType) -> Source:
    """Return a function's source; its bytecode where there is no text of it alone.

    As after ``exec``, of several lambdas on a line, or where its file was changed since its import.
    """
    code, loader = function.__code__, function.__globals__.get("__loader__")
    with suppress(SyntaxError, TokenError, RecursionError):
        linecache.checkcache(code.co_filename)
        lines, place = linecache.getlines(code.co_filename), code.co_firstlineno
        # Another loader may run another text than the file's; that of a cell stays as it is.
        if type(loader) is SourceFileLoader and loader.path == code.co_filename:
            place = _place(code, "".join(lines))
        text = "".join(inspect.getblock(lines[place - 1 :]))
        tree = ast.parse(f"if 1:\n{text}" if text[:1].isspace() else text)
        functions = [node for node in ast.walk(tree) if isinstance(node, _FUNCTION)]
        own = [node for node in functions if getattr(node, "name", "<lambda>") == code.co_name]
        if own and (len(own) == 1 or code.co_name != "<lambda>"):
            read = _read(own[0])
            return read._replace(inner=read.names.difference(_head(own[0]), _looked_up(code)))
    names = frozenset(name for each in _codes(code) for name in each.co_names)
    return Source(_bytecode(code), names)


def _place(code: CodeType, text: str) -> int:
    """Return the line at which a file's text has what a code was compiled from.

    Raises:
        SyntaxError: it does not have it any more.
    """
    name, ran = _qualified(code), _bytecode(code)
    same = (each for each in _compiled(text) if _qualified(each) == name and _bytecode(each) == ran)
    places = [each.co_firstlineno for each in same]
    if not places:
        _warn_once(code.co_filename, text)
        raise SyntaxError
    return min(places, key=lambda place: abs(place - code.co_firstlineno))


def _qualified(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)  # before Python 3.11


@cache
def _compiled(text: str) -> list[CodeType]:
    """Return the codes of a text, which has none where it is no Python."""
    with warnings.catch_warnings(), suppress(SyntaxError, ValueError):
        warnings.simplefilter("ignore")  # they were said at its import
        return [*_codes(compile(text, "", "exec", dont_inherit=True))]
    return []


@cache
def _warn_once(file: str, text: str) -> None:
    """Say once of a file's ``text`` that another runs."""
    said = "%s: was changed since it was imported, and what runs is as it was: reload it"
    _log.warning(said, printable(file))


def _head(function: ast.AST) -> Iterator[str]:
    """Yield the variables in a function's decorators, defaults and annotations."""
    fields = dict(ast.iter_fields(function))
    nodes = [fields["args"], *fields.get("decorator_list", ()), fields.get("returns")]
    for each in (each for node in nodes if node for each in ast.walk(node)):
        if isinstance(each, ast.Name):
            yield each.id


def _looked_up(code: CodeType) -> Iterator[str]:
    """Yield the names that a code and all that are in it look up in their module."""
    for each in (step for inner in _codes(code) for step in dis.get_instructions(inner)):
        if "GLOBAL" in each.opname or each.opname == "LOAD_NAME":
            yield each.argval


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code and all that are in it, as of lambdas and classes."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def assignment(file: str, name: str) -> Source | None:
    """Return what assigns, imports or fills a module's variable, at the top of a file or cell.

    With the loops and conditions around it; None if nothing does.
    """
    nodes = [left for node in _tree(file).body if (left := _only(node, name))]
    with suppress(RecursionError):  # a formula of hundreds of terms
        return _read(*nodes) if nodes else None
    return None


def rebound(file: str) -> frozenset[str]:
    """Return the variables of a file's module that its functions, or loops at its top, assign."""
    return _rebound(_tree(file))


@cache
def _rebound(tree: ast.Module) -> frozenset[str]:
    loops = [node for node in _at_top(tree) if isinstance(node, ast.For | ast.While)]
    names = (each for loop in loops for each in _at_top(loop) if isinstance(each, ast.Name))
    of_loops = {each.id for each in names if isinstance(each.ctx, ast.Store)}
    globals_ = (node.names for node in ast.walk(tree) if isinstance(node, ast.Global))
    return frozenset(name for names in globals_ for name in names) | of_loops


def _at_top(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a module or a statement, but for functions and classes."""
    waiting = [node]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if not isinstance(child, (*_FUNCTION, ast.ClassDef)):
                yield child
                waiting.append(child)


def _tree(file: str) -> ast.Module:
    linecache.checkcache(file)
    return _parsed("".join(linecache.getlines(file)))


@cache
def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):  # a cell with a magic command, for example
        return ast.Module([], [])


def _only(node: ast.AST, name: str, *, jumps: bool = False) -> ast.AST | None:
    """Return what of a statement assigns, imports or fills a variable; None if nothing does.

    With what ends a loop that does, where ``jumps`` are asked for.
    """
    if isinstance(node, ast.Break | ast.Continue) and jumps:
        return node
    if isinstance(node, (*_FUNCTION, ast.ClassDef)):
        return None
    if isinstance(node, ast.ImportFrom):
        names = [ast.alias(name) if each.name == "*" else each for each in node.names]
        kept = [each for each in names if (each.asname or each.name) == name]
        return ast.ImportFrom(node.module, kept, node.level) if kept else None
    fields = dict(ast.iter_fields(node))
    bodies: dict[str, list[ast.AST]] = {
        field: [left for each in fields[field] if (left := _only(each, name, jumps=jumps))]
        for field in _BODIES
        if field in fields
    }
    if not any(bodies.values()) and name not in _targets(node):
        return None
    if isinstance(node, ast.For | ast.While) and not jumps:
        return _only(node, name, jumps=True)  # where it stops decides the value
    if bodies.get("orelse") and not bodies.get("handlers", True):  # an else needs one
        caught = fields["handlers"]
        bodies["handlers"] = [ast.ExceptHandler(e.type, e.name, [ast.Pass()]) for e in caught]
    for field in bodies.keys() - {"orelse", "handlers", "cases"}:
        if not bodies[field] and not (field == "finalbody" and bodies["handlers"]):
            bodies[field] = [ast.Pass()]  # a try without handlers needs one
    return ast.copy_location(type(node)(**fields | bodies), node) if bodies else node


def _targets(node: ast.AST) -> set[str]:
    """Return the names that a statement itself assigns or fills."""
    targets: list[ast.AST | None] = []
    match node:
        case ast.Assign(targets=found) | ast.Delete(targets=found):
            targets += found
        case ast.AnnAssign(target=of) | ast.AugAssign(target=of) | ast.For(target=of):
            targets.append(of)
        case ast.While(test=test) | ast.If(test=test):
            targets += [each.target for each in ast.walk(test) if isinstance(each, ast.NamedExpr)]
        case ast.With(items=items):
            targets += [item.optional_vars for item in items]
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=of, attr=attr))):
            targets += [of] if attr in _MUTATORS else []
    walked = (each for of in targets if of for each in ast.walk(of))
    return {each.id for each in walked if isinstance(each, ast.Name)}


def _read(*nodes: ast.AST) -> Source:
    names: set[str] = set()
    changed: set[str] = set()
    imports: set[tuple[int, str, str]] = set()
    for node in (each for of in nodes for each in ast.walk(of)):
        match node:
            case ast.Name():
                names.add(node.id)
            case ast.Attribute(value=value, attr=attr):
                names.add(attr)
                if not isinstance(node.ctx, ast.Load):
                    changed.add(attr)
                elif attr in _MUTATORS:
                    changed |= _last_name(value)
            case ast.Subscript(value=value) if not isinstance(node.ctx, ast.Load):
                changed |= _last_name(value)
            case ast.Call(func=ast.Attribute(value=value, attr=attr), args=args) if (
                _is_in_place(attr) or attr == "copyto"
            ):
                changed |= _last_name(value)
                if args and (attr == "copyto" or "init" in _last_name(value)):
                    changed |= _last_name(args[0])  # np.copyto(memo, ...), nn.init.ones_(memo)
            case ast.keyword(arg="out", value=value):
                changed |= _last_name(value)
            case ast.Global() | ast.Nonlocal():
                changed |= {*node.names}
            case ast.Import():
                imports |= {(0, alias.name, "") for alias in node.names}
            case ast.ImportFrom():
                imports |= {(node.level, node.module or "", each.name) for each in node.names}
    text = "\n".join(ast.unparse(_without_docstrings(node)) for node in nodes)
    return Source(text, frozenset(names), frozenset(changed), tuple(sorted(imports)))


def _is_in_place(method: str) -> bool:
    """Tell whether a tensor's method of this name changes it, as ``add_`` and not ``__init__``."""
    return method.endswith("_") and not method.endswith("__")


def _last_name(node: ast.AST) -> set[str]:
    """Return ``memo`` of it, ``self.memo``, ``memo[key]``, ``memo.data`` and ``memo.t()``.

    Not of ``memo.clone()`` or ``self.memo.layer(x)``, which make something new.
    """
    match node:
        case ast.Subscript(value=of) | ast.Attribute(value=of, attr="data"):
            return _last_name(of)
        case ast.Call(func=ast.Attribute(value=of, attr=attr)) if attr in _VIEWS or _is_in_place(
            attr
        ):
            return _last_name(of)
    return {getattr(node, "attr", "") or getattr(node, "id", "")}


def _without_docstrings(node: ast.AST) -> ast.AST:
    """Return a copy without the docstrings of what is defined in it."""
    copied = ast.parse(ast.unparse(node))
    for each in ast.walk(copied):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            match each.body:
                case [ast.Expr(value=ast.Constant(value=str())), *rest]:
                    each.body = rest or [ast.Pass()]
    return copied


def _bytecode(code: CodeType) -> str:
    """Return what a code is compiled to, in words; comments, places and docstrings do not count."""
    consts = [each for each in code.co_consts if not isinstance(each, CodeType)]
    if consts and isinstance(consts[0], str) and not code.co_name.startswith("<"):
        consts = consts[1:]  # which may be its docstring
    shown = [sorted(map(repr, each)) if isinstance(each, frozenset) else each for each in consts]
    names = code.co_varnames, code.co_names, code.co_freevars, code.co_cellvars
    inner = [_bytecode(each) for each in code.co_consts if isinstance(each, CodeType)]
    return f"{code.co_argcount} {code.co_flags} {names} {code.co_code.hex()} {shown} {inner}"
