"""What FedML's own names do, as JSON, under FedML and the plugin as the last argument says:

off       not registered, though our aggregator is used
on        patched already
unknown   registered in a FedML of a version that we do not know
"""

import contextlib
import hashlib
import io
import json
import logging
import sys
from types import SimpleNamespace

import click.testing
import fedml
import torch
from fedml.cli.modules import run
from fedml.simulation.mpi.fedopt.optrepo import OptRepo as MPIOptRepo
from fedml.simulation.mpi.fedopt_seq.optrepo import OptRepo as SeqOptRepo
from fedml.simulation.sp.fedopt.optrepo import OptRepo
from own_data_and_model import LogisticRegression, load_data

THEIRS = {"server_optimizer": "adagrad", "server_lr": 0.1, "fedprox_mu": 0.1}
THEIRS |= {"ci": 0, "weight_decay": 0.0, "comm_round": 2, "epochs": 1}


def trained(optimizer):
    """Return what is left of a run: the model's digest, and whose simulator it was."""
    args = fedml.arguments.load_arguments()
    vars(args).update(THEIRS, federated_optimizer=optimizer)
    fedml.mlops.pre_setup(args)
    torch.manual_seed(0)
    model = LogisticRegression(64, 10)
    runner = fedml.FedMLRunner(args, fedml.device.get_device(args), load_data(args), model)
    runner.run()
    content = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    return [type(runner.runner).__name__, hashlib.sha256(content).hexdigest()]


def refusal(call, *values):
    try:
        return call(*values)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


logging.disable()
plugin = sys.argv.pop()
if plugin == "unknown":
    fedml.__version__ = "0.9.7"
    import fednnnn_plugin as fp

    refusal(fp.register)
with contextlib.redirect_stdout(io.StringIO()):
    found = {
        "trained": [trained(name) for name in ("FedAvg", "FedProx", "FedOpt")],
        "registries": [sorted(repo.get_opt_names()) for repo in (OptRepo, MPIOptRepo, SeqOptRepo)],
        "unknown method": refusal(trained, "NoSuchMethod"),
        "help": click.testing.CliRunner().invoke(run.fedml_run, ["--help"]).output,
    }
if plugin == "off":
    import fednnnn_plugin as fp

    fp.FedNNNNAggregator(torch.nn.Linear(2, 2), SimpleNamespace(beta=0.5, gamma=0.5))
found["patched"] = hasattr(fedml.FedMLRunner._init_simulation_runner, "__fednnnn_wraps__")
sys.stdout.write(json.dumps(found) + "\n")
