"""The server aggregator on its own: FedML's hooks are off, as in most federations."""

import math
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fedml.ml.aggregator.default_aggregator import DefaultServerAggregator
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

import fednnnn_plugin as fp
from fednnnn_plugin.errors import RunError

from .rounds import CPU, TWO, Versioned, clients, moved, net, play, refused, silo


def average(server: fp.FedNNNNAggregator) -> list[float]:
    return server.evaluation_state_dict()["weight"].flatten().tolist()


def test_aggregator_rounds_by_hand(caplog) -> None:
    """d₁ = β E/N S = 0.7 S, d₂ = γ d₁ + 0.7 S, from what was set d₃ = γ d₂ + 0.7 S, and d₄ = 0."""
    server = silo()
    served, places = play(server, moved(server, *TWO))
    assert (type(served), places) == (OrderedDict, [0, 1])
    assert_close(served["weight"], torch.tensor([[1.05, 1.4]]))
    assert average(server) == [1.5, 2.0]
    for get in (server.get_model_params, server.evaluation_state_dict):  # what is got is a copy
        get()["weight"].add_(1.0)
    assert_close(server.get_model_params(), served, rtol=0, atol=0)
    served, _ = play(server, moved(server, *TWO))
    assert_close(served["weight"], torch.tensor([[2.625, 3.5]]))
    assert average(server) == pytest.approx([2.55, 3.4])
    noised = OrderedDict(weight=torch.tensor([[10.0, 10.0]]))
    server.set_model_params(noised)  # by whatever follows the aggregation
    served, _ = play(server, moved(server, *TWO))
    assert_close(served["weight"], torch.tensor([[11.8375, 12.45]]))
    assert average(server) == [11.5, 12.0]
    assert not caplog.records
    assert_close(play(server, moved(server, (1, 1), (-1, -1)))[0], served, rtol=0, atol=0)
    assert "round 4: N is near 0" in caplog.text


@pytest.mark.parametrize("none", [0, np.int64(0), torch.tensor(0)], ids=lambda n: type(n).__name__)
@pytest.mark.parametrize(("weighting", "first"), [("samples", 0.25), ("uniform", 0.5)])
def test_aggregator_leaves_out_who_has_no_data(weighting, first, none, caplog) -> None:
    """α = (1/4, 3/4) or (1/2, 1/2), and 0 under both: a zero update would shorten S and E."""
    server = silo(client_weighting=weighting, method="NormNorm", gamma=None)
    for _ in "twice":
        w_t = server.get_model_params()["weight"]
        states = [state for _, state in moved(server, *TWO, (0.0, 0.0))]
        served, _ = play(server, list(zip((10, 30, none), states, strict=True)))
        expected = w_t + torch.tensor([[3 * first, 4 * (1 - first)]])
        assert_close(server.evaluation_state_dict()["weight"], expected)
        length = (served["weight"] - w_t).norm().item()
        assert length == pytest.approx(0.5 * (3 * first + 4 * (1 - first)), rel=1e-6)
    assert [text for text in caplog.messages if "no data" in text] == caplog.messages[:1]
    with pytest.raises(RunError, match=r"no client update to average: 1 have no data"):
        play(server, [(none, states[0]), *moved(server, (math.nan, 0.0))])


def test_who_has_no_data_is_no_choice_of_a_defence(own_folder) -> None:
    """What it sends, ``w_t``, is nearer to each of the others than they are to one another."""
    defence = {"enable_defense": True, "defense_type": "krum", "byzantine_client_num": 1}
    server = silo(client_num_in_total=6, client_num_per_round=6, **defence)
    sent = moved(server, (1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0), (1.0, 1.0), (0.0, 0.0))
    sent[5] = (0, sent[5][1])
    _, places = play(server, sent)
    assert len(places) == 1
    assert places != [5]
    sent[4] = (0, sent[4][1])
    with pytest.raises(
        RunError, match="krum: 4 of 6 clients have data and sent a finite model; it "
    ):
        play(server, sent)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"beta": None}, "args: train_args.beta: missing; FedNNNN needs it"),
        ({"method": "FedAvg"}, "method: 'FedAvg': "),
        ({"federated_optimizer": "LSA"}, "federated_optimizer: 'LSA': norms cannot "),
        ({"federated_optimizer": "SCAFFOLD"}, "federated_optimizer: 'SCAFFOLD': FedML's "),
        ({"client_sampling": "my:fn"}, "client_sampling: 'my:fn': "),
        ({"model": "a name"}, "model: str: must be"),
        ({"model": Versioned(2, 2)}, "model: _extra_state: must be"),
    ],
)
def test_aggregator_refuses_settings_that_cannot_work(values, line) -> None:
    with refused(line):
        silo(**values)


def test_aggregator_counts_tied_parameters_once() -> None:
    """The move is βE, of 4 + 2 elements; they stay tied."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    server = silo(model, method="NormNorm", gamma=None)
    w_0 = server.get_model_params()
    state = OrderedDict((name, tensor + 1.0) for name, tensor in w_0.items())
    served, _ = play(server, [(1, state)])
    assert torch.equal(served["1.weight"], served["0.weight"])
    moves = [(served[name] - w_0[name]).flatten() for name in ("0.weight", "1.bias")]
    assert torch.cat(moves).norm().item() == pytest.approx(0.5 * math.sqrt(6))
    untied = state["1.weight"] + 1
    for tensor, why in ((untied, "differs from 0.weight"), (untied.to_sparse(), ".* dense")):
        with pytest.raises(fp.UserError, match=rf"1\.weight: {why}"):
            server.on_before_aggregation([(1, state | {"1.weight": tensor})])


def test_aggregator_names_a_client_that_does_not_fit(caplog) -> None:
    """By its rank, or the id that FedML was given; as many as are allowed are left out."""
    state, server = {"weight": torch.ones(1)}, silo()
    with refused(r"round 1: the client of rank 2: client model: weight: shape \(1,\): "):
        play(server, [*moved(server, (3.0, 0.0)), (1, state)])
    four = {"client_num_per_round": 4, "client_num_in_total": 4, "worker_num": 4}
    server = silo(max_client_failures=1, client_id_list="[64, 65, 66, 70]", **four)
    served, _ = play(server, [(10, state), *moved(server, (math.nan, 0.0), *TWO)])
    assert_close(served["weight"], torch.tensor([[1.05, 1.4]]))
    failed, rejected = caplog.messages
    assert failed.startswith("round 1: the client of rank 64: client model: ")
    assert rejected.startswith("round 1: the client of rank 65: ")
    server = silo(max_client_failures=1, client_weighting="samples")  # failures in both hooks
    one, other = moved(server, (3.0, 0.0), (3.0, 0.0))
    kept, _ = server.on_before_aggregation([one, (10, None), ("none", other[1])])
    with refused("round 1: the client of rank 3: client weight"):
        server.aggregate(kept)
    kept, _ = server.on_before_aggregation([one, other, (-1, other[1])])
    assert server.aggregate(kept)["weight"].tolist() == [[1.5, 0.0]]
    with refused("round 1: the client of rank 1: client weight: -1"):  # without the first hook
        silo(client_weighting="samples").aggregate([(-1, one[1])])


WHOLE = torch.zeros(1, 2)
ODD = [None, [], "model", 7, {}, {"weight": None}, {"weight": 1.5}, {"weight": "w"}]
ODD += [{"weight": odd} for odd in (WHOLE.bool(), WHOLE.cfloat(), WHOLE.to_sparse(), WHOLE.t())]
ODD += [{"weight": odd} for odd in (WHOLE.to("meta"), WHOLE + math.inf, WHOLE.double() + 1e39)]
ODD += [{"weight": WHOLE, name: WHOLE} for name in ("", "bias", 3, None)]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_aggregator_leaves_out_what_is_no_model(odd) -> None:
    server = silo(max_client_failures=1)
    kept, _ = server.on_before_aggregation([(1, odd), *moved(server, *TWO)])
    assert_close(server.aggregate(kept)["weight"], torch.tensor([[1.05, 1.4]]))


@pytest.mark.parametrize("samples", [-1, math.nan, None, "3", 10**400])
def test_aggregator_changes_nothing_by_what_is_no_number(samples) -> None:
    server = silo(client_weighting="samples")
    before, states = server.get_model_params(), [state for _, state in moved(server, *TWO)]
    with pytest.raises((fp.UserError, RunError)):
        play(server, [(samples, states[0]), (1, states[1])])
    assert_close(server.get_model_params(), before, rtol=0, atol=0)


def test_aggregator_keeps_frozen_entries_that_are_missing() -> None:
    """As LoRA's clients leave them out; what is trained may not be missing."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(requires_grad=False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sent = {name: before[name] + 1.0 for name in ("1.weight", "1.bias")}
    served, _ = play(silo(model), [(10, sent), (10, sent | {"0.bias": before["0.bias"]})])
    for name, tensor in before.items():
        assert torch.equal(served[name], tensor) == name.startswith("0")
    del sent["1.bias"]
    with pytest.raises(fp.UserError, match=r"missing entries: '1\.bias'"):
        play(silo(model), [(10, sent)])


def test_aggregator_tests_and_saves_the_evaluation_model(tmp_path) -> None:
    path = tmp_path / "deep" / "evaluation.safetensors"
    server = silo(net(), save_path=str(path), round_idx=0)
    data = [(torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 0]))]
    for seed in (1, 2):
        served, _ = play(server, clients(server, 2, seed))
        assert_close(load_file(path), dict(server.evaluation_state_dict()), rtol=0, atol=0)
    expected = []
    for state in (server.evaluation_state_dict(), served):
        theirs = net()
        theirs.load_state_dict(state)
        expected.append(DefaultServerAggregator(theirs, server.args).test(data, CPU, server.args))
    found = server.test(data, CPU, SimpleNamespace())
    assert found[:2] == pytest.approx(expected[0][:2]) != expected[1][:2]
    assert_close(server.get_model_params(), served, rtol=0, atol=0)


@pytest.mark.parametrize(("make", "size"), [(nn.Conv1d, (8,)), (nn.Conv2d, (4, 4))])
def test_aggregator_counts_many_labels_of_a_sample(make, size) -> None:
    """FedML's own tester counts none of ``[n, L, L]``, and of ``[n, L]`` those to be ignored."""
    model, x, y = make(1, 2, 1), torch.randn(3, 1, *size), torch.randint(2, (3, *size))
    y[:, 1:3] = -100
    accuracy, loss, *_ = silo(model).test([(x, y)], CPU, SimpleNamespace())
    logits, labels = model(x).movedim(1, -1)[y >= 0], y[y >= 0]
    assert accuracy == pytest.approx((logits.argmax(1) == labels).double().mean().item())
    assert loss == pytest.approx(nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)


IDS = {"client_id_list": "[1, 2, 3]"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"worker_num": 2}, "device_args.worker_num: 2: must be .* 3"),
        ({"worker_num": 3, "client_id_list": "[1, 2]"}, "train_args.client_id_list: 2 silos"),
        *(
            ({"client_id_list": ids}, "train_args.client_id_list: .*: must be left out")
            for ids in ([1, 2, 3], "1, 2, 3", "[1, 1, 2]", "['a', 'b', 'c']", "{}")
        ),
    ],
)
def test_silos_that_fedml_would_leave_out_or_wait_for_are_refused(values, named) -> None:
    three = {"client_num_in_total": 3, "client_num_per_round": 3}
    with refused(named):
        silo(**three | values)
    silo(**three | values, role="client")  # the server's file says it
    silo(**three, worker_num=3, **IDS)


def test_silos_that_no_round_takes_are_said(own_folder, caplog) -> None:
    """After a restart also that FedML draws other clients than without it."""
    lines = ["eid,rank,grpc_server_ip,grpc_server_port,ingress_ip"]
    lines += [f"{rank},{rank},127.0.0.1,{9000 + rank}," for rank in range(4)]
    Path("table.csv").write_text("\n".join(lines))
    for values in (IDS, {"backend": "GRPC", "grpc_ipconfig_path": "table.csv"}):
        silo(worker_num=2, **values)
        [said] = caplog.messages
        assert said.startswith("client_num_per_round: 2 of 3 silos: ")
        caplog.clear()
    server = silo(server_state_path="state")
    play(server, moved(server, *TWO))
    assert not caplog.records
    silo(client_num_in_total=10)
    silo(client_num_in_total=10, server_state_path="state", start_round=1)
    first, second, changed = caplog.messages
    assert changed.endswith(
        "state: client_num_in_total: 10, but 2 up to round 1; records, if kept, show the new value "
        "for all rounds from the next one on"
    )
    assert first.startswith("client_num_per_round: 2 of 10: ")
    assert second.startswith(f"{first}; after a restart")


def test_aggregator_follows_fedml_to_its_device() -> None:
    """FedML sets ``args.device``, to which it also moves the models that it receives."""
    server = silo(device=torch.device("meta"))
    server.on_before_aggregation([])
    assert server.model.weight.is_meta
