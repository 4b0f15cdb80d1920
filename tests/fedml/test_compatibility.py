"""On a FedML that we do not know its own names work as before, and ours fail with one line."""

import json

import pytest

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
    "runner": outcome(runner, "FedNNNN"),
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

NEEDED = "fednnnn-plugin needs FedML 0.9.6 (pip install fedml==0.9.6); "
MISSING = NEEDED + "this copy of FedML 0.9.6 has no "
OPTREPO = "simulation/mpi/fedopt/optrepo.py"


@pytest.mark.parametrize(
    ("version", "missing", "line"),
    [
        ("0.9.5", "", f"{NEEDED}found FedML 0.9.5"),
        ("0.9.7.dev1", "", f"{NEEDED}found FedML 0.9.7.dev1"),
        ("0.9.6", OPTREPO, f"{MISSING}fedml/{OPTREPO}"),
        *(
            ("0.9.6", f"runner.py:{name}", f"{MISSING}fedml.runner.FedMLRunner.{name}")
            for name in ("_init_simulation_runner", "_init_cross_silo_runner")
        ),
    ],
)
def test_an_unknown_fedml_keeps_its_own_names_and_refuses_ours(
    version, missing, line, run_program, fake_fedml
) -> None:
    done = run_program(EVERY_NAME, fake_fedml(version, missing))
    assert done.returncode == 0, done.stderr
    ours, own, optimizers = json.loads(done.stdout)
    assert ours.pop("run") == f"2: {line}\n"
    if missing.startswith("runner.py"):  # nothing to wrap: FedML itself meets our method names
        ours.pop("runner")
        own.pop("runner")
    assert set(ours.values()) == {f"UserError: {line}"}
    assert own.pop("run") == "0: own list\n"
    assert set(own.values()) == {"own"}
    assert not {"fednnnn", "normnorm"} & set(optimizers)


@pytest.mark.parametrize(
    ("program", "fedml", "line"),
    [
        ("fp.register()", {"version": "1.0.0"}, f"{NEEDED}found FedML 1.0.0\n"),
        ("import fedml; fp.register()", {"version": "1.0.0"}, f"{NEEDED}found FedML 1.0.0\n"),
        (
            "import fedml; fp.register()\nimport fedml.simulation.sp.fedopt.optrepo; fp.register()",
            {"missing": "simulation/sp/fedopt/optrepo.py:name2cls"},
            f"{MISSING}fedml.simulation.sp.fedopt.optrepo.OptRepo.name2cls\n",
        ),
    ],
    ids=["before the import", "after the import", "in a module that is imported late"],
)
def test_register_raises_as_soon_as_it_knows(program, fedml, line, run_program, fake_fedml) -> None:
    done = run_program(f"import fednnnn_plugin as fp; {program}", fake_fedml(**fedml))
    assert done.stderr.endswith(f"UserError: {line}")
