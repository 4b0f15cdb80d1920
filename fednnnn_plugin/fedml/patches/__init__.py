"""The patches. Each acts on our names only and passes the rest through.

On a FedML that we do not know the wrappers go in all the same, where there is something to wrap:
they change nothing for FedML's own names and make ours fail with one line that says why.
"""

from types import ModuleType

from fednnnn_plugin.fedml import compatibility
from fednnnn_plugin.fedml.patches import data, optimizers, run_group, runner, script


def patch_core(fedml: ModuleType) -> None:
    """Patch what ``import fedml`` has loaded."""
    compatibility.check_files(fedml.__path__)
    for patch in (runner, data, script):
        patch.apply()


def patch_optimizer_registry(optrepo: ModuleType) -> None:
    """Add the server optimizers to one of FedML's three copies of ``OptRepo``."""
    optimizers.apply(optrepo)


def patch_run_group(run: ModuleType) -> None:
    """Let ``fedml run`` take a recipe."""
    run_group.apply(run)
