"""FedML's patched places: what scripts name, on another FedML too, and ``fedml run``."""

import io
import sys
import threading
from importlib.metadata import requires
from types import ModuleType, SimpleNamespace

import click.testing
import fedml
import pytest
import torch
import wandb
from fedml import constants
from fedml.cli.cli import cli
from fedml.cli.modules import run as cli_run
from fedml.core.mlops.mlops_profiler_event import MLOpsProfilerEvent
from fedml.ml.aggregator.default_aggregator import DefaultServerAggregator
from fedml.ml.trainer.my_model_trainer_classification import ModelTrainerCLS

import fednnnn_plugin as fp
from fednnnn_plugin.fedml import hook, processes, uncaught
from fednnnn_plugin.fedml.loaders import fedml_dataset
from fednnnn_plugin.fedml.patches import optimizers, run_group, runner, wrap
from fednnnn_plugin.processes import job
from fednnnn_plugin.processes.ranks import Ranks
from fednnnn_plugin.server.rules import RULES

from .rounds import CPU, fedml_args, line, linear, refused, silo, silo_args, simulate

OURS = {"federated_optimizer": "FedNNNN", "beta": 0.5, "gamma": 0.5}


def test_wandb_needs_a_key_and_no_project(own_folder, monkeypatch) -> None:
    begun: list[dict] = []
    args = fedml_args(enable_wandb=True, sys_perf_profiling=False)
    monkeypatch.setattr(wandb, "init", lambda **options: begun.append(options["project"]))
    monkeypatch.setattr(MLOpsProfilerEvent, "_enable_wandb", False)
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("WANDB_MODE", "offline")
    fedml._manage_profiling_args(args)
    monkeypatch.setenv("WANDB_MODE", "online")
    with refused("tracking_args.enable_wandb: true: "):
        fedml._manage_profiling_args(args)
    assert begun == [None]


def test_device_is_the_cpu_unless_asked(monkeypatch) -> None:
    assert fedml.device.get_device(fedml_args(**OURS)) == CPU
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert fedml.device.get_device(fedml_args(using_gpu=True, gpu_id=1)) == torch.device("cuda:1")
    assert fedml.device.get_device(fedml_args(**OURS, client_num_in_total=None)) == CPU
    with refused(r"args: train_args\.beta: missing"):  # before a script loads its data
        fedml.device.get_device(fedml_args(**OURS | {"beta": None}))


@pytest.fixture
def started(monkeypatch) -> list[tuple]:
    """The method and the helper that FedML's servers and clients were started with."""
    started: list[tuple] = []

    def start(args, device, dataset, model, helper=None) -> None:
        started.append((args.federated_optimizer, helper))

    for role in ("Server", "Client"):
        monkeypatch.setattr(f"fedml.cross_silo.{role}", start)
    return started


def run(args, dataset=None, **helpers) -> None:
    fedml.FedMLRunner(args, CPU, dataset or [None] * 8, line(), **helpers)


def test_method_by_name_gives_our_aggregator_and_trainer(started, images, caplog) -> None:
    """The trainer for our data alone; what is given, and FedML's own names, are left alone."""

    def helper(*given, **helpers):
        run(*given, **helpers)
        named, helper = started.pop()
        assert named == "FedAvg"
        return helper

    args, ours = silo_args(**OURS | {"role": "client"}), fedml_dataset(images, 5, 0)
    own = ModelTrainerCLS(line(), args)
    assert type(helper(args, ours)) is fp.FedNNNNClientTrainer
    assert helper(args) is None  # FedML makes its default
    assert helper(args, ours, client_trainer=own) is own
    assert not caplog.records
    for proximal in ({"federated_optimizer": "PaperFedProx"}, {"client_method": "fedprox"}):
        caplog.clear()
        helper(silo_args(**OURS | {"role": "client", "prox_mu": 0.1} | proximal))
        assert "the proximal term is its own to add" in caplog.text
    args = silo_args(federated_optimizer="Momentum", beta=None)
    made = helper(args)
    assert type(made) is fp.FedNNNNAggregator
    assert made._recipe.rule.name == args.federated_optimizer == "Momentum"
    theirs = DefaultServerAggregator(line(), args)
    assert helper(silo_args(), server_aggregator=theirs) is theirs
    theirs.test = lambda *_: "theirs"
    assert helper(args, server_aggregator=theirs).test(None, CPU, args) == "theirs"
    assert helper(silo_args(role="client", beta=None), ours) is None


@pytest.mark.parametrize("kind", ["cross_cloud", "cross_device"])
def test_method_by_name_elsewhere_is_refused(kind) -> None:
    args = silo_args(training_type=kind, federated_optimizer="FedNNNN")
    with refused(f"training_type: {kind}: FedNNNN runs by"):
        fedml.init(args, check_env=False)
    args.federated_optimizer = "FedAvg"
    sys.modules["fedml.core.mlops"].pre_setup(args)  # FedML's own goes on


def test_error_of_one_process_over_mpi_ends_all(monkeypatch) -> None:
    """FedML's receiving thread would keep that process; the others would wait for it."""
    ended: list[int] = []
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    monkeypatch.setattr(uncaught, "_aborts", [])
    comm = SimpleNamespace(Get_size=lambda: 3, Abort=ended.append)
    args = silo_args(federated_optimizer="FedNNNN", backend="MPI", comm=comm, beta=-1)
    for _ in "twice":  # it ends them once
        with refused(r"args: train_args\.beta: -1: must be"):
            run(args)
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    for error in (fp.UserError("no"), ValueError("no")):
        sys.excepthook(type(error), error, None)
    assert ended == [2, 1]
    ranks = Ranks()  # of a simulation, whose data are not there
    vars(ranks).update(size=2, rank=1, abort=ended.append)
    monkeypatch.setattr(processes, "simulation_ranks", lambda backend: ranks)
    with refused("data_cache_dir: /nowhere"):
        fedml.data.load(fedml_args(dataset="mnist", data_cache_dir="/nowhere", download=False))
    assert ended == [2, 1, 2]


def test_rank_that_waits_for_one_of_fedmls_method_says_so(monkeypatch) -> None:
    """Whose federated_optimizer is FedML's: it never comes."""
    said, lines = threading.Event(), []
    monkeypatch.setattr(job, "_LATE", 0.0)
    monkeypatch.setattr(job._log, "warning", lambda line: (lines.append(line), said.set()))
    monkeypatch.setattr(job, "MpiRanks", lambda comm: (said.wait(60), Ranks())[1])
    assert processes.simulation_ranks.__wrapped__("MPI").size == 1
    assert ["federated_optimizer" in line for line in lines] == [True]


TYPOS = {"learning_rate_deacy": "learning_rate_decay", "los": "loss", "save_pat": "save_path"}
TYPOS |= {"frequency_of_test": "frequency_of_the_test", "fedexp_epsilo": "fedexp_epsilon"}
OTHERS = {"momentum": 0.9, "lr_scheduler": "StepLR", "num_workers": 2, "mode": "x", "epoch": 1}


@pytest.mark.parametrize("where", ["simulation", "trainer", "client", "server"])
def test_keys_that_nobody_reads_are_named(where, started, own_folder, one_core, caplog) -> None:
    """Misspelt ones of ours each, with the right one; known ones of other trainers once, in a line.

    A server leaves the latter to its clients' trainers; a trainer of the user's reads its own.
    """
    values = {**dict.fromkeys(TYPOS, 0.1), **OTHERS}
    values |= {"metrics": None if where == "trainer" else ["f1_macro"]}
    args = fedml_args(output="out", **values)
    if where == "client":
        fp.FedNNNNClientTrainer(line(), args)
    elif where == "server":
        run(silo_args(), server_aggregator=fp.FedNNNNAggregator(line(), silo_args()))
        run(silo_args(role="client"))
        assert not caplog.messages
        run(silo_args())  # whose aggregator is FedML's
        silo(**values)
    else:
        simulate(trainer=ModelTrainerCLS(linear(), args) if where == "trainer" else None, args=args)
    found = {
        name: said.split()[-1] for name, _, said in (t.partition(":") for t in caplog.messages)
    }
    for name, wheres in (
        ("lr_scheduler, momentum", ("simulation", "client")),
        ("beta, gamma", ("server",)),
        ("metrics", ("server",)),
    ):
        assert (found.pop(name, None) is not None) == (where in wheres)
    free = {"learning_rate_deacy", "los"} if where == "trainer" else set()
    assert found == {name: f"{right}?" for name, right in TYPOS.items() if name not in free}


def test_old_names_are_refused(own_folder) -> None:
    args = fedml_args(learning_rate=None, lr=0.1)
    for build in (lambda: simulate(args=args), lambda: fp.FedNNNNClientTrainer(line(), args)):
        with refused("train_args.lr: it is called learning_rate"):
            build()
    with refused("comm_args.backend: single_process: it is called sp"):
        fedml.init(fedml_args(**OURS, backend="single_process"), check_env=False)


def test_name_of_both_runs_fedmls_own(caplog) -> None:
    theirs = {value for name, value in vars(constants).items() if "_FEDERATED_OPTIMIZER_" in name}
    assert theirs & RULES.keys() == {"FedDyn"}
    for named in ("FedAvg", "FedDyn"):
        assert not caplog.messages
        args = fedml_args(federated_optimizer=named)
        assert runner._simulation(lambda _, given: given, None, args) is args
    assert "federated_optimizer: FedDyn: FedML's own runs" in caplog.text


@pytest.mark.parametrize("kind", ["cross_silo", "simulation"])
def test_near_miss_of_a_method_is_refused(kind) -> None:
    with refused(r"federated_optimizer: .* did you mean (\w+)\?$"):
        run(silo_args(federated_optimizer="fednnn", training_type=kind))


def test_our_names_are_refused_on_another_fedml(monkeypatch) -> None:
    pinned = f"fedml=={hook.FEDML_VERSION};"
    assert any(each.startswith(pinned) for each in requires("fednnnn-plugin"))
    monkeypatch.setattr(fedml, "__version__", "0.9.7.dev1")
    optimizers.apply(ModuleType("optrepo_of_another_form"))
    wrap(("fedml.runner.FedMLRunner",), "_not_there", print)
    for call, *words in (
        (fp.register,),
        (fedml.model.create, fedml_args(model="nnnn_mnist"), 10),
        (fedml.data.load, fedml_args(dataset="mnist", partition_method="n_class")),
        (fedml.device.get_device, fedml_args(**OURS)),
        (run, fedml_args(**OURS)),
        (run, silo_args(**OURS)),
    ):
        with refused(r"fednnnn-plugin needs FedML 0\.9\.6 .*; found FedML 0\.9\.7"):
            call(*words)
    result = click.testing.CliRunner().invoke(cli_run.fedml_run, ["x.yaml"])
    assert (result.exit_code, result.output.count("\n")) == (2, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("own_folder", "one_core")
def test_mlops_gets_scalars_until_one_failure(monkeypatch, caplog) -> None:
    """FedML 0.9.6 raises with its lock held: a second call would wait for ever."""
    sent: list[list[float]] = []

    def log(metrics: dict[str, float]) -> None:
        sent.append([metrics[k] for k in ("round", "Test/Acc", "NWDA/integrated_norm")])
        if len(sent) == 2:
            raise ConnectionError("no route to host")

    monkeypatch.setattr(fedml.mlops, "log", log)
    simulate(using_mlops=True, comm_round=3)
    runs = fp.read_runs("out")
    assert sent == runs[["round", "test_acc", "integrated_norm"]].to_numpy().tolist()[:2]
    [warning] = [record.message for record in caplog.records if "mlops" in record.message]
    assert warning.startswith("round 2: ")


SET = ("--set", "train_args.beta=5e-4")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((*SET, "a.yaml", *SET, "--output", "list", "--resume"), 2, "a.yaml: no such file"),
        (("--output", "logs", "a.yaml"), 2, "a.yaml: no such file"),
        (("mnist_iid_b_fedavg", "--set", "train_args.beat=1"), 2, "train_args.beat: "),
        (("a.yaml", "--api_key", "key"), 2, "No such option"),
        (("a.yaml", "--help"), 0, "Usage: fedml run [OPTIONS] RECIPE.yaml\n"),
        # What follows stays FedML's to answer.
        (("digits",), 2, "No such command"),
        (("--help",), 0, "fedml run RECIPE.yaml --help"),
        (("-k", "key", "stop", "a.yaml"), 2, "Usage: fedml run stop "),
    ],
)
def test_run_takes_recipes_beside_fedmls_words(words, status, said) -> None:
    fp.register()  # again
    assert type(cli.commands["run"]) is run_group.RecipeGroup
    result = click.testing.CliRunner().invoke(cli, ["run", *words], prog_name="fedml")
    assert (result.exit_code, said in result.output) == (status, True), result.output
