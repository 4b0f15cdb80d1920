"""On a FedML that we do not know our names fail with one line; for its own see `test_own_names`."""

import re
from importlib.metadata import requires
from types import ModuleType

import click.testing
import fedml
from fedml.cli.modules import run

import fednnnn_plugin as fp
from fednnnn_plugin.fedml import hook
from fednnnn_plugin.fedml.patches import optimizers, wrap

from .rounds import fedml_args, refused, silo_args

LINE = "fednnnn-plugin needs FedML 0.9.6 (pip install fedml==0.9.6); found FedML 0.9.7.dev1"


def test_our_names_are_refused_on_another_fedml(monkeypatch) -> None:
    monkeypatch.setattr(fedml, "__version__", "0.9.7.dev1")
    optimizers.apply(ModuleType("optrepo_of_another_form"))
    wrap(("fedml.runner.FedMLRunner",), "_not_there", print)
    ours = fedml_args(federated_optimizer="FedNNNN")
    for call, *words in (
        (fp.register,),
        (fedml.model.create, fedml_args(model="nnnn_mnist"), 10),
        (fedml.data.load, fedml_args(dataset="mnist", partition_method="n_class")),
        (fedml.device.get_device, ours),
        (fedml.FedMLRunner, ours, None, None, None),
        (fedml.FedMLRunner, silo_args(federated_optimizer="FedNNNN"), None, None, None),
    ):
        with refused(re.escape(LINE)):
            call(*words)
    result = click.testing.CliRunner().invoke(run.fedml_run, ["x.yaml"])
    assert (result.exit_code, result.output) == (2, f"{LINE}\n")


def test_fedml_version_is_the_packages_dependency() -> None:
    needed = f"fedml=={hook.FEDML_VERSION}; python_version < '3.12'"
    assert needed in (requires("fednnnn-plugin") or [])
