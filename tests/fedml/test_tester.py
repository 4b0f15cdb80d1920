"""An aggregator of a user's own beside our aggregation: it tests, as healthcare's examples do."""

import logging
from collections import OrderedDict

import fedml
import pytest
import torch
from fedml.core.alg_frame.server_aggregator import ServerAggregator
from fedml.ml.aggregator.default_aggregator import DefaultServerAggregator
from torch import nn
from torch.testing import assert_close

import fednnnn_plugin as fp

CPU = torch.device("cpu")


class Metrics(ServerAggregator):
    """Tests on the clients' data, with a metric of its own; the server has no test data."""

    def __init__(self, model, args) -> None:
        super().__init__(model, args)
        self.net = model  # which is the served one

    def get_model_params(self):
        return self.model.cpu().state_dict()

    def set_model_params(self, model_parameters) -> None:
        self.model.load_state_dict(model_parameters)

    def test(self, test_data, device, args):
        self.net.load_state_dict(self.model.state_dict())  # as a tester with a trainer inside does
        self.tested = self.net.weight.detach().clone()
        return {"auc": 0.75}

    def test_all(self, train_data_local_dict, test_data_local_dict, device, args) -> bool:
        self.all_tested = self.model.weight.detach().clone(), test_data_local_dict
        return True


class Both(Metrics, fp.FedNNNNAggregator):
    """What comes to mind first, and wrote no state."""


class Averaging(Metrics):
    def aggregate(self, raw_client_model_or_grad_list):
        return raw_client_model_or_grad_list[0][1]


def model() -> nn.Module:
    return nn.Linear(2, 1, bias=False)


@pytest.fixture
def arguments(fedml_args):
    def build(**values):
        keys = {"training_type": "cross_silo", "comm_round": 9, "beta": 0.5, "gamma": 0.5}
        keys |= {"role": "server", "federated_optimizer": "FedAvg"}
        return fedml_args(**keys | values)

    return build


def test_tester_sees_the_evaluation_model(arguments, play, tmp_path) -> None:
    net = model()
    args = arguments(metrics_path=str(tmp_path / "run"))
    theirs = Metrics(net, args)
    server = fp.FedNNNNAggregator(net, args, tester=theirs)
    before = net.weight.detach().clone()
    updates = (torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]]))
    served, _ = play(server, [(1, OrderedDict(weight=before + update)) for update in updates])
    assert server.test_all({}, {0: "data"}, CPU, args)
    assert server.test(None, CPU, args) == {"auc": 0.75}
    average = before + torch.tensor([[1.5, 2.0]])
    assert_close(theirs.tested, average)
    assert_close(theirs.all_tested[0], average)
    assert theirs.all_tested[1] == {0: "data"}
    assert_close(net.weight.data, served["weight"])  # what is served is left alone
    assert not torch.allclose(served["weight"], average)
    assert fp.read_runs(tmp_path / "run")["test_metrics.auc"].tolist() == [0.75]


def test_tester_s_own_error_is_its_own(arguments, play) -> None:
    class Dividing(Metrics):
        def test(self, test_data, device, args):
            return 1 / 0

    net, args = model(), arguments()
    server = fp.FedNNNNAggregator(net, args, tester=Dividing(net, args))
    served, _ = play(server, [(1, OrderedDict(weight=torch.ones(1, 2)))])
    with pytest.raises(ZeroDivisionError):
        server.test(None, CPU, args)
    assert_close(net.weight.data, served["weight"])


def replaced(given: ServerAggregator) -> ServerAggregator:
    given.aggregate = lambda models: models[0][1]
    return given


class Uncalled(fp.FedNNNNAggregator):
    """Leaves out our constructor."""

    def __init__(self, model, args) -> None:
        ServerAggregator.__init__(self, model, args)


def as_fedml_starts(given: ServerAggregator) -> None:
    given.set_id(0)


@pytest.mark.parametrize(
    "build",
    [
        Both,
        lambda net, args: fp.FedNNNNAggregator(net, args, tester=Averaging(net, args)),
        lambda net, args: fp.FedNNNNAggregator(net, args, tester=replaced(Metrics(net, args))),
        lambda net, args: as_fedml_starts(replaced(fp.FedNNNNAggregator(net, args))),
    ],
)
def test_replaced_aggregation_is_refused_at_the_start(arguments, build) -> None:
    with pytest.raises(fp.UserError, match=r"^server_aggregator: \w+: replaces .*tester=") as error:
        build(model(), arguments())
    assert "\n" not in str(error.value)


def test_subclass_without_our_constructor_is_refused(arguments) -> None:
    with pytest.raises(fp.UserError, match="Uncalled: its __init__"):
        as_fedml_starts(Uncalled(model(), arguments()))


def test_what_test_all_alone_returns_is_recorded(arguments, play, tmp_path) -> None:
    """As FedML's examples count, client by client; of the next round nothing is left over."""

    class OfAll(Metrics):
        found = ({"test_correct": 3, "test_loss": 2.0, "test_total": 4}, None)

        def test(self, test_data, device, args) -> None: ...

        def test_all(self, train_data_local_dict, test_data_local_dict, device, args):
            assert self.id == 7
            return self.found[self.tests()]

        def tests(self) -> int:
            self.count = getattr(self, "count", -1) + 1
            return self.count

    net, args = model(), arguments(metrics_path=str(tmp_path / "run"))
    server = fp.FedNNNNAggregator(net, args, tester=OfAll(net, args))
    server.set_id(7)
    for _ in range(2):
        play(server, [(1, OrderedDict(weight=torch.ones(1, 2)))])
        server.test_all({}, {}, CPU, args)
        server.test(None, CPU, args)
    runs = fp.read_runs(tmp_path / "run")
    assert (runs["test_acc"][0], runs["test_loss"][0]) == (0.75, 0.5)
    assert runs["test_acc"].isna().tolist() == [False, True]


def test_runner_takes_an_aggregator_as_the_tester(arguments, monkeypatch) -> None:
    given = []
    monkeypatch.setattr("fedml.cross_silo.Server", lambda *words: given.append(words[-1]))
    args, net = arguments(federated_optimizer="FedNNNN"), model()
    for theirs in (Metrics(net, args), DefaultServerAggregator(net, args)):
        fedml.FedMLRunner(args, CPU, [None] * 8, net, server_aggregator=theirs)
        assert type(given[-1]) is fp.FedNNNNAggregator
    with pytest.raises(fp.UserError, match="Averaging: replaces aggregate"):
        fedml.FedMLRunner(args, CPU, [None] * 8, net, server_aggregator=Averaging(net, args))


def test_keys_without_effect_are_named(arguments, monkeypatch, caplog) -> None:
    monkeypatch.setattr("fedml.cross_silo.Server", lambda *words: None)
    monkeypatch.setattr("fedml.cross_silo.Client", lambda *words: None)
    caplog.set_level(logging.WARNING, "fednnnn_plugin")
    args, net = arguments(federated_optimizer="FedAvg"), model()
    ours = fp.FedNNNNAggregator(net, args)
    fedml.FedMLRunner(args, CPU, [None] * 8, net, server_aggregator=ours)
    args.role = "client"
    fedml.FedMLRunner(args, CPU, [None] * 8, net)
    assert not caplog.messages
    args.role = "server"
    fedml.FedMLRunner(args, CPU, [None] * 8, net)
    [line] = caplog.messages
    assert "beta, gamma" in line
    assert "FedAvg" in line


@pytest.mark.parametrize("name", ["FedNNN", "fednnnn", "normnorm", "FedNNN N"])
@pytest.mark.parametrize("kind", ["cross_silo", "simulation"])
def test_near_miss_of_a_method_is_one_line(arguments, name, kind) -> None:
    args = arguments(federated_optimizer=name, training_type=kind)
    with pytest.raises(fp.UserError, match=r"^federated_optimizer: .* did you mean (\w+)\?$"):
        fedml.FedMLRunner(args, CPU, [None] * 8, model())


def test_near_misses_of_keys_are_named(arguments, caplog) -> None:
    caplog.set_level(logging.WARNING, "fednnnn_plugin")
    args = arguments(client_weightin="samples", max_client_nrm=1.0, fedprox_mu=0.1, epoch=1)
    fp.FedNNNNAggregator(model(), args)
    assert [line.partition(":")[0] for line in caplog.messages] == [
        "client_weightin",
        "max_client_nrm",
    ]
