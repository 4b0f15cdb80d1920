"""On a FedML that we do not know our names fail with one line; for its own see `test_own_names`."""

from importlib.metadata import requires
from types import ModuleType

import click.testing
import fedml
import pytest
from fedml.cli.modules import run

import fednnnn_plugin as fp
from fednnnn_plugin.fedml import hook
from fednnnn_plugin.fedml.patches import optimizers, wrap

fp.register()

LINE = "fednnnn-plugin needs FedML 0.9.6 (pip install fedml==0.9.6); found FedML 0.9.7.dev1"


def test_each_of_our_names_is_refused(fedml_args, monkeypatch) -> None:
    monkeypatch.setattr(fedml, "__version__", "0.9.7.dev1")
    optimizers.apply(ModuleType("optrepo_of_another_form"))
    wrap(("fedml.runner.FedMLRunner",), "_not_there", print)
    ours = fedml_args(federated_optimizer="FedNNNN", role="server")
    split = fedml_args(dataset="mnist", partition_method="n_class")
    for call, *words in (
        (fp.register,),
        (fedml.model.create, fedml_args(model="nnnn_mnist"), 10),
        (fedml.data.load, split),
        (fedml.device.get_device, ours),
        (fedml.FedMLRunner, ours, None, None, None),
        (
            fedml.FedMLRunner,
            fedml_args(**vars(ours) | {"training_type": "cross_silo"}),
            *[None] * 3,
        ),
    ):
        with pytest.raises(fp.UserError) as caught:
            call(*words)
        assert str(caught.value) == LINE
    result = click.testing.CliRunner().invoke(run.fedml_run, ["x.yaml"])
    assert (result.exit_code, result.output) == (2, f"{LINE}\n")


def test_fedml_version_is_the_packages_dependency() -> None:
    needed = f"fedml=={hook.FEDML_VERSION}; python_version < '3.12'"
    assert needed in (requires("fednnnn-plugin") or [])
