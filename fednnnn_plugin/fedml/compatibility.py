"""Is the FedML that is installed the one whose inside we patch?"""

import importlib.metadata
import sys

from fednnnn_plugin.errors import UserError

FEDML_VERSION = "0.9.6"

# FedML's modules that are patched, and what does it in fednnnn_plugin.fedml.patches.
TARGETS = {
    "fedml": ("runner", "data", "script"),
    "fedml.simulation.sp.fedopt.optrepo": ("optimizers",),
    "fedml.simulation.mpi.fedopt.optrepo": ("optimizers",),
    "fedml.simulation.mpi.fedopt_seq.optrepo": ("optimizers",),
    "fedml.cli.modules.run": ("run_group",),
}


def problem() -> str | None:
    """Return why our names cannot work here, as one line, or ``None`` where they can."""
    found = _version()
    if found == FEDML_VERSION:
        return None
    told = "FedML is not installed" if found is None else f"found FedML {found}"
    return (
        f"fednnnn-plugin needs FedML {FEDML_VERSION} (pip install fedml=={FEDML_VERSION}); {told}"
    )


def require() -> None:
    """Raise unless our names can work here."""
    reason = problem()
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
