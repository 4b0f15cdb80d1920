"""What a FedML script names: models, devices, trackers, methods; on another FedML too."""

import logging
import re
from importlib.metadata import requires
from types import ModuleType

import click.testing
import fedml
import pytest
import torch
import wandb
from fedml.cli.modules.run import fedml_run
from fedml.core.mlops.mlops_profiler_event import MLOpsProfilerEvent

import fednnnn_plugin as fp
from fednnnn_plugin.fedml import hook
from fednnnn_plugin.fedml.patches import optimizers, wrap

from .rounds import CPU, fedml_args, line, refused, silo, silo_args, simulate

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


def run(args, aggregator=None) -> None:
    fedml.FedMLRunner(args, CPU, [None] * 8, line(), server_aggregator=aggregator)


def test_keys_without_effect_and_near_misses_are_named(monkeypatch, caplog) -> None:
    for role in ("Server", "Client"):
        monkeypatch.setattr(f"fedml.cross_silo.{role}", lambda *words: None)
    caplog.set_level(logging.WARNING, "fednnnn_plugin")
    run(silo_args(), fp.FedNNNNAggregator(line(), silo_args()))
    run(silo_args(role="client"))
    assert not caplog.messages
    run(silo_args())
    silo(client_weightin="samples", max_client_nrm=1.0, fedprox_mu=0.1, epoch=1)
    named = [text.partition(":")[0] for text in caplog.messages]
    assert named == ["beta, gamma", "client_weightin", "max_client_nrm"]


@pytest.mark.parametrize("name", ["FedNNN", "fednnnn", "normnorm", "FedNNN N"])
@pytest.mark.parametrize("kind", ["cross_silo", "simulation"])
def test_near_miss_of_a_method_is_refused(name, kind) -> None:
    with refused(r"federated_optimizer: .* did you mean (\w+)\?$"):
        run(silo_args(federated_optimizer=name, training_type=kind))


def test_our_names_are_refused_on_another_fedml(monkeypatch) -> None:
    assert f"fedml=={hook.FEDML_VERSION}; python_version < '3.12'" in requires("fednnnn-plugin")
    monkeypatch.setattr(fedml, "__version__", "0.9.7.dev1")
    optimizers.apply(ModuleType("optrepo_of_another_form"))
    wrap(("fedml.runner.FedMLRunner",), "_not_there", print)
    said = r"fednnnn-plugin needs FedML 0\.9\.6 \(pip install fedml==0\.9\.6\); found FedML 0\.9\.7"
    for call, *words in (
        (fp.register,),
        (fedml.model.create, fedml_args(model="nnnn_mnist"), 10),
        (fedml.data.load, fedml_args(dataset="mnist", partition_method="n_class")),
        (fedml.device.get_device, fedml_args(**OURS)),
        (run, fedml_args(**OURS)),
        (run, silo_args(**OURS)),
    ):
        with refused(said):
            call(*words)
    result = click.testing.CliRunner().invoke(fedml_run, ["x.yaml"])
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert re.match(said, result.output)


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.usefixtures("own_folder", "one_core")
def test_mlops_gets_scalars_until_one_failure(reachable, monkeypatch, caplog) -> None:
    """FedML 0.9.6 raises with its lock held: a second call would wait for ever."""
    sent: list[list[float]] = []

    def log(metrics: dict[str, float]) -> None:
        sent.append([metrics[k] for k in ("round", "Test/Acc", "NWDA/integrated_norm")])
        if not reachable:
            raise ConnectionError("no route to host")

    monkeypatch.setattr(fedml.mlops, "log", log)
    simulate(using_mlops=True, comm_round=2)
    runs = fp.read_runs("out")
    expected = runs[["round", "test_acc", "integrated_norm"]].to_numpy().tolist()
    assert sent == (expected if reachable else expected[:1])
    warnings = [record.message for record in caplog.records if "mlops" in record.message]
    assert [line.startswith("round 1: ") for line in warnings] == [True] * (not reachable)
