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
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

import fednnnn_plugin as fp
from fednnnn_plugin.errors import RunError

# As fedml.init does: otherwise FedML's reports look for its platform on the network.
fedml.mlops.pre_setup(SimpleNamespace(using_mlops=False))

CPU = torch.device("cpu")


class Vector(nn.Module):
    def __init__(self, values=(0.0, 0.0), dtype=torch.float32) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values, dtype=dtype))


class Normalised(nn.Module):
    """A convolution, batch normalisation and a head; the normalisation counts its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.bn = nn.BatchNorm2d(2)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.relu(self.bn(self.conv(x))).flatten(1))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(2, 2, bias=False)
        self.decoder = nn.Linear(2, 2)
        self.decoder.weight = self.encoder.weight


def arguments(**values) -> SimpleNamespace:
    return SimpleNamespace(
        **{"training_type": "cross_silo", "federated_optimizer": "FedAvg"}
        | {"beta": 0.5, "gamma": 0.5}
        | values
    )


def aggregator(model=None, method=None, **values):
    return fp.FedNNNNAggregator(model or Vector(), arguments(**values), method)


def client(*values) -> OrderedDict:
    return OrderedDict(w=torch.tensor(values))


def run_round(server, clients) -> OrderedDict:
    """One round in FedML's order of calls."""
    kept, _ = server.on_before_aggregation(clients)
    served = server.on_after_aggregation(server.aggregate(kept))
    server.set_model_params(served)
    return served


def perturbed(model: nn.Module, seed: int) -> OrderedDict:
    generator = torch.Generator().manual_seed(seed)
    return OrderedDict(
        (
            name,
            tensor + torch.rand(tensor.shape, generator=generator).to(tensor.dtype)
            if tensor.is_floating_point()
            else tensor + seed,
        )
        for name, tensor in model.state_dict().items()
    )


def assert_equal(one, other) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def test_two_rounds_by_hand() -> None:
    """S = (1.5, 2), N = 2.5, E = 3.5: d₁ = β E/N S = 0.7 S; then d₂ = γ d₁ + 0.7 S."""
    server = aggregator()
    assert isinstance(server, ServerAggregator)
    served = run_round(server, [(10, client(3.0, 0.0)), (30, client(0.0, 4.0))])
    assert type(served) is OrderedDict
    torch.testing.assert_close(served["w"], torch.tensor([1.05, 1.4]))
    assert server.evaluation_state_dict()["w"].tolist() == [1.5, 2.0]
    torch.testing.assert_close(server.get_model_params()["w"], torch.tensor([1.05, 1.4]))
    served = run_round(server, [(10, client(4.05, 1.4)), (30, client(1.05, 5.4))])
    torch.testing.assert_close(served["w"], torch.tensor([2.625, 3.5]))
    torch.testing.assert_close(server.evaluation_state_dict()["w"], torch.tensor([2.55, 3.4]))


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
    clients = [(1, client(3.0, 0.0)), (1, client(0.0, 4.0))]
    for server in (
        aggregator(method=method, **values),
        aggregator(federated_optimizer=method, **values),
    ):
        torch.testing.assert_close(run_round(server, clients)["w"], torch.tensor(expected))


def test_samples_weigh_where_they_are_asked_for() -> None:
    """α = (1/4, 3/4): S = (0.75, 3), E = 3.75."""
    server = aggregator(client_weighting="samples", method="NormNorm", gamma=None)
    served = run_round(server, [(10, client(3.0, 0.0)), (30, client(0.0, 4.0))])
    assert server.evaluation_state_dict()["w"].tolist() == [0.75, 3.0]
    assert math.isclose(served["w"].norm().item(), 0.5 * 3.75, rel_tol=1e-6)
    # No sample, no weight; a nonsense number is named.
    clients = [(0, client(9.0, 9.0)), (2, client(1.0, 1.0))]
    again = run_round(aggregator(client_weighting="samples"), clients)
    torch.testing.assert_close(again["w"], torch.tensor([0.5, 0.5]))
    with pytest.raises(fp.UserError, match=r"the client of rank 1: client weight: -1"):
        aggregator(client_weighting="samples").aggregate([(-1, client(1.0, 1.0))])


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"beta": None}, "args: train_args.beta: missing; FedNNNN needs it"),
        ({"gamma": None}, "args: train_args.gamma: missing; FedNNNN needs it"),
        ({"beta": -1}, "args: train_args.beta: -1: must be"),
        ({"client_weighting": "size"}, "args: train_args.client_weighting: 'size': must be"),
        ({"yaml_config_file": "mine.yaml", "gamma": 1}, "mine.yaml: train_args.gamma: 1: must be"),
        ({"method": "FedAvg"}, "method: 'FedAvg': must be one of PaperFedAvg"),
        ({"federated_optimizer": "LSA"}, "federated_optimizer: LSA: norms cannot be taken"),
        ({"federated_optimizer": "SA"}, "federated_optimizer: SA: norms cannot be taken"),
        ({"enable_fhe": True}, "enable_fhe: true: norms cannot be taken of encrypted"),
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


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("defense_type", "rfa", "replaces the aggregation"),
        ("defense_type", "geo_median", "replaces the aggregation"),
        ("defense_type", "wise_median", "replaces the aggregation"),
        ("defense_type", "slsgd", "replaces the aggregation"),
        ("defense_type", "cclip", "differences"),
        ("defense_type", "crfl", "after the aggregation"),
        ("defense_type", "trimmed_mean", "beta"),
        ("defense_type", "3sigma_geo", "fails in FedML"),
        ("defense_type", "weak_dp", "never calls it"),
        ("defense_type", "robust_learning_rate", "never calls it"),
        ("defense_type", "another", "must be one of norm_diff_clipping, krum"),
        ("defense_type", "foolsgold", "set train_args.client_weighting: samples"),
        ("attack_type", "dlg", "not tested"),
        ("attack_type", "label_flipping", "unflipped"),
        ("dp_solution_type", "nbafl", "no noise"),
        ("dp_solution_type", "dp_clip", "neither clips nor"),
        ("dp_solution_type", "another", "must be one of cdp, ldp"),
    ],
)
def test_what_fedml_would_do_to_the_models_is_refused_by_name(key, value, reason) -> None:
    switch = {"defense_type": "defense", "attack_type": "attack", "dp_solution_type": "dp"}[key]
    with pytest.raises(fp.UserError, match=reason) as caught:
        aggregator(**{f"enable_{switch}": True, key: value})
    assert str(caught.value).startswith(f"{key}: {value}: ")
    aggregator(**{f"enable_{switch}": False, key: value})


def test_buckets_of_clients_and_contributions_are_refused() -> None:
    with pytest.raises(fp.UserError, match="bucketing_batch_size: 2"):
        aggregator(enable_defense=True, defense_type="3sigma_foolsgold", bucketing_batch_size=2)
    with pytest.raises(fp.UserError, match="enable_contribution: true"):
        aggregator(enable_contribution=True)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(5)), st.sampled_from(["uniform", "samples"]))
def test_any_order_gives_the_same_bits_and_clients_are_only_read(order, weighting) -> None:
    model = Normalised()
    clients = [(10 + k, perturbed(model, k)) for k in range(5)]
    before = copy.deepcopy(clients)
    results = []
    for sequence in (range(5), order):
        server = aggregator(copy.deepcopy(model), client_weighting=weighting)
        served = run_round(server, [clients[k] for k in sequence])
        results.append((served, server.evaluation_state_dict()))
    for one, other in zip(*results, strict=True):
        assert_equal(one, other)
    for (_, state), (_, original) in zip(clients, before, strict=True):
        assert_equal(state, original)


def test_running_statistics_are_averaged_and_counts_are_the_largest() -> None:
    model = Normalised()
    clients = [(1, perturbed(model, k)) for k in (1, 2)]
    server = aggregator(model)
    served = run_round(server, clients)
    for state in (served, server.evaluation_state_dict()):
        mean = (clients[0][1]["bn.running_var"] + clients[1][1]["bn.running_var"]) / 2
        torch.testing.assert_close(state["bn.running_var"], mean)
        assert state["bn.num_batches_tracked"].item() == 2
        assert state["bn.num_batches_tracked"].dtype == torch.int64
    assert_equal(server.get_model_params(), served)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_dtype_stays_and_half_precision_is_rounded_once(dtype) -> None:
    server = aggregator(Vector((1.0, 2.0), dtype))
    clients = [(1, OrderedDict(w=torch.tensor(w, dtype=dtype))) for w in ([1.5, 2.0], [1.0, 2.25])]
    served = run_round(server, clients)
    mean_update = torch.tensor([0.25, 0.125], dtype=torch.float64)
    move = 0.5 * 0.375 / mean_update.norm() * mean_update
    assert served["w"].dtype == server.evaluation_state_dict()["w"].dtype == dtype
    expected = torch.tensor([1.0, 2.0], dtype=torch.float64) + move
    working = torch.float64 if dtype == torch.float64 else torch.float32
    torch.testing.assert_close(served["w"], expected.to(working).to(dtype))
    # The momentum is not rounded to the model's precision.
    second = run_round(server, [(1, OrderedDict(w=served["w"])), (1, OrderedDict(w=served["w"]))])
    assert torch.equal(second["w"], served["w"])  # degenerate: E = 0
    (momentum,) = server._rule_state.values()
    torch.testing.assert_close(momentum, move.to(working))


def test_a_served_model_beyond_half_precision_ends_the_federation() -> None:
    server = aggregator(Vector((60000.0, 0.0), torch.float16), "Momentum", beta=None, gamma=0.9)
    step = OrderedDict(w=torch.tensor([65000.0, 0.0], dtype=torch.float16))
    run_round(server, [(1, step)])
    with pytest.raises(RunError, match="no longer finite"):
        run_round(server, [(1, step)])
    assert server.get_model_params()["w"].isfinite().all()


def test_a_client_of_another_precision_or_a_frozen_parameter_is_no_trouble() -> None:
    model = Tied()
    model.decoder.bias.requires_grad_(False)
    state = perturbed(model, 1)
    state["decoder.weight"] = state["encoder.weight"]
    state = OrderedDict((name, tensor.double()) for name, tensor in state.items())
    served = run_round(aggregator(model), [(1, state)])
    torch.testing.assert_close(served["decoder.bias"], state["decoder.bias"].float())  # averaged


def test_tied_parameters_count_once_and_stay_tied(tmp_path) -> None:
    model = Tied()
    path = tmp_path / "evaluation.safetensors"
    server = aggregator(model, save_path=str(path), method="NormNorm", gamma=None)
    w_0 = server.get_model_params()
    state = OrderedDict((name, tensor + 1.0) for name, tensor in w_0.items())
    served = run_round(server, [(1, state)])
    assert torch.equal(served["decoder.weight"], served["encoder.weight"])
    assert model.decoder.weight is model.encoder.weight
    moved = [served[name] - w_0[name] for name in ("encoder.weight", "decoder.bias")]
    norm = math.sqrt(sum(float(move.square().sum()) for move in moved))
    assert math.isclose(norm, 0.5 * math.sqrt(6), rel_tol=1e-6)  # βE, of 4 + 2 elements
    assert_equal(load_file(path), server.evaluation_state_dict())
    state["decoder.weight"] = state["decoder.weight"] + 1
    with pytest.raises(fp.UserError, match=r"decoder\.weight: differs from encoder\.weight"):
        server.aggregate([(1, state)])


@pytest.mark.parametrize("call", ["aggregate", "on_before_aggregation"])
@pytest.mark.parametrize(
    ("state", "words"),
    [
        (OrderedDict(), "missing entries ['w'], unknown entries []"),
        (client(1.0, 1.0) | {"v": torch.ones(1)}, "missing entries [], unknown entries ['v']"),
        (client(1.0), "w: shape (1,): must be (2,)"),
        (OrderedDict(w=[1.0, 2.0]), "w: list: must be a tensor"),
        (OrderedDict(w=torch.ones(2, dtype=torch.int64)), "w: torch.int64: must be torch.float32"),
        ([1.0], "list: must be a mapping of names to tensors"),
    ],
)
def test_a_model_that_does_not_fit_is_named(call, state, words) -> None:
    with pytest.raises(fp.UserError) as caught:
        getattr(aggregator(), call)([(1, client(1.0, 0.0)), (1, state)])
    assert str(caught.value) == f"round 1: the client of rank 2: {words}"


def test_no_error_of_ours_is_a_key_error() -> None:
    """FedML turns those into a message about args.rank."""
    assert not issubclass(fp.UserError, KeyError)
    assert not issubclass(RunError, KeyError)


def test_clients_that_are_not_finite_are_left_out_with_a_word(caplog) -> None:
    server = aggregator()
    clients = [
        (1, client(math.nan, 0.0)),
        (1, client(3.0, 0.0)),
        (1, client(0.0, math.inf)),
        (1, client(0.0, 4.0)),
    ]
    torch.testing.assert_close(run_round(server, clients)["w"], torch.tensor([1.05, 1.4]))
    assert [record.message for record in caplog.records] == [
        f"round 1: the client of rank {k}: update rejected: not finite" for k in (1, 3)
    ]


def test_clients_are_named_by_the_rank_that_fedmls_log_has(caplog) -> None:
    """Also behind one that was left out before, and by the ids that FedML was given."""
    server = aggregator(max_client_failures=1, client_id_list="[64, 66, 70]")
    run_round(server, [(1, client(1.0)), (1, client(math.nan, 0.0)), (1, client(3.0, 0.0))])
    assert [record.message.split(": ")[1] for record in caplog.records] == [
        "the client of rank 64",
        "the client of rank 66",
    ]


def test_a_round_without_a_finite_client_ends_the_federation() -> None:
    server = aggregator()
    with pytest.raises(RunError, match="round 1: no client update to average: all 2 were rejected"):
        run_round(server, [(1, client(math.nan, 0.0)), (1, client(0.0, math.inf))])
    assert server.get_model_params()["w"].tolist() == [0.0, 0.0]


def test_opposite_clients_leave_the_model_with_a_word(caplog) -> None:
    served = run_round(aggregator(), [(1, client(1.0, 0.0)), (1, client(-1.0, 0.0))])
    assert served["w"].tolist() == [0.0, 0.0]
    assert [record.message for record in caplog.records] == [
        "round 1: N is near 0: the served model stays"
    ]


def test_the_next_round_starts_from_what_was_set() -> None:
    """Noise, or whatever came after the aggregation, is part of the served model."""
    server = aggregator(method="NormNorm", gamma=None)
    server.aggregate([(1, client(3.0, 0.0))])
    server.set_model_params(client(10.0, 10.0))
    served = run_round(server, [(1, client(13.0, 10.0)), (1, client(10.0, 14.0))])
    torch.testing.assert_close(served["w"], torch.tensor([11.05, 11.4]))
    assert server.evaluation_state_dict()["w"].tolist() == [11.5, 12.0]


def test_what_is_handed_out_is_a_copy() -> None:
    server = aggregator()
    run_round(server, [(1, client(3.0, 0.0))])
    for get in (server.get_model_params, server.evaluation_state_dict):
        assert type(get()) is OrderedDict
        before = get()["w"].clone()
        get()["w"].add_(1.0)
        assert torch.equal(get()["w"], before)


def test_long_updates_are_clipped_where_asked_for() -> None:
    server = aggregator(max_client_norm=1.0)
    run_round(server, [(1, client(3.0, 0.0)), (1, client(0.0, 0.5))])
    assert server.evaluation_state_dict()["w"].tolist() == [0.5, 0.25]


def test_the_test_reports_the_evaluation_model_as_fedml_reports_its_own() -> None:
    torch.manual_seed(0)
    model = Normalised()
    server = aggregator(model, dataset="mine", enable_wandb=False)
    assert_equal(server.evaluation_state_dict(), model.state_dict())
    run_round(server, [(1, perturbed(model, k)) for k in (1, 2)])
    data = [(torch.randn(5, 1, 4, 4), torch.randint(2, (5,)))]
    average = Normalised()
    average.load_state_dict(server.evaluation_state_dict())
    args = arguments(dataset="mine", enable_wandb=False, round_idx=0)
    expected = DefaultServerAggregator(average, args).test(data, CPU, args)
    served = server.get_model_params()
    assert server.test(data, CPU, args) == expected
    assert server.test(data, CPU, SimpleNamespace()) == expected  # reads nothing that is missing
    assert_equal(server.get_model_params(), served)
    served_model = Normalised()
    served_model.load_state_dict(served)
    assert DefaultServerAggregator(served_model, args).test(data, CPU, args) != expected


def test_labels_of_the_size_of_images_are_counted() -> None:
    """FedML's own tester counts none of them, and divides by that."""
    model = nn.Conv2d(1, 2, 1)
    server = aggregator(model)
    data = [(torch.randn(3, 1, 4, 4), torch.randint(2, (3, 4, 4)))]
    accuracy, loss, *_ = server.test(data, CPU, SimpleNamespace())
    logits = model(data[0][0])
    assert accuracy == pytest.approx((logits.argmax(1) == data[0][1]).double().mean().item())
    assert loss == pytest.approx(nn.functional.cross_entropy(logits, data[0][1]).item(), rel=1e-5)


def test_the_evaluation_model_is_saved_every_round(tmp_path) -> None:
    path = tmp_path / "deep" / "evaluation.safetensors"
    server = aggregator(save_path=str(path))
    server.set_model_params(client(0.0, 0.0))
    assert not path.exists()
    for values in ((3.0, 0.0), (0.0, 4.0)):
        run_round(server, [(1, client(*values))])
        assert_equal(load_file(path), server.evaluation_state_dict())
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_fewer_silos_than_clients_are_said_in_one_line(caplog) -> None:
    aggregator(client_num_in_total=10, client_num_per_round=10)
    assert not caplog.records
    aggregator(client_num_in_total=10, client_num_per_round=3)
    [record] = caplog.records
    assert record.message.startswith("client_num_per_round: 3 of 10: ")


class Placed(Vector):
    """A model that writes down where it is told to go."""

    def to(self, *where, **more):
        self.where = where
        return super().to(*where, **more)


def test_it_follows_fedml_to_its_device_and_sends_from_the_cpu() -> None:
    """FedML sets ``args.device``, to which it also moves the models that it receives."""
    args = arguments()
    server = fp.FedNNNNAggregator(Placed(), args)
    args.device = torch.device("meta")
    server.on_before_aggregation([])
    assert server.model.w.is_meta
    args.device = torch.device("cpu")
    server = fp.FedNNNNAggregator(Placed(), args)
    served = run_round(server, [(1, client(3.0, 0.0))])
    assert server.model.where == (torch.device("cpu"),)
    assert {tensor.device for tensor in (served["w"], server.get_model_params()["w"])} == {CPU}


@pytest.mark.parametrize("optimizer", ["FedAvg", "FedOpt"])
@pytest.mark.parametrize("backend", ["sp", "MPI"])
def test_a_simulation_of_fedml_refuses_what_it_would_ignore(optimizer, backend) -> None:
    args = arguments(
        training_type="simulation", backend=backend, federated_optimizer=optimizer, dataset="mine"
    )
    model = Vector()
    server = fp.FedNNNNAggregator(model, args)
    with pytest.raises(fp.UserError, match="federated_optimizer: FedNNNN") as caught:
        fedml.FedMLRunner(args, CPU, [None] * 8, model, None, server)
    assert "\n" not in str(caught.value)
    with pytest.raises(fp.UserError, match="federated_optimizer: FedNNNN"):
        fedml.FedMLRunner(args, CPU, [None] * 8, model, server_aggregator=server)
