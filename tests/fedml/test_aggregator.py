"""The server aggregator on its own: FedML's hooks are off, as in most federations."""

import math
from collections import OrderedDict
from types import SimpleNamespace

import fedml
import pytest
import torch
from fedml.core import ServerAggregator
from fedml.ml.aggregator.default_aggregator import DefaultServerAggregator
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

import fednnnn_plugin as fp
from fednnnn_plugin.errors import RunError

CPU = torch.device("cpu")


class Vector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))


class Versioned(nn.Linear):
    """Saves more than its tensors."""

    def get_extra_state(self) -> torch.Tensor:
        return torch.zeros(1)

    def set_extra_state(self, state) -> None:
        """Take nothing."""


def normalised() -> nn.Module:
    """A convolution, batch normalisation, and a head."""
    head = (nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), *head)


@pytest.fixture
def aggregator(silo):
    return lambda model=None, method=None, **values: silo(model or Vector(), method, **values)


def client(*values) -> tuple[int, OrderedDict]:
    return 10, OrderedDict(w=torch.tensor(values))


#: S = (1.5, 2), N = 2.5, E = 3.5.
TWO = [client(3.0, 0.0), client(0.0, 4.0)]


def test_rounds_by_hand(aggregator, play, caplog) -> None:
    """d₁ = β E/N S = 0.7 S, d₂ = γ d₁ + 0.7 S, from what was set d₃ = γ d₂ + 0.7 S, and d₄ = 0."""
    server = aggregator()
    assert isinstance(server, ServerAggregator)
    served, places = play(server, TWO)
    assert (type(served), places) == (OrderedDict, [0, 1])
    assert_close(served["w"], torch.tensor([1.05, 1.4]))
    assert server.evaluation_state_dict()["w"].tolist() == [1.5, 2.0]
    assert_close(server.get_model_params(), served, rtol=0, atol=0)
    served, _ = play(server, [client(4.05, 1.4), client(1.05, 5.4)])
    assert_close(served["w"], torch.tensor([2.625, 3.5]))
    assert_close(server.evaluation_state_dict()["w"], torch.tensor([2.55, 3.4]))
    server.set_model_params(client(10.0, 10.0)[1])  # noise, or whatever follows the aggregation
    served, _ = play(server, [client(13.0, 10.0), client(10.0, 14.0)])
    assert_close(served["w"], torch.tensor([11.8375, 12.45]))
    assert server.evaluation_state_dict()["w"].tolist() == [11.5, 12.0]
    assert not caplog.records
    opposite = [(1, OrderedDict(w=served["w"] + sign)) for sign in (1, -1)]
    assert_close(play(server, opposite)[0], served, rtol=0, atol=0)
    assert "round 4: N is near 0" in caplog.text


def test_weighting_by_samples_and_clipping(aggregator, play) -> None:
    """α = (1/4, 3/4, 0): S = (0.75, 3), E = 3.75; a nonsense number is named."""
    server = aggregator(client_weighting="samples", method="NormNorm", gamma=None)
    states = [state for _, state in (*TWO, client(9.0, 9.0))]
    served, _ = play(server, list(zip((10, 30, 0), states, strict=True)))
    assert server.evaluation_state_dict()["w"].tolist() == [0.75, 3.0]
    assert math.isclose(served["w"].norm().item(), 0.5 * 3.75, rel_tol=1e-6)
    with pytest.raises(fp.UserError, match=r"the client of rank 1: client weight: -1"):
        server.aggregate([(-1, states[0])])
    with pytest.raises(RunError, match=r"no client update to average: 1 have weight 0"):
        play(server, [(0, states[0]), client(math.nan, 0.0)])
    server = aggregator(max_client_norm=1.0)
    play(server, [client(3.0, 0.0), client(0.0, 0.5)])
    assert server.evaluation_state_dict()["w"].tolist() == [0.5, 0.25]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"beta": None}, "args: train_args.beta: missing; FedNNNN needs it"),
        ({"yaml_config_file": "mine.yaml", "gamma": 1}, "mine.yaml: train_args.gamma: 1: must be"),
        ({"method": ["FedNNNN"]}, "method: ['FedNNNN']: must be one of PaperFedAvg"),
        ({"method": "FedAvg"}, "method: 'FedAvg': must be one of PaperFedAvg"),
        ({"federated_optimizer": "LSA"}, "federated_optimizer: LSA: norms cannot be taken"),
        ({"client_sampling": "my:fn"}, "client_sampling: 'my:fn': FedML draws the clients"),
        ({"model": "a name"}, "model: str: must be a torch.nn.Module"),
        ({"model": nn.ReLU()}, "model: has no parameter that requires a gradient"),
        ({"model": nn.LazyLinear(2)}, "model: has layers without a size yet"),
        ({"model": nn.Linear(2, 2, dtype=torch.complex64)}, "model: weight is torch.complex64"),
        ({"model": Versioned(2, 2)}, "model: _extra_state: must be a parameter or a buffer"),
        ({"start_round": 2}, "train_args.start_round: 2: there is no state to start from"),
    ],
)
def test_aggregators_settings_that_cannot_work_are_refused(values, line, aggregator) -> None:
    with pytest.raises(fp.UserError) as caught:
        aggregator(**values)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, KeyError)  # FedML makes those a message about args.rank


def test_tied_parameters_count_once_and_stay_tied(aggregator, play) -> None:
    """The move is βE, of 4 + 2 elements."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    server = aggregator(model, method="NormNorm", gamma=None)
    w_0 = server.get_model_params()
    state = OrderedDict((name, tensor + 1.0) for name, tensor in w_0.items())
    served, _ = play(server, [(1, state)])
    assert torch.equal(served["1.weight"], served["0.weight"])
    assert model[1].weight is model[0].weight
    moves = [(served[name] - w_0[name]).flatten() for name in ("0.weight", "1.bias")]
    assert torch.cat(moves).norm().item() == pytest.approx(0.5 * math.sqrt(6))
    state["1.weight"] = state["1.weight"] + 1
    with pytest.raises(fp.UserError, match=r"1\.weight: differs from 0\.weight"):
        play(server, [(1, state)])
    state["1.weight"] = state["1.weight"].to_sparse()
    with pytest.raises(fp.UserError, match=r"1\.weight: torch.sparse_coo .* dense"):
        server.on_before_aggregation([(1, state)])


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (OrderedDict(v=torch.ones(1)), "missing entries: 'w'; unknown entries: 'v'"),
        (OrderedDict(w=torch.ones(1)), "w: shape (1,): must be (2,)"),
        (OrderedDict(w=[1.0, 2.0]), "w: list: must be a tensor"),
        (OrderedDict(w=torch.ones(2, dtype=torch.int64)), "w: torch.int64: must be torch.float32"),
        ([1.0], "list: must map names to tensors"),
    ],
)
def test_a_model_that_does_not_fit_is_named(state, words, aggregator, play) -> None:
    with pytest.raises(fp.UserError) as caught:
        play(aggregator(), [TWO[0], (1, state)])
    assert str(caught.value) == f"round 1: the client of rank 2: client model: {words}"
    if isinstance(state, dict):
        with pytest.raises(fp.UserError, match="the client of rank 2: client model: "):
            aggregator().aggregate([TWO[0], (1, state)])


def test_rejected_clients_are_named_by_fedmls_rank(aggregator, play, caplog) -> None:
    """Also behind one that was left out before, and by the ids that FedML was given."""
    server = aggregator(max_client_failures=1, client_id_list="[64, 65, 66, 70]")
    served, _ = play(server, [client(1.0), client(math.nan, 0.0), *TWO])
    assert_close(served["w"], torch.tensor([1.05, 1.4]))
    first, second = (record.message for record in caplog.records)
    assert first.startswith("round 1: the client of rank 64: client model: w: shape")
    assert second == "round 1: the client of rank 65: update rejected: not finite"


def test_frozen_entries_may_be_missing_and_stay(aggregator, play) -> None:
    """As LoRA's clients leave it out; what is trained may not be."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(requires_grad=False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sent = {name: before[name] + 1.0 for name in ("1.weight", "1.bias")}
    served, _ = play(aggregator(model), [(10, sent), (10, sent | {"0.bias": before["0.bias"]})])
    for name, tensor in before.items():
        assert torch.equal(served[name], tensor) == name.startswith("0")
    del sent["1.bias"]
    with pytest.raises(fp.UserError, match=r"missing entries: '1\.bias'"):
        play(aggregator(model), [(10, sent)])


def test_failures_are_counted_over_both_hooks(aggregator) -> None:
    server = aggregator(max_client_failures=1, client_weighting="samples")
    no_samples = ("none", client(1.0, 1.0)[1])
    kept, _ = server.on_before_aggregation([client(3.0, 0.0), (10, None), no_samples])
    with pytest.raises(fp.UserError, match="client weight"):
        server.aggregate(kept)
    kept, _ = server.on_before_aggregation([client(3.0, 0.0), client(3.0, 0.0), no_samples])
    assert server.aggregate(kept)["w"].tolist() == [1.5, 0.0]


def test_what_is_handed_out_is_a_copy(aggregator, play) -> None:
    server = aggregator()
    play(server, TWO)
    for get in (server.get_model_params, server.evaluation_state_dict):
        assert type(get()) is OrderedDict
        before = get()["w"].clone()
        get()["w"].add_(1.0)
        assert torch.equal(get()["w"], before)


def test_test_reports_the_evaluation_model(aggregator, play) -> None:
    torch.manual_seed(0)
    server = aggregator(normalised())
    args = server.args
    clients = [(1, normalised().state_dict()) for _ in range(2)]
    served, _ = play(server, clients)
    data = [(torch.randn(5, 1, 4, 4), torch.randint(2, (5,)))]
    expected = {}
    for name, state in (("average", server.evaluation_state_dict()), ("served", served)):
        theirs = normalised()
        theirs.load_state_dict(state)
        args.round_idx = 0
        expected[name] = DefaultServerAggregator(theirs, args).test(data, CPU, args)
    assert server.test(data, CPU, args) == expected["average"] != expected["served"]
    assert server.test(data, CPU, SimpleNamespace()) == expected["average"]  # reads no more of it
    assert_close(server.get_model_params(), served, rtol=0, atol=0)


def test_labels_as_large_as_images_are_counted(aggregator) -> None:
    """FedML's own tester counts none of them, and divides by that."""
    model = nn.Conv2d(1, 2, 1)
    x, y = torch.randn(3, 1, 4, 4), torch.randint(2, (3, 4, 4))
    accuracy, loss, *_ = aggregator(model).test([(x, y)], CPU, SimpleNamespace())
    assert accuracy == pytest.approx((model(x).argmax(1) == y).double().mean().item())
    assert loss == pytest.approx(nn.functional.cross_entropy(model(x), y).item(), rel=1e-5)


def test_the_evaluation_model_is_saved_every_round(aggregator, play, tmp_path) -> None:
    path = tmp_path / "deep" / "evaluation.safetensors"
    server = aggregator(save_path=str(path))
    server.set_model_params(client(0.0, 0.0)[1])
    assert not path.exists()
    for one in TWO:
        play(server, [one])
        assert_close(load_file(path), server.evaluation_state_dict(), rtol=0, atol=0)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_fewer_silos_than_clients_are_said(aggregator, caplog) -> None:
    aggregator(client_num_in_total=10, client_num_per_round=10)
    assert not caplog.records
    aggregator(client_num_in_total=10, client_num_per_round=3)
    [record] = caplog.records
    assert record.message.startswith("client_num_per_round: 3 of 10: ")


def test_aggregator_follows_fedml_to_its_device(aggregator, play) -> None:
    """FedML sets ``args.device``, to which it also moves the models that it receives."""
    server = aggregator()
    assert play(server, TWO)[0]["w"].device == CPU
    server.args.device = torch.device("meta")
    server.on_before_aggregation([])
    assert server.model.w.is_meta


@pytest.mark.parametrize(("backend", "optimizer"), [("sp", "FedAvg"), ("MPI", "FedOpt")])
def test_fedmls_simulation_refuses_our_aggregator(backend, optimizer, silo) -> None:
    server = silo(Vector())
    args = server.args
    args.training_type, args.backend, args.federated_optimizer = "simulation", backend, optimizer
    for given_as in ((None, server), ()):
        named = {} if given_as else {"server_aggregator": server}
        with pytest.raises(fp.UserError, match=r"^server_aggregator: .* FedNNNN"):
            fedml.FedMLRunner(args, CPU, [None] * 8, server.model, *given_as, **named)
