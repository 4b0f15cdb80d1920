"""What FedML's own names do, as JSON, after what the one argument says:

off         nothing: the plugin is turned off
on          it is registered
unknown     it is registered in a FedML of a version that we do not know
aggregator  it is turned off, and our aggregator is used
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
from fedml.data import data_loader
from fedml.simulation.mpi.fedopt.optrepo import OptRepo as MPIOptRepo
from fedml.simulation.mpi.fedopt_seq.optrepo import OptRepo as MPISeqOptRepo
from fedml.simulation.sp.fedopt.optrepo import OptRepo as SPOptRepo

CLIENTS, CLASSES = 3, 2


def arguments(**values):
    defaults = {
        "training_type": "simulation",
        "backend": "sp",
        "dataset": "synthetic",
        "client_num_in_total": CLIENTS,
        "client_num_per_round": 2,
        "comm_round": 2,
        "epochs": 2,
        "batch_size": 4,
        "client_optimizer": "sgd",
        "learning_rate": 0.1,
        "weight_decay": 0.0,
        "server_optimizer": "adagrad",
        "server_lr": 0.1,
        "fedprox_mu": 0.1,
        "frequency_of_the_test": 1,
        "enable_wandb": False,
        "using_mlops": False,
        "using_gpu": False,
        "ci": 0,
    }
    return SimpleNamespace(**defaults | values)


def synthetic():
    generator = torch.Generator().manual_seed(0)
    local = {}
    for client in range(CLIENTS):
        x = torch.randn(8, 5, generator=generator)
        y = torch.randint(CLASSES, (8,), generator=generator)
        local[client] = list(zip(x.split(4), y.split(4), strict=True))
    union = [batch for batches in local.values() for batch in batches]
    sizes = dict.fromkeys(local, 8)
    return [8 * CLIENTS, 8 * CLIENTS, union, union, sizes, local, dict(local), CLASSES]


def trained(optimizer):
    """Return what is left of a run: the model's digest, and whose simulator it was."""
    args = arguments(federated_optimizer=optimizer)
    fedml.mlops.pre_setup(args)
    torch.manual_seed(0)
    model = torch.nn.Linear(5, CLASSES)
    runner = fedml.FedMLRunner(args, fedml.device.get_device(args), synthetic(), model)
    runner.run()
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return [type(runner.runner).__name__, digest.hexdigest()]


def registry(repo):
    before = repo.name2cls("SGD").__name__, repo.supported_parameters("sgd")
    return {"names": sorted(repo.get_opt_names()), "before": before}


def failure(call, *values):
    try:
        call(*values)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def data_calls():
    """The arguments that reach FedML's own loader, for data and partitions that are not ours."""
    seen = []
    data_loader.load_synthetic_data = lambda args: seen.append(args.dataset) or ([], 0)
    fedml.data.load(arguments(dataset="cifar10", partition_method="hetero"))
    fedml.data.load(arguments(dataset="mnist"))
    data_loader.load(arguments(dataset="shakespeare", partition_method=None))
    return seen


def help_text():
    return click.testing.CliRunner().invoke(run.fedml_run, ["--help"]).output


def no_command():
    result = click.testing.CliRunner().invoke(run.fedml_run, ["nothing"])
    return result.exit_code, result.output


def prepare(plugin):
    if plugin == "off":
        return
    import fednnnn_plugin as fp

    if plugin == "aggregator":
        fp.FedNNNNAggregator(torch.nn.Linear(2, 2), SimpleNamespace(beta=0.5, gamma=0.5))
    elif plugin == "on":
        fp.register()
    else:
        fedml.__version__ = "0.9.7"
        with contextlib.suppress(fp.UserError):
            fp.register()


logging.disable()
prepare(sys.argv[1])
with contextlib.redirect_stdout(io.StringIO()):
    found = {
        "trained": {name: trained(name) for name in ("FedAvg", "FedProx", "FedOpt")},
        "registries": [registry(repo) for repo in (SPOptRepo, MPIOptRepo, MPISeqOptRepo)],
        "unknown method": failure(trained, "NoSuchMethod"),
        "unknown model": failure(fedml.model.create, arguments(model="none"), CLASSES),
        "model": type(fedml.model.create(arguments(model="lr", dataset="mnist"), 10)).__name__,
        "data": data_calls(),
        "no command": no_command(),
        "commands": sorted(run.fedml_run.commands),
        "options": [option.opts for option in run.fedml_run.params],
        "help": help_text(),
        "patched": hasattr(fedml.FedMLRunner._init_simulation_runner, "__fednnnn_wraps__"),
    }
sys.stdout.write(json.dumps(found) + "\n")
