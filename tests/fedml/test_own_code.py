"""Code of a user's own in FedML's scripts: rules, data, models, samplers."""

import shutil
import sys
from pathlib import Path

import fedml
import pytest
import torch
from fedml.model import model_hub
from torch.testing import assert_close

from fednnnn_plugin.models import MODELS, create_model

from .rounds import CPU, fedml_args, linear, moved, play, refused, silo, simulate, two_clients

pytestmark = pytest.mark.usefixtures("own_folder", "one_core")

LION, LION_LR = "server_lion:ServerLion", {"server_lion_lr": 1.0}
FEDNNNN = {"federated_optimizer": "FedNNNN", "beta": 0.5, "gamma": 0.5}


def load():
    x, y = torch.rand(20, 1, 4, 4), torch.arange(20) % 2
    return x, y, x[:4], y[:4]


def create(n):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, n))


def last(number, total, size, _):
    return range(total)[-size:]


@pytest.fixture(autouse=True)
def _with_a_module(own_code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(Path(__file__).parents[1] / "support" / "server_lion.py", own_code)
    monkeypatch.setenv("FEDNNNN_ALLOW_CODE", "1")


def test_own_code_needs_the_environments_permission(monkeypatch) -> None:
    def run(args) -> None:
        fedml.FedMLRunner(args, CPU, two_clients(), linear())

    monkeypatch.delenv("FEDNNNN_ALLOW_CODE")
    for key, call, values in (
        ("federated_optimizer", run, {}),
        ("federated_optimizer", run, {"training_type": "cross_silo"}),
        ("client_sampling", run, {}),
        ("dataset", fedml.data.load, {}),
        ("dataset", fedml.data.load, FEDNNNN),
        ("model", lambda args: fedml.model.create(args, 7), {}),
    ):
        with refused(rf"(args: )?\w+_args.{key}: '{LION}' is code .*FEDNNNN_ALLOW_CODE=1 to"):
            call(fedml_args(**values | {key: LION, "role": "server"}))
    assert "server_lion" not in sys.modules
    assert not Path("runs").exists()


def test_own_data_and_model_are_made_by_name() -> None:
    for method in ({}, FEDNNNN):
        dataset, classes = fedml.data.load(fedml_args(dataset=f"{__name__}:load", **method))
        assert (classes, *dataset[:2]) == (2, 20, 4)
    assert model_hub.create is fedml.model.create
    for name in (*MODELS, f"{__name__}:create", "squeezenet1_1"):
        expected = create_model(name, 3, 7, allow_code=True).state_dict()
        state = torch.get_rng_state()
        made = fedml.model.create(fedml_args(model=name, random_seed=3), 7)
        assert_close(made.state_dict(), expected, rtol=0, atol=0)
        assert torch.equal(torch.get_rng_state(), state)
        if name not in MODELS:
            with pytest.raises(Exception, match="no such model definition"):
                fedml.model.create(fedml_args(model=name, federated_optimizer="FedAvg"), 7)


@pytest.mark.slow
def test_own_rule_and_sampler_run_in_a_simulation() -> None:
    """Of clients 0 and 1 the second alone, of whose S the rule takes the sign: w + 0.9 sign(S)."""
    values = LION_LR | {"client_sampling": f"{__name__}:last", "client_num_per_round": 1}
    result, record = simulate(**values, federated_optimizer=LION)
    assert record["evaluated"] == "served"
    dataset, start = two_clients(), linear().state_dict()
    dataset[5][0] = dataset[5][1]
    alone, _ = simulate(dataset, output="alone")
    for name, tensor in alone.items():
        moves = 0.9 * torch.sign(tensor - start[name])
        assert_close(result[name] - start[name], moves, rtol=0, atol=1e-4)


def one_round(name: str, **values) -> list[float]:
    """A silo's round with one client that is one further along in each element: S = 1."""
    server = silo(None, name, beta=None, gamma=None, **values)
    return play(server, moved(server, (1.0, 1.0)))[0]["weight"].flatten().tolist()


def test_own_rule_of_a_silo_outlives_a_restart() -> None:
    """w = 0.9, then 0.9 + 0.81 / 2, by what it counts; what it draws depends on the seed."""
    where = LION_LR | {"server_state_path": "state.safetensors"}
    first = one_round(LION, **where)
    assert first == pytest.approx([0.9, 0.9], abs=1e-4)
    again = one_round(LION, start_round=1, **where)
    assert again == pytest.approx([1.305, 1.305], abs=1e-4)
    assert one_round(LION, **LION_LR) == first != one_round(LION, **LION_LR, random_seed=1)
    with refused(".*server_lion_lr: -1: must be"):
        one_round(LION, server_lion_lr=-1)
