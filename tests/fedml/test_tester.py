"""An aggregator of a user's own beside our aggregation: it tests, as healthcare's examples do."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fedml.core.alg_frame.server_aggregator import ServerAggregator
from fedml.ml.aggregator.default_aggregator import DefaultServerAggregator
from fedml.ml.trainer.my_model_trainer_classification import ModelTrainerCLS
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.testing import assert_close

import fednnnn_plugin as fp
from fednnnn_plugin.fedml.tester import FedMLsTester
from fednnnn_plugin.fedml.tester_results import ResultReader

from .rounds import (
    CPU,
    clients,
    fedml_args,
    line,
    linear,
    moved,
    net,
    play,
    refused,
    silo,
    silo_args,
    simulate,
    two_clients,
)


class Metrics(DefaultServerAggregator):
    """Tests on the clients' data, with metrics of its own; the server has no test data."""

    def __init__(self, model, args) -> None:
        super().__init__(model, args)
        self.net = model  # which is the served one
        self.tested: list[torch.Tensor] = []
        self.all_tested: list[tuple] = []

    def test(self, test_data, device, args):
        assert test_data is None
        assert torch.backends.cudnn.deterministic  # as where it is trained
        self.net.load_state_dict(self.model.state_dict())  # as a tester with a trainer inside does
        self.tested.append(self.net.weight.detach().clone())
        torch.nn.init.normal_(self.net.weight)
        return 0.25, 3.0, None, None

    def test_all(self, train_data_local_dict, test_data_local_dict, device, args):
        self.all_tested.append((self.id, getattr(args, "round_idx", None)))
        return {"auc": float(len(test_data_local_dict)), "drawn": torch.rand(()).item()}


ABOVE_1 = {"test_correct": 9.0, "test_loss": 1.0, "test_total": 4.0}


@pytest.mark.parametrize(
    ("found", "expected", "said"),
    [
        ((0.5, 1.25, None, None), (0.5, 1.25, None), ""),
        (torch.tensor(0.5), (0.5, None, None), ""),
        ((93.5, math.nan), (None, None, None), "accuracy 93.5,"),
        ({"test_accuracy": 93.5}, (None, None, {"test_accuracy": 93.5}), "test_accuracy 93.5,"),
        (True, (None, None, None), "no accuracy, loss or other number"),
        ({"auc": 0.75, "name": "x", "nan": math.nan}, (None, None, {"auc": 0.75}), ""),
        ({"a": torch.tensor(0.25), "b": np.float32(2)}, (None, None, {"a": 0.25, "b": 2.0}), ""),
        ({"test_correct": 3, "test_loss": 2.0, "test_total": 4}, (0.75, 0.5, None), ""),
        (ABOVE_1, (None, None, ABOVE_1), "test_correct / test_total 2.25,"),
    ],
)
def test_tester_s_result_is_read(found, expected, said, caplog) -> None:
    """What is no accuracy is said, with its value; of all rounds once."""
    results = ResultReader("mine")
    for _ in "twice":
        evaluation = results.evaluation(found)
        assert (evaluation.accuracy, evaluation.loss, evaluation.metrics) == expected
    assert len(caplog.messages) == bool(said)
    assert not said or said in caplog.text


def test_tester_sees_the_evaluation_model(tmp_path) -> None:
    """Of the first round's results nothing is left over in the second, whose test fails."""
    net, args = line(), silo_args(metrics_path=str(tmp_path / "run"))
    theirs = Metrics(net, args)
    server = fp.FedNNNNAggregator(net, args, tester=theirs)
    server.set_id(7)
    served, _ = play(server, moved(server, (3.0, 0.0), (0.0, 4.0)))
    assert server.test_all({}, {0: "data"}, "cpu", args)["auc"] == 1.0
    assert server.test(None, "cpu", args) == (0.25, 3.0, None, None)
    assert_close(theirs.tested, [torch.tensor([[1.5, 2.0]])])
    assert theirs.all_tested == [(7, 0)]
    assert_close(net.weight.data, served["weight"])  # what is served is left alone
    served, _ = play(server, moved(server, (3.0, 0.0), (0.0, 4.0)))
    with pytest.raises(AssertionError):  # the tester's own
        server.test([], "cpu", args)
    assert_close(net.weight.data, served["weight"])
    theirs.test = lambda *_: None
    server.test(None, "cpu", args)
    runs = fp.read_runs(tmp_path / "run")
    for column, value in (("test_acc", 0.25), ("test_loss", 3.0), ("test_metrics.auc", 1.0)):
        assert runs[column][0] == value
        assert math.isnan(runs[column][1])


def test_tester_that_computes_in_half_precision_leaves_the_model_as_it_was() -> None:
    model, args = net(), silo_args()
    theirs = DefaultServerAggregator(model, args)
    theirs.test = lambda *_: theirs.model.half()[1].weight.dtype
    server = fp.FedNNNNAggregator(model, args, tester=theirs)
    for _ in "twice":
        served, _ = play(server, clients(server, 2))
        assert server.test(None, "cpu", args) == torch.float16
        assert_close(dict(model.state_dict()), dict(served), rtol=0, atol=0)  # dtypes, too


class Averaging(Metrics):
    def aggregate(self, raw_client_model_or_grad_list):
        return raw_client_model_or_grad_list[0][1]


class Both(Metrics, fp.FedNNNNAggregator): ...


class Uncalled(fp.FedNNNNAggregator):
    """Leaves out our constructor."""

    def __init__(self, model, args) -> None:
        ServerAggregator.__init__(self, model, args)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (Both, "replaces .*tester="),
        (lambda net, args: Uncalled(net, args).set_id(0), "its __init__"),
        (lambda net, args: simulate(aggregator=Averaging(net, args)), "replaces aggregate"),
        *(
            (
                lambda net, args, values=values: simulate(
                    aggregator=fp.FedNNNNAggregator(net, SimpleNamespace(**vars(args) | values))
                ),
                "a simulation of PaperFedAvg aggregates by that method",
            )
            for values in ({}, {"training_type": "simulation", "worker_num": 1})
        ),
        (
            lambda net, args: simulate(
                aggregator=fp.FedNNNNAggregator(net, args), federated_optimizer="FedAvg"
            ),
            "a simulation of FedAvg aggregates by that method",
        ),
    ],
)
def test_aggregator_without_effect_is_refused(build, why, own_folder) -> None:
    with refused(rf"server_aggregator: \w+: {why}"):
        build(line(), silo_args())


class AddsOne(ModelTrainerCLS):
    def train(self, train_data, device, args):
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1)


@pytest.mark.slow
@pytest.mark.every_python
@pytest.mark.usefixtures("own_folder", "one_core")
@pytest.mark.parametrize("trainer", [None, AddsOne])
def test_simulations_tester_sees_the_average(trainer) -> None:
    """A trainer's is one further each round; the served model, under β = 1/2, half that.

    What it does to the model and to generators changes nothing; another does not continue the run.
    """
    values = {"federated_optimizer": "NormNorm", "beta": 0.5, "comm_round": 2}
    args, net, without = fedml_args(output="a", **values), linear(), two_clients()
    without[3] = None
    tester, before = Metrics(net, args), linear().weight
    given = trainer and trainer(linear(), args)
    state = torch.random.get_rng_state()
    result, last = simulate(without, net, given, tester, args)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert tester.all_tested == [(-1, 0), (-1, 1)]
    assert_close(tester.tested[-1], result["weight"], rtol=0, atol=0)
    assert_close(net.weight.detach(), result["weight"], rtol=0, atol=0)
    if trainer:
        assert_close(tester.tested, [before + 1, before + 0.5 + 1])
    assert (last["test_acc"], last["test_loss"], last["test_metrics"]["auc"]) == (0.25, 3.0, 2.0)
    alone, _ = simulate(trainer=given, output="alone", **values)
    assert_close(alone, result, rtol=0, atol=0)
    with pytest.raises(fp.UserError, match=r"tester \(code\)"):
        simulate(trainer=given, output="a", resume=True, **values | {"comm_round": 3})


@pytest.mark.usefixtures("own_folder", "one_core")
@pytest.mark.parametrize("kind", [AddsOne, Metrics])
def test_metrics_beside_a_test_of_ones_own_are_refused(kind) -> None:
    own = kind(linear(), args := fedml_args(output="a", metrics=["f1_macro"]))
    with refused("validation_args.metrics: a custom trainer or aggregator tests by its own"):
        simulate(None, linear(), *((own, None) if kind is AddsOne else (None, own)), args)


def test_server_tests_by_the_loss_that_clients_train_by(caplog) -> None:
    """Of the outputs 0 and targets 3."""
    model = nn.Linear(2, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    data = [(torch.ones(4, 2), torch.full((4, 1), 3.0))]
    server = silo(model, loss="mse")
    _, loss, *_ = server.test(data, CPU, server.args)
    assert loss == 9.0
    classes = silo(linear(), loss="mse")  # as a trainer of FedML's takes them, whatever loss says
    accuracy, loss, *_ = classes.test([(torch.ones(4, 3), torch.ones(4).long())], CPU, server.args)
    assert (accuracy in (0.0, 1.0), loss > 0.0) == (True, True)
    assert "loss: mse: does not fit the outputs and the test's labels" in caplog.text


def test_inputs_that_are_no_tensors_are_tested() -> None:
    """As packed sequences are: FedML's own test needs ``to`` alone."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.GRU(1, 2)

        def forward(self, packed):
            return self.cells(packed)[1][0]

    packed = pack_sequence([torch.ones(2, 1), torch.ones(1, 1)])
    tester = FedMLsTester(Last(), args := silo_args())
    model = Last()
    found = tester.test(model.state_dict(), [(packed, torch.tensor([0, 1]))], "cpu", args)
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(model(packed), torch.tensor([0, 1]))
    assert found[1] == pytest.approx(float(expected))
