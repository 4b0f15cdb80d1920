"""The server aggregator on its own: FedML's hooks are off, as in most federations."""

import copy
import math
from collections import OrderedDict
from types import SimpleNamespace

import fedml
import pytest
import torch
from fedml.core import ServerAggregator
from fedml.ml.aggregator.default_aggregator import DefaultServerAggregator
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

import fednnnn_plugin as fp
from fednnnn_plugin.errors import RunError

# As fedml.init does: otherwise FedML's reports look for its platform on the network.
fedml.mlops.pre_setup(SimpleNamespace(using_mlops=False))

CPU = torch.device("cpu")


class Vector(nn.Module):
    def __init__(self, values=(0.0, 0.0), dtype=torch.float32) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values, dtype=dtype))


def normalised() -> nn.Module:
    """A convolution, batch normalisation, which counts its batches, and a head."""
    head = (nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), *head)


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    return model


def arguments(**values) -> SimpleNamespace:
    given = {"training_type": "cross_silo", "federated_optimizer": "FedAvg"}
    return SimpleNamespace(**given | {"beta": 0.5, "gamma": 0.5} | values)


def aggregator(model=None, method=None, **values):
    return fp.FedNNNNAggregator(model or Vector(), arguments(**values), method)


def client(*values, dtype=torch.float32) -> tuple[int, OrderedDict]:
    return 10, OrderedDict(w=torch.tensor(values, dtype=dtype))


#: S = (1.5, 2), N = 2.5, E = 3.5.
TWO = [client(3.0, 0.0), client(0.0, 4.0)]


def run_round(server, clients) -> OrderedDict:
    """One round in FedML's order of calls."""
    kept, _ = server.on_before_aggregation(clients)
    served = server.on_after_aggregation(server.aggregate(kept))
    server.set_model_params(served)
    return served


def perturbed(model: nn.Module, seed: int) -> OrderedDict:
    generator = torch.Generator().manual_seed(seed)
    return OrderedDict(
        (name, t + torch.rand(t.shape, generator=generator) if t.is_floating_point() else t + seed)
        for name, t in model.state_dict().items()
    )


def assert_same(one, other) -> None:
    assert_close(dict(one), dict(other), rtol=0, atol=0)


def test_two_rounds_by_hand() -> None:
    """d₁ = β E/N S = 0.7 S; then d₂ = γ d₁ + 0.7 S."""
    server = aggregator()
    assert isinstance(server, ServerAggregator)
    served = run_round(server, TWO)
    assert type(served) is OrderedDict
    assert_close(served["w"], torch.tensor([1.05, 1.4]))
    assert server.evaluation_state_dict()["w"].tolist() == [1.5, 2.0]
    assert_same(server.get_model_params(), served)
    served = run_round(server, [client(4.05, 1.4), client(1.05, 5.4)])
    assert_close(served["w"], torch.tensor([2.625, 3.5]))
    assert_close(server.evaluation_state_dict()["w"], torch.tensor([2.55, 3.4]))


MOMENTS = {
    **{"beta": None, "gamma": None, "server_lr": 1.0},
    **{"server_beta1": 0.5, "server_beta2": 0.25, "server_tau": 1.0},
}


@pytest.mark.parametrize(
    ("method", "values", "expected"),
    [
        ("FedNNNN", {}, [1.05, 1.4]),
        ("NormNorm", {"gamma": None}, [1.05, 1.4]),
        ("Momentum", {"beta": None}, [1.5, 2.0]),
        ("PaperFedAvg", {"beta": None, "gamma": None}, [1.5, 2.0]),
        ("PaperFedProx", {"beta": None, "gamma": None, "prox_mu": 0.1}, [1.5, 2.0]),
        # The mean square is 12.5: 12.5 / (2 (6.25 + 10^-9)) is just below 1.
        ("FedExP", {"beta": None, "gamma": None, "fedexp_epsilon": 1e-9}, [1.5, 2.0]),
        # From v = τ² = 1: m = S / 2 and v = 1/4 + 3/4 S² with S = (1.5, 2).
        ("FedAdam", MOMENTS, [0.75 / (1.9375**0.5 + 1), 1 / (3.25**0.5 + 1)]),
        ("FedYogi", MOMENTS, [0.75 / (2.6875**0.5 + 1), 1 / 3]),
    ],
)
def test_the_method_is_the_argument_or_the_name(method, values, expected) -> None:
    for named in ({"method": method}, {"federated_optimizer": method}):
        assert_close(run_round(aggregator(**named, **values), TWO)["w"], torch.tensor(expected))


def test_samples_weigh_where_they_are_asked_for() -> None:
    """α = (1/4, 3/4, 0): S = (0.75, 3), E = 3.75; a nonsense number is named."""
    server = aggregator(client_weighting="samples", method="NormNorm", gamma=None)
    states = [state for _, state in (*TWO, client(9.0, 9.0))]
    served = run_round(server, list(zip((10, 30, 0), states, strict=True)))
    assert server.evaluation_state_dict()["w"].tolist() == [0.75, 3.0]
    assert math.isclose(served["w"].norm().item(), 0.5 * 3.75, rel_tol=1e-6)
    with pytest.raises(fp.UserError, match=r"the client of rank 1: client weight: -1"):
        server.aggregate([(-1, states[0])])


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"beta": None}, "args: train_args.beta: missing; FedNNNN needs it"),
        ({"beta": -1}, "args: train_args.beta: -1: must be"),
        ({"client_weighting": "size"}, "args: train_args.client_weighting: 'size': must be"),
        ({"yaml_config_file": "mine.yaml", "gamma": 1}, "mine.yaml: train_args.gamma: 1: must be"),
        ({"method": "FedAvg"}, "method: 'FedAvg': must be one of PaperFedAvg"),
        ({"federated_optimizer": "LSA"}, "federated_optimizer: LSA: norms cannot be taken"),
        ({"federated_optimizer": "SA"}, "federated_optimizer: SA: norms cannot be taken"),
        ({"model": "a name"}, "model: str: must be a torch.nn.Module"),
        ({"model": nn.ReLU()}, "model: it has no trainable parameters"),
        ({"start_round": 2}, "train_args.start_round: 2: there is no state to start from"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_in_a_line(values, line) -> None:
    with pytest.raises(fp.UserError) as caught:
        aggregator(**values)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, KeyError)  # FedML makes those a message about args.rank


@given(st.permutations(range(5)), st.sampled_from(["uniform", "samples"]))
def test_any_order_gives_the_same_bits_and_clients_are_only_read(order, weighting) -> None:
    model = normalised()
    clients = [(10 + k, perturbed(model, k)) for k in range(5)]
    before, results = copy.deepcopy(clients), []
    for sequence in (range(5), order):
        server = aggregator(copy.deepcopy(model), client_weighting=weighting)
        served = run_round(server, [clients[k] for k in sequence])
        results.append([dict(served), dict(server.evaluation_state_dict())])
    assert_close(*results, rtol=0, atol=0)
    assert_close(clients, before, rtol=0, atol=0)


def test_running_statistics_are_averaged_and_counts_are_the_largest() -> None:
    model = normalised()
    clients = [(1, perturbed(model, k)) for k in (1, 2)]
    server = aggregator(model)
    served = run_round(server, clients)
    for state in (served, server.evaluation_state_dict()):
        mean = (clients[0][1]["1.running_var"] + clients[1][1]["1.running_var"]) / 2
        assert_close(state["1.running_var"], mean)
        assert torch.equal(state["1.num_batches_tracked"], torch.tensor(2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_dtype_stays_and_half_precision_is_rounded_once(dtype) -> None:
    server = aggregator(Vector((1.0, 2.0), dtype))
    served = run_round(server, [client(1.5, 2.0, dtype=dtype), client(1.0, 2.25, dtype=dtype)])
    mean_update = torch.tensor([0.25, 0.125], dtype=torch.float64)
    move = 0.5 * 0.375 / mean_update.norm() * mean_update
    working = torch.float64 if dtype == torch.float64 else torch.float32
    expected = torch.tensor([1.0, 2.0], dtype=torch.float64) + move
    assert server.evaluation_state_dict()["w"].dtype == dtype
    assert_close(served["w"], expected.to(working).to(dtype))
    (momentum,) = server._rule_state.values()  # not rounded to the model's precision
    assert_close(momentum, move.to(working))


def test_a_served_model_beyond_half_precision_ends_the_federation() -> None:
    server = aggregator(Vector((60000.0, 0.0), torch.float16), "Momentum", beta=None, gamma=0.9)
    step = [client(65000.0, 0.0, dtype=torch.float16)]
    run_round(server, step)
    with pytest.raises(RunError, match="no longer finite"):
        run_round(server, step)
    assert server.get_model_params()["w"].isfinite().all()


def test_a_client_of_another_precision_or_a_frozen_parameter_is_no_trouble() -> None:
    model = tied()
    model[1].bias.requires_grad_(False)
    state = OrderedDict((name, t.double() + 1.0) for name, t in model.state_dict().items())
    served = run_round(aggregator(model), [(1, state)])
    assert_close(served["1.bias"], state["1.bias"].float())  # averaged


def test_tied_parameters_count_once_and_stay_tied(tmp_path) -> None:
    """The move is βE, of 4 + 2 elements."""
    model, path = tied(), tmp_path / "evaluation.safetensors"
    server = aggregator(model, save_path=str(path), method="NormNorm", gamma=None)
    w_0 = server.get_model_params()
    state = OrderedDict((name, tensor + 1.0) for name, tensor in w_0.items())
    served = run_round(server, [(1, state)])
    assert torch.equal(served["1.weight"], served["0.weight"])
    assert model[1].weight is model[0].weight
    moves = [(served[name] - w_0[name]).flatten() for name in ("0.weight", "1.bias")]
    assert torch.cat(moves).norm().item() == pytest.approx(0.5 * math.sqrt(6))
    assert_same(load_file(path), server.evaluation_state_dict())
    state["1.weight"] = state["1.weight"] + 1
    with pytest.raises(fp.UserError, match=r"1\.weight: differs from 0\.weight"):
        run_round(server, [(1, state)])


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (OrderedDict(v=torch.ones(1)), "missing entries ['w'], unknown entries ['v']"),
        (OrderedDict(w=torch.ones(1)), "w: shape (1,): must be (2,)"),
        (OrderedDict(w=[1.0, 2.0]), "w: list: must be a tensor"),
        (OrderedDict(w=torch.ones(2, dtype=torch.int64)), "w: torch.int64: must be torch.float32"),
        ([1.0], "list: must be a mapping of names to tensors"),
    ],
)
def test_a_model_that_does_not_fit_is_named(state, words) -> None:
    with pytest.raises(fp.UserError) as caught:
        run_round(aggregator(), [TWO[0], (1, state)])
    assert str(caught.value) == f"round 1: the client of rank 2: {words}"


def test_clients_that_are_left_out_are_named_by_the_rank_that_fedmls_log_has(caplog) -> None:
    """Also behind one that was left out before, and by the ids that FedML was given."""
    server = aggregator(max_client_failures=1, client_id_list="[64, 65, 66, 70]")
    served = run_round(server, [client(1.0), client(math.nan, 0.0), *TWO])
    assert_close(served["w"], torch.tensor([1.05, 1.4]))
    first, second = (record.message for record in caplog.records)
    assert first.startswith("round 1: the client of rank 64: w: shape")
    assert second == "round 1: the client of rank 65: update rejected: not finite"


def test_a_round_without_a_finite_client_ends_the_federation() -> None:
    server = aggregator()
    with pytest.raises(RunError, match="round 1: no client update to average: all 2 were rejected"):
        run_round(server, [client(math.nan, 0.0), client(0.0, math.inf)])
    assert server.get_model_params()["w"].tolist() == [0.0, 0.0]


def test_opposite_clients_leave_the_model_with_a_word(caplog) -> None:
    served = run_round(aggregator(), [client(1.0, 0.0), client(-1.0, 0.0)])
    assert served["w"].tolist() == [0.0, 0.0]
    [record] = caplog.records
    assert record.message == "round 1: N is near 0: the served model stays"


def test_the_next_round_starts_from_what_was_set() -> None:
    """Noise, or whatever came after the aggregation, is part of the served model."""
    server = aggregator(method="NormNorm", gamma=None)
    server.aggregate([client(3.0, 0.0)])
    server.set_model_params(client(10.0, 10.0)[1])
    served = run_round(server, [client(13.0, 10.0), client(10.0, 14.0)])
    assert_close(served["w"], torch.tensor([11.05, 11.4]))
    assert server.evaluation_state_dict()["w"].tolist() == [11.5, 12.0]


def test_what_is_handed_out_is_a_copy() -> None:
    server = aggregator()
    run_round(server, TWO)
    for get in (server.get_model_params, server.evaluation_state_dict):
        assert type(get()) is OrderedDict
        before = get()["w"].clone()
        get()["w"].add_(1.0)
        assert torch.equal(get()["w"], before)


def test_long_updates_are_clipped_where_asked_for() -> None:
    server = aggregator(max_client_norm=1.0)
    run_round(server, [client(3.0, 0.0), client(0.0, 0.5)])
    assert server.evaluation_state_dict()["w"].tolist() == [0.5, 0.25]


def test_the_test_reports_the_evaluation_model_as_fedml_reports_its_own() -> None:
    torch.manual_seed(0)
    model, args = normalised(), arguments(dataset="mine", enable_wandb=False, round_idx=0)
    server = fp.FedNNNNAggregator(model, args)
    assert_same(server.evaluation_state_dict(), model.state_dict())
    served = run_round(server, [(1, perturbed(model, k)) for k in (1, 2)])
    data = [(torch.randn(5, 1, 4, 4), torch.randint(2, (5,)))]
    expected = {}
    for name, state in (("average", server.evaluation_state_dict()), ("served", served)):
        theirs = normalised()
        theirs.load_state_dict(state)
        expected[name] = DefaultServerAggregator(theirs, args).test(data, CPU, args)
    assert server.test(data, CPU, args) == expected["average"] != expected["served"]
    assert server.test(data, CPU, SimpleNamespace()) == expected["average"]  # reads no more of it
    assert_same(server.get_model_params(), served)


def test_labels_of_the_size_of_images_are_counted() -> None:
    """FedML's own tester counts none of them, and divides by that."""
    model = nn.Conv2d(1, 2, 1)
    x, y = torch.randn(3, 1, 4, 4), torch.randint(2, (3, 4, 4))
    accuracy, loss, *_ = aggregator(model).test([(x, y)], CPU, SimpleNamespace())
    assert accuracy == pytest.approx((model(x).argmax(1) == y).double().mean().item())
    assert loss == pytest.approx(nn.functional.cross_entropy(model(x), y).item(), rel=1e-5)


def test_the_evaluation_model_is_saved_every_round(tmp_path) -> None:
    path = tmp_path / "deep" / "evaluation.safetensors"
    server = aggregator(save_path=str(path))
    server.set_model_params(client(0.0, 0.0)[1])
    assert not path.exists()
    for one in TWO:
        run_round(server, [one])
        assert_same(load_file(path), server.evaluation_state_dict())
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_fewer_silos_than_clients_are_said_in_one_line(caplog) -> None:
    aggregator(client_num_in_total=10, client_num_per_round=10)
    assert not caplog.records
    aggregator(client_num_in_total=10, client_num_per_round=3)
    [record] = caplog.records
    assert record.message.startswith("client_num_per_round: 3 of 10: ")


def test_it_follows_fedml_to_its_device_and_sends_from_the_cpu() -> None:
    """FedML sets ``args.device``, to which it also moves the models that it receives."""
    args = arguments()
    server = fp.FedNNNNAggregator(Vector(), args)
    args.device = torch.device("meta")
    server.on_before_aggregation([])
    assert server.model.w.is_meta
    args.device = CPU
    server = fp.FedNNNNAggregator(Vector(), args)
    assert run_round(server, TWO)["w"].device == CPU


@pytest.mark.parametrize("optimizer", ["FedAvg", "FedOpt"])
@pytest.mark.parametrize("backend", ["sp", "MPI"])
def test_a_simulation_of_fedml_refuses_what_it_would_ignore(optimizer, backend) -> None:
    args = arguments(training_type="simulation", backend=backend, federated_optimizer=optimizer)
    server = fp.FedNNNNAggregator(Vector(), args)
    for given_as in ((None, server), ()):
        named = {} if given_as else {"server_aggregator": server}
        with pytest.raises(fp.UserError, match=r"^server_aggregator: .* FedNNNN"):
            fedml.FedMLRunner(args, CPU, [None] * 8, server.model, *given_as, **named)
