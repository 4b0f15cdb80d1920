"""On a FedML that we do not know our names fail with one line; for its own see `test_own_names`."""

from importlib.metadata import requires
from types import ModuleType

import click.testing
import fedml
import pytest
from fedml.cli.modules import run

import fednnnn_plugin as fp
from fednnnn_plugin.fedml import compatibility
from fednnnn_plugin.fedml.patches import optimizers, wrapping

fp.register()

NEEDED = "fednnnn-plugin needs FedML 0.9.6 (pip install fedml==0.9.6); "
MISSING = NEEDED + "this copy of FedML 0.9.6 has no "
OPTREPO = "fedml/simulation/mpi/fedopt/optrepo.py"


@pytest.fixture(params=["version", "file", "function", "late"])
def line(request, monkeypatch, tmp_path) -> str:
    """What is said of a FedML of another version, or one that lacks something."""
    monkeypatch.setattr(compatibility, "_missing", {})
    if request.param == "version":
        monkeypatch.setattr(fedml, "__version__", "0.9.7.dev1")
        return NEEDED + "found FedML 0.9.7.dev1"
    if request.param == "file":
        for name in set(compatibility.TARGETS) - {"fedml", "fedml.simulation.mpi.fedopt.optrepo"}:
            file = tmp_path / f"{name.replace('.', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        compatibility.check_files([str(tmp_path / "fedml")])
        return MISSING + OPTREPO
    if request.param == "function":
        wrapping.wrap(("fedml.runner.FedMLRunner",), "_init_more", print)
        return MISSING + "fedml.runner.FedMLRunner._init_more"
    late = ModuleType("late")
    late.OptRepo = type("OptRepo", (), {"repo": {}, "get_opt_names": 0, "supported_parameters": 0})
    optimizers.apply(late)
    assert late.OptRepo.repo == {}
    return MISSING + "late.OptRepo.name2cls"


def test_each_of_our_names_is_refused(line, fedml_args) -> None:
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
        assert str(caught.value) == line
    result = click.testing.CliRunner().invoke(run.fedml_run, ["x.yaml"])
    assert (result.exit_code, result.output) == (2, f"{line}\n")


def test_the_version_is_the_one_that_the_package_depends_on() -> None:
    assert f"fedml=={compatibility.FEDML_VERSION}" in (requires("fednnnn-plugin") or [])
