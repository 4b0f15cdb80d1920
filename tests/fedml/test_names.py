"""Names and keys that are nearly ours, or stand where they have no effect."""

import logging

import fedml
import pytest

import fednnnn_plugin as fp

from .rounds import CPU, line, refused, silo, silo_args


def run(args, aggregator=None) -> None:
    fedml.FedMLRunner(args, CPU, [None] * 8, line(), server_aggregator=aggregator)


def test_keys_without_effect_are_named(monkeypatch, caplog) -> None:
    for role in ("Server", "Client"):
        monkeypatch.setattr(f"fedml.cross_silo.{role}", lambda *words: None)
    caplog.set_level(logging.WARNING, "fednnnn_plugin")
    run(silo_args(), fp.FedNNNNAggregator(line(), silo_args()))
    run(silo_args(role="client"))
    assert not caplog.messages
    run(silo_args())
    [said] = caplog.messages
    assert "beta, gamma" in said
    assert "FedAvg" in said


@pytest.mark.parametrize("name", ["FedNNN", "fednnnn", "normnorm", "FedNNN N"])
@pytest.mark.parametrize("kind", ["cross_silo", "simulation"])
def test_near_miss_of_a_method_is_refused(name, kind) -> None:
    with refused(r"federated_optimizer: .* did you mean (\w+)\?$"):
        run(silo_args(federated_optimizer=name, training_type=kind))


def test_near_misses_of_keys_are_named(caplog) -> None:
    caplog.set_level(logging.WARNING, "fednnnn_plugin")
    silo(client_weightin="samples", max_client_nrm=1.0, fedprox_mu=0.1, epoch=1)
    named = [text.partition(":")[0] for text in caplog.messages]
    assert named == ["client_weightin", "max_client_nrm"]
