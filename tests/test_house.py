"""Where the code stands: a room imports from lower floors only, and nothing in a circle."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import fednnnn_plugin

ROOT = Path(fednnnn_plugin.__file__).parent
# As CONTRIBUTING.md draws them, from the ground.
FLOORS = (
    "callable_package errors files seeds",
    "user_code reading",
    "fingerprint",
    "server data models",
    "client",
    "recipe",
    "engine report",
    "tune",
    "cli",
    "fedml",
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms.split()}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def imported_names(name: str) -> frozenset[str]:
    """Return what a module imports, at its top or lazily: modules, and names of them."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def imports(name: str) -> frozenset[str]:
    """Return the modules of the package that a module imports."""
    return (imported_names(name) & MODULES.keys()) - {name, "fednnnn_plugin"}


def room(name: str) -> str:
    return name.split(".")[1]


def test_rooms_import_from_lower_floors_only() -> None:
    for name in MODULES.keys() - {"fednnnn_plugin"}:
        own = room(name)
        for other in imports(name):
            below = room(other) == own or FLOOR[room(other)] < FLOOR[own]
            assert below, f"{name} imports {other}"


def test_imports_have_no_circle() -> None:
    # A package's own __init__ may gather what its modules offer.
    graph = {
        name: {other for other in imports(name) if not name.startswith(f"{other}.")}
        for name in MODULES
    }
    TopologicalSorter(graph).prepare()  # names the circle
