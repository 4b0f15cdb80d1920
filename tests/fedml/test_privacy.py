"""FedML's differential privacy around our aggregator and client trainer."""

from collections import OrderedDict

import torch
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

import fednnnn_plugin as fp

from .rounds import (
    PRIVACY,
    STATISTICS,
    State,
    assert_average,
    clients,
    fedml_args,
    net,
    norm,
    run_round,
)


def assert_noise_on_floats_only(noised: State, plain: State) -> None:
    for name, tensor in plain.items():
        assert noised[name].dtype == tensor.dtype
        assert torch.equal(noised[name], tensor) != tensor.is_floating_point(), name


def test_privacy_of_the_server(secured, tmp_path, caplog) -> None:
    """Clients are clipped, what we serve is noised, and the average is nowhere to be had."""
    path = tmp_path / "evaluation.safetensors"
    aggregator = secured(**PRIVACY, save_path=str(path))
    assert "epsilon does not cover the server rule" in caplog.text
    given, w_t = clients(aggregator, 3), aggregator.get_model_params()
    kept, _ = aggregator.on_before_aggregation(given)
    for (_, clipped), (_, state) in zip(kept, given, strict=True):
        floating = {n: t for n, t in state.items() if t.is_floating_point()}
        scale = max(1.0, norm(floating))
        expected = state | {name: tensor / scale for name, tensor in floating.items()}
        assert_close(OrderedDict(clipped), OrderedDict(expected), rtol=1e-3, atol=1e-4)
    plain = aggregator.aggregate(kept)
    assert_close(aggregator.evaluation_state_dict(), w_t, rtol=0, atol=0)
    served = aggregator.on_after_aggregation(plain)
    aggregator.set_model_params(served)
    assert_noise_on_floats_only(served, plain)
    for state in (aggregator.evaluation_state_dict(), load_file(path)):
        assert_close(dict(state), dict(served), rtol=0, atol=0)


def test_privacy_keeps_ties_and_no_negative_variance(secured) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[1].weight = model[0].weight
    aggregator = secured(model, **PRIVACY | {"sensitivity": 50.0})
    run_round(aggregator, [(1, aggregator.get_model_params()) for _ in range(3)])
    served = aggregator.get_model_params()
    assert torch.equal(served["0.weight"], served["1.weight"])
    assert (served["2.running_var"] >= 0).all()


def test_privacy_of_the_clients(secured) -> None:
    """The client adds it, the server nothing."""
    local = PRIVACY | {"dp_solution_type": "ldp"}
    args = fedml_args(**local, round_idx=0)
    trainer = fp.FedNNNNClientTrainer(net(), args)
    trainer.set_id(0)
    data = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))]
    trainer.train(data, "cpu", args)
    trained = trainer.get_model_params()
    trainer.on_after_local_training(data, "cpu", args)
    sent = trainer.get_model_params()
    assert_noise_on_floats_only(sent, trained)
    aggregator = secured(**local)
    w_t, _ = run_round(aggregator, [(4, sent)])
    assert_average(aggregator, w_t, [sent])
    below = sent | {STATISTICS[1]: sent[STATISTICS[1]] - 9.0}  # as of FedML's own trainer
    run_round(aggregator, [(4, below)])
    for state in (aggregator.get_model_params(), aggregator.evaluation_state_dict()):
        assert (state[STATISTICS[1]] == 0).all()


def test_privacy_ends_with_its_federation(secured) -> None:
    """FedML's privacy, attack and defence are those of the process."""
    secured(**PRIVACY)
    given = clients(plain := secured(), 3, scale=9.0)
    kept, _ = plain.on_before_aggregation(given)
    for (_, one), (_, of) in zip(kept, given, strict=True):
        assert torch.equal(one["1.weight"], of["1.weight"])
    served = plain.aggregate(kept)
    assert_close(plain.on_after_aggregation(served), served, rtol=0, atol=0)
