"""What FedML's own names do, as JSON, after what the one argument says of the plugin:

off, on     it is not registered, or is
unknown     it is, in a FedML of a version that we do not know
aggregator  it is not, and our aggregator is used
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
from fedml.simulation.mpi.fedopt_seq.optrepo import OptRepo as MPISeqOptRepo
from fedml.simulation.sp.fedopt.optrepo import OptRepo as SPOptRepo

SETTINGS = {
    **{"training_type": "simulation", "backend": "sp", "dataset": "synthetic", "ci": 0},
    **{"client_num_in_total": 3, "client_num_per_round": 2, "comm_round": 2, "epochs": 2},
    **{"batch_size": 4, "client_optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.0},
    **{"server_optimizer": "adagrad", "server_lr": 0.1, "fedprox_mu": 0.1},
    **{"frequency_of_the_test": 1, "enable_wandb": False, "using_mlops": False},
    **{"using_gpu": False},
}


def trained(optimizer):
    """Return what is left of a run: the model's digest, and whose simulator it was."""
    args = SimpleNamespace(**SETTINGS, federated_optimizer=optimizer)
    fedml.mlops.pre_setup(args)
    torch.manual_seed(0)
    local = {k: [(torch.randn(4, 5), torch.randint(2, (4,))) for _ in range(2)] for k in range(3)}
    union = [batch for batches in local.values() for batch in batches]
    dataset = [24, 24, union, union, dict.fromkeys(local, 8), local, dict(local), 2]
    model = torch.nn.Linear(5, 2)
    runner = fedml.FedMLRunner(args, fedml.device.get_device(args), dataset, model)
    runner.run()
    content = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
    return [type(runner.runner).__name__, hashlib.sha256(content).hexdigest()]


def failure(call, *values):
    try:
        return call(*values)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def fedml_run(*words):
    result = click.testing.CliRunner().invoke(run.fedml_run, words)
    return result.exit_code, result.output


logging.disable()
plugin = sys.argv[1]
if plugin == "unknown":
    fedml.__version__ = "0.9.7"
if plugin != "off":
    import fednnnn_plugin as fp
if plugin == "aggregator":
    fp.FedNNNNAggregator(torch.nn.Linear(2, 2), SimpleNamespace(beta=0.5, gamma=0.5))
elif plugin != "off":
    with contextlib.suppress(fp.UserError):
        fp.register()
with contextlib.redirect_stdout(io.StringIO()):
    found = {
        "trained": [trained(name) for name in ("FedAvg", "FedProx", "FedOpt")],
        "registries": [
            sorted(repo.get_opt_names()) for repo in (SPOptRepo, MPIOptRepo, MPISeqOptRepo)
        ],
        "unknown method": failure(trained, "NoSuchMethod"),
        "unknown command": fedml_run("nothing"),
        "help": fedml_run("--help")[1],
        "patched": hasattr(fedml.FedMLRunner._init_simulation_runner, "__fednnnn_wraps__"),
    }
sys.stdout.write(json.dumps(found) + "\n")
