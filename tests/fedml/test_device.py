"""``fedml.device.get_device`` under our methods."""

from types import SimpleNamespace

import fedml
import pytest
import torch

import fednnnn_plugin as fp
from fednnnn_plugin.server.rules import RULES

fp.register()


def arguments(**values) -> SimpleNamespace:
    required = {
        "training_type": "simulation",
        "backend": "sp",
        "federated_optimizer": "PaperFedAvg",
        "client_num_in_total": 2,
        "client_num_per_round": 2,
        "comm_round": 1,
        "epochs": 1,
        "batch_size": 1,
        "learning_rate": 0.1,
        "using_gpu": False,
    }
    return SimpleNamespace(**required | values)


@pytest.mark.parametrize("method", RULES)
def test_the_cpu_without_a_word_on_the_screen(method: str, capsys, caplog) -> None:
    needed = {key: 0.5 for key, one in RULES[method].keys.items() if one.default is None}
    args = arguments(federated_optimizer=method, **needed)
    assert fedml.device.get_device(args) == torch.device("cpu")
    assert capsys.readouterr() == ("", "")
    assert not caplog.records


def test_no_gpu_is_said_in_one_warning(monkeypatch, caplog) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert fedml.device.get_device(arguments(using_gpu=True)) == torch.device("cpu")
    [record] = caplog.records
    assert (record.levelname, "no GPU is visible" in record.message) == ("WARNING", True)


def test_the_gpu_that_is_asked_for(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert fedml.device.get_device(arguments(using_gpu=True, gpu_id=1)) == torch.device("cuda:1")
    with pytest.raises(fp.UserError, match=r"gpu_id: 2: must be below 2"):
        fedml.device.get_device(arguments(using_gpu=True, gpu_id=2))
