"""On a FedML that we do not know its own names work as before, and ours fail with one line."""

import json

import pytest

from fednnnn_plugin.fedml import compatibility

pytestmark = pytest.mark.slow

# Uses every name of ours and, beside it, FedML's own; prints what came of it as JSON.
EVERY_NAME = """
import json, types
import click.testing, fedml, fedml.data, fedml.model, fedml.device
import fednnnn_plugin as fp
from fedml.cli.modules import run
from fedml.simulation.sp.fedopt.optrepo import OptRepo

def args(**values):
    return types.SimpleNamespace(training_type="simulation", backend="sp", **values)

def outcome(call, *arguments):
    try:
        result = call(*arguments)
        return result[0] if isinstance(result, tuple) else str(result)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def command(*words):
    result = click.testing.CliRunner().invoke(run.fedml_run, words)
    return f"{result.exit_code}: {result.output}"

def runner(method):
    return fedml.FedMLRunner(args(federated_optimizer=method)).runner

ours = {
    "register": outcome(fp.register),
    "run": command("x.yaml"),
    "model": outcome(fedml.model.create, args(model="nnnn_mnist"), 10),
    "data": outcome(fedml.data.load, args(dataset="mnist", partition_method="n_class")),
    "device": outcome(fedml.device.get_device, args(federated_optimizer="FedNNNN")),
} | {
    name: outcome(runner, name)
    for name in ("FedNNNN", "NormNorm", "Momentum", "PaperFedAvg", "PaperFedProx")
}
own = {
    "run": command("list"),
    "model": outcome(fedml.model.create, args(model="cnn"), 10),
    "data": outcome(fedml.data.load, args(dataset="mnist", partition_method="hetero")),
    "device": outcome(fedml.device.get_device, args(federated_optimizer="FedAvg")),
    "runner": outcome(runner, "FedAvg"),
}
print(json.dumps([ours, own, sorted(OptRepo.get_opt_names())]))
"""

OWN = {"run": "0: own list\n", "model": "own", "data": "own", "device": "own", "runner": "own"}

NEEDED = "fednnnn-plugin needs FedML 0.9.6 (pip install fedml==0.9.6); "
MISSING = NEEDED + "this copy of FedML 0.9.6 has no "


def outcomes(run_python, path, **environment):
    done = run_python("-c", EVERY_NAME, path=path, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("version", ["0.9.5", "0.9.7.dev1"])
def test_another_version_keeps_its_own_names_and_refuses_ours(
    run_python, fake_fedml, version: str
) -> None:
    folder = fake_fedml(version)
    ours, own, optimizers = outcomes(run_python, folder)
    line = f"{NEEDED}found FedML {version}"
    assert ours.pop("run") == f"2: {line}\n"
    assert set(ours.values()) == {f"UserError: {line}"}
    assert own == OWN
    assert not {"fednnnn", "normnorm"} & set(optimizers)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("simulation/mpi/fedopt/optrepo.py", "fedml/simulation/mpi/fedopt/optrepo.py"),
        ("runner.py:_init_simulation_runner", "fedml.runner.FedMLRunner._init_simulation_runner"),
        ("runner.py:_init_cross_silo_runner", "fedml.runner.FedMLRunner._init_cross_silo_runner"),
    ],
)
def test_a_missing_patch_point_refuses_our_names(run_python, fake_fedml, missing, named) -> None:
    folder = fake_fedml(missing=missing)
    ours, own, optimizers = outcomes(run_python, folder)
    assert ours.pop("run") == f"2: {MISSING}{named}\n"
    if missing.startswith("runner.py"):  # nothing to wrap: FedML itself meets our method names
        ours = {name: ours[name] for name in ("register", "model", "data", "device")}
        own.pop("runner")
    assert set(ours.values()) == {f"UserError: {MISSING}{named}"}
    assert own == {name: OWN[name] for name in own}
    assert not {"fednnnn", "normnorm"} & set(optimizers)


def test_a_point_that_is_missing_in_a_late_module_is_found_when_it_is_imported(
    run_python, fake_fedml
) -> None:
    program = (
        "import fednnnn_plugin as fp, fedml; fp.register()\n"
        "import fedml.simulation.sp.fedopt.optrepo\n"
        "fp.register()"
    )
    folder = fake_fedml(missing="simulation/sp/fedopt/optrepo.py:name2cls")
    done = run_python("-c", program, path=folder)
    assert done.stderr.endswith(f"{MISSING}fedml.simulation.sp.fedopt.optrepo.OptRepo.name2cls\n")


@pytest.mark.parametrize("imported", ["sys", "fedml"])
def test_register_raises_on_either_side_of_the_import(run_python, fake_fedml, imported) -> None:
    program = f"import {imported}, fednnnn_plugin as fp; fp.register()"
    done = run_python("-c", program, path=fake_fedml("1.0.0"))
    assert done.stderr.endswith(f"UserError: {NEEDED}found FedML 1.0.0\n")


def test_the_version_is_the_one_that_the_package_depends_on() -> None:
    from importlib.metadata import requires

    assert f"fedml=={compatibility.FEDML_VERSION}" in (requires("fednnnn-plugin") or [])
