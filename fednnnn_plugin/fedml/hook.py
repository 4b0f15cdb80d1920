"""The import hook: patches the modules of the one FedML that we know, right after they have run.

``fednnnn_plugin.pth`` runs in every interpreter that starts. It puts a finder of a few lines on
``sys.meta_path``, which does nothing until ``fedml`` is asked for and then imports this module:
other programs never load this package, so it costs them 0.6 ms and cannot break them, and if the
package is gone FedML is imported as if it had never been there.

FedML 0.9.6 cannot be installed on Python 3.12 or later, where this package works without it.
"""

import importlib.metadata
import platform
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fednnnn_plugin.errors import UserError, how_to_install

FEDML_VERSION = "0.9.6"

# FedML's modules that are patched, and what does it in fednnnn_plugin.fedml.patches.
TARGETS = {
    "fedml": ("runner", "script"),
    "fedml.simulation.sp.fedopt.optrepo": ("optimizers",),
    "fedml.simulation.mpi.fedopt.optrepo": ("optimizers",),
    "fedml.simulation.mpi.fedopt_seq.optrepo": ("optimizers",),
    "fedml.cross_silo.server.server_initializer": ("server",),
    "fedml.cli.modules.run": ("run_group",),
}


def why_unusable(name: str = "fednnnn-plugin") -> str | None:
    """Return why ``name`` cannot work here and the remedy, on one line; ``None`` where it can."""
    found = _version()
    if found == FEDML_VERSION:
        return None
    return (
        f"{name} needs FedML {FEDML_VERSION} on Python 3.10 or 3.11 (`uv venv --seed --python "
        "3.11` or `conda create -n fedml python=3.11` makes an environment): "
        f"{how_to_install('fedml')}; found "
        f"{f'FedML {found}' if found else 'none'} on Python {platform.python_version()}"
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


class PatchingFinder:
    """A ``sys.meta_path`` finder that lets the others find a target, which is patched once run."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module in ``TARGETS``; ``None``, not ours to find, for any other."""
        if fullname not in TARGETS:
            return None
        for finder in list(sys.meta_path):
            if finder is not PatchingFinder and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        _patch_after_running(spec.loader)
                    return spec
        return None


def _patch_after_running(loader: Any) -> None:
    """Let a module's own loader run it as ever, and patch it then."""

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # its class's again
        _ignore_warnings_of_the_pinned()
        loader.exec_module(module)
        try:
            _patch(module)
        except Exception as error:
            # An error of ours must not take FedML down with it; register() raises it again.
            warnings.warn(
                f"fednnnn-plugin could not patch {module.__name__} and is off: {error!r}",
                RuntimeWarning,
                stacklevel=2,
            )

    loader.exec_module = exec_module


def _ignore_warnings_of_the_pinned() -> None:
    """Ignore what the old releases that FedML pins say at every start, and no user can mend."""
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
    warnings.filterwarnings("ignore", message=r"urllib3 .* doesn't match a supported version")


def _patch(module: ModuleType) -> None:
    for name in TARGETS[module.__name__]:
        import_module(f"fednnnn_plugin.fedml.patches.{name}").apply(module)


def install(placeholder: object = None) -> None:
    """Put the finder on ``sys.meta_path``, once, for the placeholder of ``fednnnn_plugin.pth``.

    What is imported by then is patched now.
    """
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not placeholder]
    if PatchingFinder not in sys.meta_path:
        sys.meta_path.insert(0, PatchingFinder)
    for name in TARGETS:
        module = sys.modules.get(name)
        if module is not None:
            _patch(module)


def register() -> None:
    """Make FedML know this package's names; safe to call again, before or after ``import fedml``.

    It happens by itself wherever the package is installed. Call it where the hook did not run:
    under ``FEDNNNN_PLUGIN_DISABLE=1``, ``python -S``, or with the package on ``PYTHONPATH`` only.
    It does not import FedML: what is imported is patched now, the rest when it is imported.

    Raises:
        UserError: FedML is not installed, or is not version 0.9.6, the only one that can be
            patched. FedML still works then; only this package's names cannot be used.
    """
    install()
    require()
