"""A folder of the package imports from lower floors only, and nothing in a circle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import fednnnn_plugin

ROOT = Path(fednnnn_plugin.__file__).parent
# As CONTRIBUTING.md draws them, from the ground.
FLOORS = "errors seeds quantities | files | packaged_recipes user_code reading networks | "
FLOORS += "fingerprint | server data models processes | client | run_folder | "
FLOORS += "recipe followers | rounds | assembly reporting | tuning | cli | fedml flower"
FLOOR = {room: at for at, rooms in enumerate(FLOORS.split("|")) for room in rooms.split()}
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


def imports(name: str) -> set[str]:
    """The package's modules that a module imports, at its top or lazily."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return (found & MODULES.keys()) - {name, "fednnnn_plugin"}


def test_rooms_import_from_lower_floors_only() -> None:
    for name in MODULES.keys() - {"fednnnn_plugin"}:
        own = name.split(".")[1]
        for other in imports(name):
            room = other.split(".")[1]
            assert room == own or FLOOR[room] < FLOOR[own], f"{name} imports {other}"


def test_imports_have_no_circle() -> None:
    """A package's ``__init__`` may gather what its modules offer."""
    graph = {
        name: {other for other in imports(name) if not name.startswith(f"{other}.")}
        for name in MODULES
    }
    TopologicalSorter(graph).prepare()  # names the circle


def test_only_the_assembly_sees_a_recipe() -> None:
    """And what is above it; a figure of a partition may be of a recipe's."""
    rooms = {"recipe", "assembly", "tuning", "cli", "fedml", "flower"}
    seeing = {name for name in MODULES if any(".recipe" in other for other in imports(name))}
    others = {name for name in seeing if name.split(".")[1] not in rooms}
    assert others == {"fednnnn_plugin.reporting.split_figures"}
