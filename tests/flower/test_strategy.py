"""The strategies, on clients in this process."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    FedAvg,
    Result,
)
from torch import Tensor, nn
from torch.testing import assert_close

import fednnnn_plugin as fp
from fednnnn_plugin import flower
from fednnnn_plugin.flower import FedNNNN, RuleStrategy, strategy
from fednnnn_plugin.run_folder.server_records import records_file
from fednnnn_plugin.server.rules import positive

from ..tiny import read_records
from .grid import ClientsHere, State, Train

EXACT = {"rtol": 0, "atol": 0}
LION = str(Path(__file__).parents[1] / "support" / "server_lion.py")


def moved(*delta: float) -> Train:
    """A client that moves ``w``."""
    return lambda _, state: state | {"w": state["w"] + torch.tensor(delta)}


def start(
    strategy: RuleStrategy, clients: dict[int, Train], model: State, rounds: int = 1, **options: Any
) -> tuple[Result, list[State]]:
    """Run rounds; return the result and the models that were sent to node 1, or the first one."""
    samples = options.pop("samples", {})
    grid = ClientsHere(clients, lambda _, node: samples.get(node, 1.0))
    strategy.fraction_evaluate, strategy.min_evaluate_nodes = 0.0, 0
    result = strategy.start(grid, ArrayRecord(model), rounds, **options)
    return result, [state for _, number, state in grid.sent[:: len(clients)]]


def tensors(result: Result) -> State:
    return dict(result.arrays.to_torch_state_dict())


#: With ‖Δ‖ of 3 and 4: S = [1.5, 2], N = 2.5 and E = 3.5.
TWO: dict[int, Train] = {1: moved(3.0, 0.0), 2: moved(0.0, 4.0)}
ZERO = {"w": torch.zeros(2)}


def test_two_clients_worked_by_hand() -> None:
    result, (_, second, third) = start(FedNNNN(beta=0.7, gamma=0.6), TWO, ZERO, 3)
    metrics = result.train_metrics_clientapp[1]
    assert (metrics["N"], metrics["E"], metrics["N/E"]) == (2.5, 3.5, 2.5 / 3.5)
    assert metrics["client-norms"] == [3.0, 3.5, 4.0]
    assert [metrics[of] for of in ("clients", "rejected", "failed", "clipped")] == [2, 0, 0, 0]
    assert metrics["server-update-norm"] == pytest.approx(0.7 * 3.5)
    assert metrics["train-loss"] == 1.5  # the clients' own, averaged by Flower
    served = 0.7 * 3.5 / 2.5 * torch.tensor([1.5, 2.0])
    assert_close(second["w"], served)  # d = β (E/N) S
    assert_close(third["w"], served + 1.6 * served)  # d_2 = γ d_1 + β (E/N) S
    assert_close(tensors(result)["w"], third["w"] + torch.tensor([1.5, 2.0]))  # w_2 + S


def test_weights_and_clipping() -> None:
    """A weight that is none is left out; without weights E is 3.5."""
    samples = {1: 30, 2: 10, 3: 0.0, 4: -1.0, 5: float("nan")}
    clients = {**TWO, **dict.fromkeys((3, 4, 5), moved(9.0, 9.0))}
    weighted = FedNNNN(beta=0.7, gamma=0.6, client_weighting="samples", max_client_norm=3.5)
    result, _ = start(weighted, clients, ZERO, samples=samples)
    metrics = result.train_metrics_clientapp[1]
    assert metrics["E"] == (3 * 3.0 + 3.5) / 4
    assert (metrics["clipped"], metrics["rejected"]) == (1, 3)
    assert_close(tensors(result)["w"], torch.tensor([2.25, 0.875]))


def content(arrays: dict[str, Array | Tensor], *more: str) -> Train:
    records = {name: ArrayRecord(arrays) for name in ("arrays", *more)}
    return lambda *_: RecordDict({**records, "metrics": MetricRecord({"num-examples": 1.0})})


PICKLED = Array("object", (2,), "numpy.ndarray", b"\x93NUMPY\x01\x00v\x00{'descr': '|O'}")
NO_MODEL: list[Train] = [
    lambda *_: Error(3, "out of memory"),
    lambda *_: RecordDict({"metrics": MetricRecord({"num-examples": 1.0})}),
    content(ZERO, "further"),
    content({"v": torch.zeros(2)}),
    content({"w": torch.zeros(3)}),
    content({"w": PICKLED}),
]
NOT_FINITE = [moved(float("nan"), 0.0), moved(0.0, float("inf"))]


def test_bad_clients_are_left_out(caplog) -> None:
    good, _ = start(FedNNNN(beta=0.7, gamma=0.6), TWO, ZERO, 2)
    bad = dict(enumerate([*NO_MODEL, *NOT_FINITE], 7))
    result, _ = start(FedNNNN(beta=0.7, gamma=0.6), {**TWO, **bad}, ZERO, 2)
    assert_close(tensors(result), tensors(good), **EXACT)
    metrics = result.train_metrics_clientapp[2]
    assert [metrics[of] for of in ("clients", "rejected", "failed")] == [2, 8, 6]
    assert all(f"node {node}" in caplog.text for node in bad)


def test_round_without_a_valid_reply_moves_nothing(tmp_path, caplog) -> None:
    def fails(number: int, state: State) -> State | Error:
        return Error(1, "x") if number == 2 else TWO[1](number, state)

    momentum = strategy("Momentum", gamma=0.5, metrics_path=tmp_path)
    result, sent = start(momentum, {1: fails, 2: fails}, ZERO, 3)
    assert_close(sent[2], sent[1], **EXACT)
    assert "no valid reply" in caplog.text
    assert result.train_metrics_clientapp[2]["clients"] == 0
    runs = fp.read_runs(tmp_path)
    assert runs["clients"].tolist() == [2, 0, 2]
    assert read_records(tmp_path)[1]["largest_share"] == 0.0
    assert runs["server_update_norm"].tolist() == [3.0, 0.0, 4.5]


def test_run_without_a_valid_reply_returns_the_model_that_it_has(tmp_path) -> None:
    """That of the state, or the initial one."""
    lost: Train = lambda *_: Error(1, "x")  # noqa: E731
    start_at, kept = {"w": torch.ones(2)}, {"state_path": tmp_path / "state"}
    nothing, _ = start(FedNNNN(beta=0.7, gamma=0.6), {1: lost, 2: lost}, start_at)
    assert_close(tensors(nothing), start_at, **EXACT)
    good, _ = start(FedNNNN(beta=0.7, gamma=0.6, **kept), TWO, ZERO)
    again, _ = start(FedNNNN(beta=0.7, gamma=0.6, **kept), {1: lost, 2: lost}, ZERO, 2)
    assert_close(tensors(again), tensors(good), **EXACT)


def measuring(client: Train, **found: Any) -> Train:
    def train(number: int, state: State) -> RecordDict:
        metrics = MetricRecord({"num-examples": 1.0, **found})
        return RecordDict({"arrays": ArrayRecord(client(number, state)), "metrics": metrics})

    return train


@pytest.mark.parametrize(("one", "other"), [([1.0], [1.0, 2.0]), (1.0, [1.0]), ([1.0], 1.0)])
def test_metrics_that_do_not_fit_each_other_are_left_out(one, other, tmp_path, caplog) -> None:
    """Also of an evaluation, where a client may report more than another, and of no finite count.

    What each client found is on record all the same.
    """
    clients = {1: measuring(TWO[1], a=one), 2: measuring(TWO[2], a=other)}
    grid = ClientsHere(clients, lambda *_: float("inf"))
    grid.found = {1: {"accuracy": 0.5, "loss": 2.0}, 2: {"loss": 1.0}}
    by = FedNNNN(beta=0.7, gamma=0.6, metrics_path=tmp_path)
    result = by.start(grid, ArrayRecord(ZERO), 1)
    metrics = result.train_metrics_clientapp[1]
    assert (metrics["E"], "a" in metrics) == (3.5, False)
    assert not result.evaluate_metrics_clientapp
    assert caplog.text.count("clients' metrics: left out") == 2
    _, *rows = (tmp_path / "clients.csv").read_text().splitlines()
    assert rows == ["1,node 1,0,0.5,2.0", "1,node 2,0,,1.0"]
    [last] = read_records(tmp_path)
    assert "client_acc" not in last
    assert (last["client_loss"]["worst"], last["tested"]) == (2.0, False)


@pytest.mark.parametrize("error", [ValueError, ZeroDivisionError])
@pytest.mark.parametrize("of", ["train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"])
def test_error_of_a_users_function_is_raised(of: str, error: type[Exception]) -> None:
    def own(replies: list[RecordDict], _: str) -> MetricRecord:
        raise error("the user's own")

    by = FedNNNN(beta=0.7, gamma=0.6, **{of: own})
    with pytest.raises(error, match="the user's own"):
        by.start(ClientsHere(TWO), ArrayRecord(ZERO), 1)


def test_metrics_do_not_depend_on_the_order_of_replies() -> None:
    found = {1: 1e16, 2: 1.0, 3: -1e16, 4: 1.0}
    clients = {node: measuring(TWO[1], a=value) for node, value in found.items()}
    one, other = (
        start(FedNNNN(beta=0.7, gamma=0.6), {node: clients[node] for node in order}, ZERO)[0]
        for order in ((1, 2, 3, 4), (4, 3, 2, 1))
    )
    assert one.train_metrics_clientapp[1]["a"] == other.train_metrics_clientapp[1]["a"]


class Net(nn.Module):
    """Batch normalisation, a frozen layer, and two names of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.frozen = nn.BatchNorm1d(2), nn.Linear(2, 2).requires_grad_(False)
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight


def step(by: float) -> Train:
    """A client whose every parameter moves, and whose batches were counted."""

    def train(_: int, state: State) -> State:
        return {name: tensor + (3 if tensor.ndim == 0 else by) for name, tensor in state.items()}

    return train


def test_buffers_frozen_and_tied_parameters() -> None:
    net = Net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    fednnnn = FedNNNN(beta=0.5, gamma=0.0, trainable=net)
    result, (_, served) = start(fednnnn, {1: step(1.0), 2: step(3.0)}, before, 2)
    for name, tensor in before.items():  # all clients move alike: E/N is 1, and S is 2
        trained = name.startswith(("first", "second")) or name in ("norm.weight", "norm.bias")
        expected = tensor + (3 if tensor.ndim == 0 else 1.0 if trained else 2.0)
        assert_close(served[name], expected, msg=name)
    assert served["norm.num_batches_tracked"].dtype == torch.int64
    assert result.train_metrics_clientapp[1]["N"] == pytest.approx(2 * 8**0.5)  # 4 + 2 + 2
    start_again, _ = start(fednnnn, {1: step(1.0), 2: step(3.0)}, before, 2)
    assert_close(tensors(start_again), tensors(result), **EXACT)
    state = {name: before[f"norm.{name}"] for name in net.norm.state_dict()}
    _, (_, served) = start(strategy("NormNorm", beta=0.5), {1: step(2.0), 2: step(2.0)}, state, 2)
    assert_close(served["weight"], torch.full((2,), 2.0))  # by default what is no statistic
    assert_close(served["running_var"], torch.full((2,), 3.0))


def test_tied_tensor_of_which_one_name_is_given_is_refused() -> None:
    """As by ``named_parameters()``: under the other name it would be averaged, not moved."""
    net = Net()
    names, clients = [name for name, _ in net.named_parameters()], {1: step(1.0), 2: step(3.0)}
    tied = r"^trainable: 'second\.weight' has the values of 'first\.weight': if they are tied"
    with pytest.raises(fp.UserError, match=tied):
        start(FedNNNN(beta=0.7, gamma=0.6, trainable=names), clients, net.state_dict())
    both = FedNNNN(beta=0.7, gamma=0.6, trainable=[*names, "second.weight"])
    _, (_, served) = start(both, clients, net.state_dict(), 2)
    assert_close(served["first.weight"], served["second.weight"], **EXACT)


def test_model_that_flowers_fedavg_returned() -> None:
    """It made the counts of batch normalisation float64; clients have them as int64."""
    net = nn.BatchNorm1d(2)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    warm = FedAvg(fraction_evaluate=0.0, min_evaluate_nodes=0)
    warmed = warm.start(ClientsHere({1: step(1.0), 2: step(3.0)}), ArrayRecord(before), 1).arrays
    assert warmed["num_batches_tracked"].dtype == "float64"

    def train(number: int, state: State) -> State:
        net.load_state_dict(state)
        return step(1.0)(number, net.state_dict())

    for trainable in (None, net):
        by = strategy("NormNorm", beta=1.0, trainable=trainable)
        result, _ = start(by, {1: train, 2: train}, dict(warmed.to_torch_state_dict()))
        metrics = result.train_metrics_clientapp[1]
        assert (metrics["clients"], metrics["N"]) == (2, 2.0)  # of weight and bias
        assert tensors(result)["num_batches_tracked"] == 3.0 + 3.0


def killed_in(number: int, client: Train) -> Train:
    def train(of: int, state: State) -> State:
        if of == number:
            raise KeyboardInterrupt
        return client(of, state)

    return train


def drift(number: int, state: State) -> State:
    draw = torch.Generator().manual_seed(number)
    return {"w": state["w"] + torch.randn(2, generator=draw)}


@pytest.mark.parametrize(
    ("name", "options"),
    [("FedNNNN", {"beta": 0.7, "gamma": 0.6}), ("ServerLion", {"server_lion_lr": 0.1})],
)
def test_continued_after_a_kill(name, options, tmp_path, rules_taken_back, monkeypatch) -> None:
    runpy.run_path(LION)  # which registers its rule

    def made(folder: str) -> RuleStrategy:
        files = {"state_path": tmp_path / folder / "state", "metrics_path": tmp_path / folder}
        return strategy(name, **options, **files)

    def tested(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": number / 10, "loss": float(arrays["w"].numpy().sum())})

    seeds = iter([7, 7, 8, 9])  # of two federations; what is continued keeps its own
    monkeypatch.setattr("secrets.randbits", lambda _: next(seeds))
    clients: dict[int, Train] = {1: drift, 2: moved(1.0, 0.0)}
    whole, _ = start(made("whole"), clients, ZERO, 4, evaluate_fn=tested)
    with pytest.raises(KeyboardInterrupt):
        start(made("part"), {**clients, 1: killed_in(3, drift)}, ZERO, 4, evaluate_fn=tested)
    again, _ = start(made("part"), clients, ZERO, 4, evaluate_fn=tested)
    assert_close(tensors(again), tensors(whole), **EXACT)
    assert list(again.train_metrics_clientapp) == [3, 4]
    for number, metrics in again.evaluate_metrics_serverapp.items():  # of the evaluation model
        assert metrics == whole.evaluate_metrics_serverapp[number]
    one, other = (
        [record | {"seconds": 0, "time": 0} for record in read_records(tmp_path / of)]
        for of in ("whole", "part")
    )
    assert one == other
    done, sent = start(made("part"), clients, ZERO, 4)
    assert_close(tensors(done), tensors(whole), **EXACT)
    assert not sent


@pytest.mark.parametrize("rounds", [2, 3])
def test_test_that_was_stopped_is_made_up_for(rounds: int, tmp_path: Path) -> None:
    """By the one at the restart, and a round that has a test keeps it."""
    stops = [2]

    def tested(number: int, _: ArrayRecord) -> MetricRecord:
        if number in stops:
            stops.remove(number)
            raise KeyboardInterrupt
        return MetricRecord({"accuracy": number / 10, "f1": float(len(stops))})

    def run(rounds: int) -> None:
        kept = {"metrics_path": tmp_path, "state_path": tmp_path / "state"}
        start(FedNNNN(beta=0.7, gamma=0.6, **kept), TWO, ZERO, rounds, evaluate_fn=tested)

    with pytest.raises(KeyboardInterrupt):
        run(2)
    before = read_records(tmp_path)
    run(rounds)
    one, two, *_ = after = read_records(tmp_path)
    assert [each["test_acc"] for each in after] == [0.1, 0.2, 0.3][:rounds]
    assert (one, two["seconds"]["train"]) == (before[0], before[1]["seconds"]["train"])
    changed = {"tested": True, "test_acc": 0.2, "test_metrics": {"f1": 0.0}}
    assert two == before[1] | changed | {"seconds": two["seconds"]}
    stops.append(0)
    run(3)
    assert read_records(tmp_path)[: len(after)] == after


def test_other_settings_are_told_and_recorded_with_their_first_round(tmp_path, caplog) -> None:
    """Of a start that runs no round the records stay as they are."""
    kept = {"metrics_path": tmp_path, "state_path": tmp_path / "state"}
    for beta, rounds, recorded in ((0.7, 2, 0.7), (0.1, 2, 0.7), (0.1, 3, 0.1)):
        start(FedNNNN(beta=beta, gamma=0.6, **kept), TWO, ZERO, rounds)
        assert fp.read_runs(tmp_path)["beta"].unique().tolist() == [recorded]
        assert ("state: beta: 0.1, but 0.7 up to round 2; " in caplog.text) == (beta == 0.1)


def test_training_time_has_no_test_in_it(tmp_path: Path, monkeypatch) -> None:
    """Neither that of ``w_0``, nor one that finds nothing; by a clock that only tests move."""
    now = [0.0]
    monkeypatch.setattr("fednnnn_plugin.run_folder.server_records.time.monotonic", lambda: now[0])

    def tested(number: int, _: ArrayRecord) -> MetricRecord | None:
        now[0] += 1.0
        return None if number == 1 else MetricRecord({"accuracy": 0.5})

    options = {"beta": 0.7, "gamma": 0.6, "metrics_path": tmp_path}
    start(FedNNNN(**options), TWO, ZERO, 3, evaluate_fn=tested)
    seconds = [record["seconds"] for record in read_records(tmp_path)]
    assert [(each["train"], each["evaluate"]) for each in seconds] == [(0.0, 1.0)] * 3


def test_draws_of_a_rule_are_others_in_each_federation(rules_taken_back) -> None:
    runpy.run_path(LION)
    one, other = (
        tensors(start(strategy("ServerLion", server_lion_lr=0.1), TWO, ZERO)[0]) for _ in range(2)
    )
    assert not one["w"].equal(other["w"])


def test_methods_of_a_subclass_count_on(tmp_path) -> None:
    """One that stores the model of each round must not write over those of the rounds before."""
    seen: list[tuple[str, int]] = []

    class Seeing(FedNNNN):
        def configure_train(self, server_round: int, *given: Any) -> Any:
            seen.append(("train", server_round))
            return super().configure_train(server_round, *given)

        def aggregate_train(self, server_round: int, *given: Any) -> Any:
            seen.append(("aggregate", server_round))
            return super().aggregate_train(server_round, *given)

        def aggregate_evaluate(self, server_round: int, *given: Any) -> Any:
            seen.append(("evaluate", server_round))
            return super().aggregate_evaluate(server_round, *given)

    for rounds in (1, 3):
        grid = ClientsHere(TWO)
        by = Seeing(beta=0.7, gamma=0.6, state_path=tmp_path / "state")
        by.start(grid, ArrayRecord(ZERO), rounds)
    assert seen == [(of, n) for n in (1, 2, 3) for of in ("train", "aggregate", "evaluate")]
    assert [number for _, number, _ in grid.sent] == [2] * 4 + [3] * 4  # trained and tested by two


def test_continued_with_names_that_begin_with_a_dot(tmp_path) -> None:
    """As JAX's ``keystr`` names the arrays of an Equinox module; two are as the state's own."""
    names = (".layers[0].weight", ".momentum", "..number.w")
    model = {name: torch.zeros(2) for name in names}
    clients: dict[int, Train] = {1: step(1.0), 2: step(4.0)}
    whole, _ = start(FedNNNN(beta=0.7, gamma=0.6), clients, model, 2)
    for rounds in (1, 2):
        by = FedNNNN(beta=0.7, gamma=0.6, state_path=tmp_path / "state")
        parts, _ = start(by, clients, model, rounds)
    assert_close(tensors(parts), tensors(whole), **EXACT)


@pytest.mark.parametrize(
    ("model", "trainable"),
    [
        (ZERO, []),
        ({"w": torch.zeros(2, dtype=torch.int64)}, None),
        (nn.Linear(1, 1).state_dict(), nn.Linear(1, 1).requires_grad_(False)),
    ],
)
def test_model_of_which_nothing_is_trained_is_refused(model: State, trainable: Any) -> None:
    """It would be averaged, as by FedAvg, and N and E be 0."""
    with pytest.raises(fp.UserError, match=r"^trainable: nothing: must be at least one"):
        start(FedNNNN(beta=0.7, gamma=0.6, trainable=trainable), TWO, model)


def test_model_that_is_not_finite_where_it_is_trained_is_refused() -> None:
    """No round would have a valid reply, and each client be blamed for it."""
    masked: State = {"w": torch.zeros(2), "mask": torch.tensor([0.0, -torch.inf])}
    with pytest.raises(fp.UserError, match=r"^initial model: mask: not finite: must be finite"):
        start(FedNNNN(beta=0.7, gamma=0.6), TWO, masked)
    unknown = masked | {"mask": torch.tensor([0.0, torch.nan])}
    with pytest.raises(fp.UserError, match=r"^initial model: mask: has NaN: must have none"):
        start(FedNNNN(beta=0.7, gamma=0.6, trainable=["w"]), TWO, unknown)
    result, _ = start(FedNNNN(beta=0.7, gamma=0.6, trainable=["w"]), TWO, masked)
    assert result.train_metrics_clientapp[1]["clients"] == 2
    assert_close(tensors(result)["mask"], masked["mask"], **EXACT)


def test_metrics_path_of_no_name_is_refused() -> None:
    """Its records would be in the root of all folders."""
    with pytest.raises(fp.UserError, match=r"^metrics_path: '': must name a folder"):
        records_file("", 0, "state_path", only_check=True)


@pytest.mark.parametrize(
    ("model", "change", "named"),
    [
        (ZERO, {"name": "Momentum", "beta": None}, "state_path: .*FedNNNN"),
        ({"w": torch.zeros(3)}, {}, "state_path: .*another model"),
        ({"w": torch.zeros(2), "b": torch.zeros(1)}, {}, "state_path: .*another model"),
        (ZERO, {"state_path": None}, "metrics_path: "),
    ],
)
def test_files_of_another_federation_are_refused(
    model, change, named, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"name": "FedNNNN", "beta": 0.7, "gamma": 0.6}
    options |= {"metrics_path": "records", "state_path": "state"}
    start(strategy(**options), TWO, ZERO)
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    changed = {key: value for key, value in (options | change).items() if value is not None}
    with pytest.raises(fp.UserError, match=named):
        start(strategy(**changed), TWO, model, 2)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"gamma": 0.6}, "beta: missing"),
        ({"beta": 0.7, "gamma": 0.6, "fraction_trian": 0.5}, "did you mean 'fraction_train'"),
        ({"beta": 0.7, "gamma": 0.6, "client_weighting": "sample"}, "did you mean 'samples'"),
        ({"beta": 0.7, "gamma": 0.6, "max_client_norm": -1}, "max_client_norm: -1"),
        ({"beta": 0.7, "gamma": 0.6, "trainable": "w"}, "trainable: 'w': must be a model"),
        ({"beta": 0.7, "gamma": 0.6, "trainable": 7}, "trainable: 7: must be a model"),
        (
            {"beta": 0.7, "gamma": 0.6, "trainable": nn.Linear(1, 1).parameters()},
            "trainable: a generator: must be a model, or a list of names",
        ),
        ({"beta": 0.7, "gamma": 0.6, "state_path": "/proc/x/state"}, "state_path: /proc/x/state"),
    ],
)
def test_settings_are_checked(options, named) -> None:
    with pytest.raises(fp.UserError, match=named):
        FedNNNN(**options)


def test_strategies_are_the_registry(rules_taken_back) -> None:
    for name, method in (("PaperFedProx", "fedprox"), ("FedNNN", "FedNNNN")):
        with pytest.raises(fp.UserError, match=method):
            strategy(name)
    assert not hasattr(flower, "Halved")

    @fp.rule(halved_lr=positive(argument="lr"))
    class Halved(torch.optim.SGD):
        pass

    assert "Halved" in dir(flower)
    _, (_, served) = start(flower.Halved(halved_lr=0.5), TWO, ZERO, 2)
    assert_close(served["w"], torch.tensor([0.75, 1.0]))
    assert flower.FedNNNN is FedNNNN


def test_flowers_arguments_reach_it() -> None:
    options = {"fraction_train": 0.5, "min_train_nodes": 1, "fraction_evaluate": 1.0}

    def counted(replies: list[RecordDict], _: str) -> MetricRecord:
        return MetricRecord({"replies": len(replies)})

    by = FedNNNN(beta=0.7, gamma=0.6, train_metrics_aggr_fn=counted, **options)
    grid = ClientsHere({**TWO, 3: TWO[1], 4: TWO[2]})
    result = by.start(grid, ArrayRecord(ZERO), 1)
    assert [kind for kind, *_ in grid.sent] == ["train"] * 2 + ["evaluate"] * 4
    assert_close(grid.sent[-1][2], tensors(result), **EXACT)  # clients test the evaluation model
    assert result.train_metrics_clientapp[1]["replies"] == 2
    assert result.evaluate_metrics_clientapp[1]["tested-in"] == 1


def test_arrays_that_a_wrapper_changed_are_refused() -> None:
    fednnnn, grid = FedNNNN(beta=0.7, gamma=0.6), ClientsHere(TWO)
    arrays = ArrayRecord(ZERO)
    for number in (1, 2):
        asked = fednnnn.configure_train(number, arrays, ConfigRecord(), grid)
        arrays, _ = fednnnn.aggregate_train(number, grid.send_and_receive(asked))
    noised = ArrayRecord({"w": torch.ones(2)})
    with pytest.raises(fp.UserError, match="round 3: the arrays"):
        fednnnn.configure_train(3, noised, ConfigRecord(), grid)


def test_loop_of_a_wrapping_strategy_keeps_no_state(tmp_path: Path, caplog) -> None:
    """Which it would write, and not continue; its records are without tests."""

    def tested(number: int, _: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": number / 10, "loss": 1.0})

    def wrapped(**files: Path) -> Result:
        made = FedNNNN(beta=0.7, gamma=0.6, fraction_evaluate=0.0, **files)
        by = DifferentialPrivacyClientSideFixedClipping(made, 0.0, 100.0, 2)
        return by.start(ClientsHere(TWO), ArrayRecord(ZERO), 3, evaluate_fn=tested)

    alone, _ = start(FedNNNN(beta=0.7, gamma=0.6), TWO, ZERO, 3)
    assert_close(tensors(wrapped(metrics_path=tmp_path)), tensors(alone), **EXACT)
    assert caplog.text.count("metrics_path: has N and E, but no test by evaluate_fn") == 1
    assert [(each["clients"], each["tested"]) for each in read_records(tmp_path)] == [
        (2, False)
    ] * 3
    with pytest.raises(fp.UserError, match=r"^state_path: .*: an own start\(\) must call super"):
        wrapped(state_path=tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_replies_to_another_model_than_the_served_one_are_refused() -> None:
    """As of a subclass that makes its own messages of the arrays, which are not what is served."""

    class Own(FedNNNN):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
        ) -> list[Message]:
            if server_round < 3:  # the first ones by Flower's way, with some nodes left out
                return list(super().configure_train(server_round, arrays, config, grid))[:1]
            content = RecordDict({"arrays": arrays, "config": config})
            return [Message(content, message_type="train", dst_node_id=1)]

    start(Own(beta=0.7, gamma=0.6), TWO, ZERO, 2)
    with pytest.raises(fp.UserError, match="round 3: replies to messages of another configure_tra"):
        start(Own(beta=0.7, gamma=0.6), TWO, ZERO, 3)


def test_messages_and_replies_may_come_one_by_one() -> None:
    class Lazy(FedNNNN):
        def configure_train(self, *given: Any) -> Any:
            yield from super().configure_train(*given)

    class OneByOne(ClientsHere):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            yield from map(self._reply, messages)

    found = [
        tensors(by(beta=0.7, gamma=0.6).start(grid(TWO), ArrayRecord(ZERO), 2))
        for by, grid in ((Lazy, OneByOne), (FedNNNN, ClientsHere))
    ]
    assert_close(*found, **EXACT)


def test_each_clients_result_is_on_record(tmp_path: Path) -> None:
    """Also after a restart: a line each, and none twice."""
    for rounds in (2, 3):
        made = FedNNNN(beta=0.7, gamma=0.6, metrics_path=tmp_path, state_path=tmp_path / "state")
        grid = ClientsHere(TWO, lambda _, node: 10.0 * node)
        grid.found = {1: {"accuracy": 0.5, "loss": 2.0}, 2: {"accuracy": 0.75, "loss": 1.0}}
        made.start(grid, ArrayRecord(ZERO), rounds)
    header, *rows = (tmp_path / "clients.csv").read_text().splitlines()
    assert header == "round,client,samples,accuracy,loss"
    ends = ("node 1,10,0.5,2.0", "node 2,20,0.75,1.0")
    assert rows == [f"{number},{end}" for number in (1, 2, 3) for end in ends]
    last = read_records(tmp_path)[-1]
    assert last["client_acc"] == {"mean": 0.625, "std": 0.125, "worst_10": 0.5, "worst": 0.5}
    assert last["client_loss"]["worst"] == 2.0


def test_weights_are_of_the_key_that_is_named() -> None:
    clients = {1: measuring(TWO[1], size=3.0), 2: measuring(TWO[2], size=1.0)}
    by = FedNNNN(beta=0.7, gamma=0.6, client_weighting="samples", weighted_by_key="size")
    assert start(by, clients, ZERO)[0].train_metrics_clientapp[1]["E"] == (3 * 3.0 + 4.0) / 4


def test_record_has_what_the_server_tests(tmp_path: Path, caplog) -> None:
    """Not the clients' mean, also in a round that the server leaves out; 85 is no share."""
    made = FedNNNN(beta=0.7, gamma=0.6, metrics_path=tmp_path)
    grid = ClientsHere(TWO)
    grid.found = {node: {"accuracy": 0.5, "loss": 2.0} for node in TWO}

    def tested(number: int, _: ArrayRecord) -> MetricRecord | None:
        accuracy = {0: 0.25, 1: 0.25, 2: 85.0}
        return MetricRecord({"accuracy": accuracy[number], "loss": 3.0}) if number < 3 else None

    made.start(grid, ArrayRecord(ZERO), 3, evaluate_fn=tested)
    first, second, third = read_records(tmp_path)
    assert (first["test_acc"], first["test_loss"], first["client_acc"]["mean"]) == (0.25, 3.0, 0.5)
    assert (second["test_acc"], second["test_metrics"]) == (None, {"accuracy": 85.0})
    assert (third["tested"], third["test_acc"], third["test_metrics"]) == (False, None, None)
    assert third["client_acc"]["mean"] == 0.5
    assert caplog.text.count("accuracy 85.0: not in [0, 1]") == 1
    assert [one["client"] for one in first["by_client"]] == ["node 1", "node 2"]
    assert len(fp.read_runs(tmp_path)) == 3
