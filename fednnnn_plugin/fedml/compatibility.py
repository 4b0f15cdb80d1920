"""Is the FedML that is installed the one whose inside we patch?"""

import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from fednnnn_plugin.errors import UserError

FEDML_VERSION = "0.9.6"

# Attributes that ``import fedml`` provides ...
ATTRIBUTES = (
    ("fedml.runner", "FedMLRunner._init_simulation_runner"),
    ("fedml.runner", "FedMLRunner._init_cross_silo_runner"),
    ("fedml.data", "load"),
    ("fedml.data.data_loader", "load"),
    ("fedml.model", "create"),
    ("fedml.model.model_hub", "create"),
    ("fedml.device", "get_device"),
    ("fedml.device.device", "get_device"),
)
# ... and files that are loaded later, if ever.
FILES = (
    "simulation/sp/fedopt/optrepo.py",
    "simulation/mpi/fedopt/optrepo.py",
    "simulation/mpi/fedopt_seq/optrepo.py",
    "cli/modules/run.py",
)

_missing: dict[str, None] = {}  # patch points found to be missing so far, in order


def report_missing(point: str) -> None:
    """Remember that FedML lacks ``point`` (a dotted name or a file): our names fail from now on."""
    _missing[point] = None


def check_imported() -> None:
    """Look for every patch point of the FedML that has just been imported."""
    for module, attribute in ATTRIBUTES:
        found: object = sys.modules.get(module)
        for name in attribute.split("."):
            found = getattr(found, name, None)
        if found is None:
            report_missing(f"{module}.{attribute}")
    _check_files(sys.modules["fedml"].__path__)


def problem() -> str | None:
    """Return why our names cannot work here, as one line, or ``None`` where they can."""
    found = _version()
    needed = f"fednnnn-plugin needs FedML {FEDML_VERSION} (pip install fedml=={FEDML_VERSION})"
    if found is None:
        return f"{needed}; FedML is not installed"
    if found != FEDML_VERSION:
        return f"{needed}; found FedML {found}"
    if _missing:
        return f"{needed}; this copy of FedML {found} has no {', '.join(_missing)}"
    return None


def require() -> None:
    """Raise unless our names can work here.

    Raises:
        UserError: one line with the version that is needed and what was found or is missing.
    """
    reason = problem()
    if reason is not None:
        raise UserError(reason)


def _version() -> str | None:
    module = sys.modules.get("fedml")
    if module is not None:
        return str(getattr(module, "__version__", "of an unknown version"))
    spec = importlib.util.find_spec("fedml")
    if spec is None:
        return None
    _check_files(spec.submodule_search_locations or [])
    try:
        return importlib.metadata.version("fedml")
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"


def _check_files(folders: Iterable[str]) -> None:
    folders = list(folders)
    for file in FILES:
        if not any(Path(folder, file).is_file() for folder in folders):
            report_missing(f"fedml/{file}")
