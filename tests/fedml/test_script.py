"""What a FedML script calls before ``FedMLRunner``: its model and device."""

import fedml
import pytest
import torch
import wandb
from fedml.core.mlops.mlops_profiler_event import MLOpsProfilerEvent
from fedml.model import model_hub

from fednnnn_plugin.models import MODELS, create_model

from .rounds import CPU, fedml_args, refused


@pytest.mark.parametrize("create", [fedml.model.create, model_hub.create])
def test_model_is_of_the_seed_alone(create) -> None:
    state = torch.get_rng_state()
    made = [create(fedml_args(model=name, random_seed=3), 10) for name in MODELS]
    assert torch.equal(torch.get_rng_state(), state)
    for name, model in zip(MODELS, made, strict=True):
        expected = create_model(name, seed=3).state_dict()
        torch.testing.assert_close(model.state_dict(), expected, rtol=0, atol=0)
    assert create(fedml_args(model="nnnn_mnist"), 62)(torch.zeros(1, 1, 28, 28)).shape == (1, 62)


def test_wandb_needs_a_key_and_no_project(own_folder, monkeypatch) -> None:
    begun: list[dict] = []
    args = fedml_args(enable_wandb=True, sys_perf_profiling=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(wandb, "init", lambda **options: begun.append(options))
    monkeypatch.setattr(MLOpsProfilerEvent, "_enable_wandb", False)
    fedml._manage_profiling_args(args)
    assert [options["project"] for options in begun] == [None]
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "")
    with refused("tracking_args.enable_wandb: true: "):
        fedml._manage_profiling_args(args)
    assert len(begun) == 1


def test_device_is_the_cpu_unless_asked(monkeypatch, capsys, caplog) -> None:
    args = fedml_args(federated_optimizer="FedNNNN", beta=0.5, gamma=0.5)
    assert fedml.device.get_device(args) == CPU
    assert capsys.readouterr() == ("", "")
    assert not caplog.records
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert fedml.device.get_device(fedml_args(using_gpu=True, gpu_id=1)) == torch.device("cuda:1")
