"""Is there a FedML, and is it the one whose inside we patch?

FedML 0.9.6 cannot be installed on Python 3.12 or later, where this package works without it.
"""

import importlib.metadata
import platform
import sys

from fednnnn_plugin.errors import UserError

FEDML_VERSION = "0.9.6"
_FIRST_WITHOUT = (3, 12)

# FedML's modules that are patched, and what does it in fednnnn_plugin.fedml.patches.
TARGETS = {
    "fedml": ("runner", "script"),
    "fedml.simulation.sp.fedopt.optrepo": ("optimizers",),
    "fedml.simulation.mpi.fedopt.optrepo": ("optimizers",),
    "fedml.simulation.mpi.fedopt_seq.optrepo": ("optimizers",),
    "fedml.cli.modules.run": ("run_group",),
}


def why_unusable(name: str = "fednnnn-plugin") -> str | None:
    """Return why ``name`` cannot work here and the remedy, on one line; ``None`` where it can."""
    found = _version()
    if found == FEDML_VERSION:
        return None
    needed = f"{name} needs FedML {FEDML_VERSION}"
    if found is not None:
        return f"{needed} (pip install fedml=={FEDML_VERSION}); found FedML {found}"
    if sys.version_info < _FIRST_WITHOUT:
        return f"{needed}, which is not installed: pip install fedml=={FEDML_VERSION}"
    return (
        f"{needed}, which installs on Python 3.10 and 3.11 only; this is Python "
        f"{platform.python_version()}: make an environment with `uv venv --python 3.11` or `conda "
        "create -n fedml python=3.11`, and install fednnnn-plugin there"
    )


def require(name: str = "fednnnn-plugin") -> None:
    """Raise unless ``name`` can work here."""
    reason = why_unusable(name)
    if reason is not None:
        raise UserError(reason)


def _version() -> str | None:
    module = sys.modules.get("fedml")
    if module is not None:
        return str(getattr(module, "__version__", "of an unknown version"))
    try:
        return importlib.metadata.version("fedml")
    except importlib.metadata.PackageNotFoundError:
        return None
