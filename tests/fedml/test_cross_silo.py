"""Cross-silo federations of FedML's own server and client classes, without a transport."""

import copy
import math
import os
import pickle
import random
import sys
from collections import OrderedDict
from types import SimpleNamespace

import fedml
import pytest
import torch
from fedml.core import ClientTrainer, ServerAggregator
from fedml.cross_silo.client.fedml_trainer_dist_adapter import TrainerDistAdapter
from fedml.cross_silo.server.fedml_aggregator import FedMLAggregator
from fedml.ml.trainer.my_model_trainer_classification import ModelTrainerCLS
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fednnnn_plugin as fp
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import LoaderData
from fednnnn_plugin.engine.run import run_federation
from fednnnn_plugin.fedml.loaders import fedml_dataset
from fednnnn_plugin.models import create_model
from fednnnn_plugin.recipe import recipe_from_args

fp.register()

# As fedml.init does: otherwise FedML's reports look for its platform on the network.
fedml.mlops.pre_setup(SimpleNamespace(using_mlops=False))

CPU = torch.device("cpu")
CLIENTS, ROUNDS, CLASSES = 3, 3, 10


def arguments(**values) -> SimpleNamespace:
    settings = {
        "training_type": "cross_silo",
        "scenario": "horizontal",
        "random_seed": 3,
        "dataset": "mine",
        "federated_optimizer": "FedAvg",
        "beta": 0.7,
        "gamma": 0.5,
        "client_num_in_total": CLIENTS,
        "client_num_per_round": CLIENTS,
        "comm_round": ROUNDS,
        "epochs": 2,
        "batch_size": 5,
        "client_optimizer": "sgd",
        "learning_rate": 0.1,
        "client_threads": 1,
        "weight_decay": 0.0,
        "frequency_of_the_test": 1,
        "enable_wandb": False,
        "using_gpu": False,
    }
    return SimpleNamespace(**settings | values)


def images(sizes=(12, 7, 10), tests: int = 20) -> FederatedData:
    generator = torch.Generator().manual_seed(0)
    total = sum(sizes)
    return FederatedData(
        torch.randn(total, 1, 8, 8, generator=generator),
        torch.arange(total) % CLASSES,
        torch.randperm(total, generator=generator).split(sizes),
        torch.randn(tests, 1, 8, 8, generator=generator),
        torch.arange(tests) % CLASSES,
        CLASSES,
    )


def federate(args, dataset, model, make_trainer, rounds=ROUNDS):
    """Run a federation as FedML's managers do; messages are pickled, as gRPC's are."""
    aggregator = fp.FedNNNNAggregator(model, args)
    total, _, train, test, sizes, local, local_test, _ = dataset
    server = FedMLAggregator(
        train, test, total, local, local_test, sizes, CLIENTS, CPU, args, aggregator
    )
    clients = []
    for rank in range(1, CLIENTS + 1):
        own = copy.deepcopy(model)
        trainer = make_trainer(own, args)
        clients.append(
            TrainerDistAdapter(
                copy.copy(args), CPU, rank, own, total, sizes, local, local_test, trainer
            )
        )
    for number in range(rounds):
        args.round_idx = number
        message = pickle.dumps(server.get_global_model_params())
        for index, client in enumerate(clients):
            client.update_dataset(index)
            client.update_model(pickle.loads(message))
            weights, samples = client.train(number)
            server.add_local_trained_result(index, pickle.loads(pickle.dumps(weights)), samples)
        assert server.check_whether_all_receive()
        served, _, _ = server.aggregate()
        assert type(served) is OrderedDict
        server.test_on_server_for_all_clients(number)
    return aggregator


def engine(args, data, model, folder):
    """The served and evaluation models of the standalone engine."""
    simulated = SimpleNamespace(**vars(args) | {"training_type": "simulation"})
    recipe = recipe_from_args(simulated, method="FedNNNN")
    run_federation(recipe, model=model, data=data, device=CPU, folder=folder)
    served = load_file(max((folder / "checkpoint").iterdir()))
    served = {name: tensor for name, tensor in served.items() if "momentum" not in name}
    return served, load_file(folder / "model.safetensors")


def assert_equal(one, other) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


class Dropping(nn.Module):
    """Batch normalisation, and a dropout that draws from the global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 10)
        )

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("net", ["ours", "another"])
def test_our_trainer_on_our_data_gives_the_engines_bits(net, tmp_path) -> None:
    data = images()
    model = create_model("nnnn_digits", 0) if net == "ours" else Dropping()
    args = arguments(weight_decay=0.01, client_weighting="samples")
    expected = engine(args, data, model, tmp_path / "run")
    server = federate(args, fedml_dataset(data, 5, 3), model, fp.FedNNNNClientTrainer)
    assert_equal(server.get_model_params(), expected[0])
    assert_equal(server.evaluation_state_dict(), expected[1])


def test_our_trainer_on_other_data_gives_the_engines_bits_and_leaves_the_generators(
    tmp_path,
) -> None:
    """The loaders shuffle by the global generator, which the engine seeds for each client."""
    data = images()
    local = {
        k: DataLoader(TensorDataset(*data.client_data(k)), batch_size=4, shuffle=True)
        for k in range(CLIENTS)
    }
    sizes = {k: data.client_size(k) for k in range(CLIENTS)}
    test = [(data.test_images, data.test_labels)]
    torch.manual_seed(0)
    model, args = Dropping(), arguments()
    expected = engine(args, LoaderData(local, sizes, test, CLASSES), model, tmp_path / "run")
    states = torch.get_rng_state(), random.getstate()
    threads = torch.get_num_threads()
    server = federate(
        args, [29, 20, None, test, sizes, local, None, CLASSES], model, fp.FedNNNNClientTrainer
    )
    assert_equal(server.get_model_params(), expected[0])
    assert_equal(server.evaluation_state_dict(), expected[1])
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert torch.get_num_threads() == threads


def linear_dataset() -> list:
    """Lists of batches, as many FedML data sets are."""
    generator = torch.Generator().manual_seed(1)
    local = {
        k: [
            (torch.randn(4, 5, generator=generator), torch.randint(2, (4,), generator=generator))
            for _ in range(2 + k)
        ]
        for k in range(CLIENTS)
    }
    sizes = {k: 4 * len(batches) for k, batches in local.items()}
    everything = [batch for batches in local.values() for batch in batches]
    return [sum(sizes.values()), 4, everything, everything, sizes, local, local, 2]


def by_hand(model, args, batches_of, weights) -> tuple[dict, dict]:
    """FedNNNN on plain SGD clients, written out; the server's part in float64."""
    served = {name: t.double() for name, t in model.state_dict().items()}
    momentum = {name: torch.zeros_like(t) for name, t in served.items()}
    shares = [weight / sum(weights) for weight in weights]
    for _ in range(ROUNDS):
        updates = []
        for batches in batches_of.values():
            own = copy.deepcopy(model)
            own.load_state_dict(served)
            optimizer = torch.optim.SGD(own.parameters(), lr=args.learning_rate)
            for _ in range(args.epochs):
                for x, y in batches:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(own(x), y).backward()
                    optimizer.step()
            start = {name: t.float() for name, t in served.items()}
            updates.append(
                {name: (t - start[name]).double() for name, t in own.state_dict().items()}
            )
        mean = {
            name: sum(share * update[name] for share, update in zip(shares, updates, strict=True))
            for name in served
        }
        norms = [sum(t.square().sum() for t in update.values()).sqrt() for update in updates]
        mean_client_norm = sum(a * norm for a, norm in zip(shares, norms, strict=True))
        mean_update_norm = sum(t.square().sum() for t in mean.values()).sqrt()
        scale = args.beta * mean_client_norm / mean_update_norm
        average = {name: served[name] + mean[name] for name in served}
        for name, update in mean.items():
            momentum[name] = args.gamma * momentum[name] + scale * update
            served[name] = served[name] + momentum[name]
    return served, average


def assert_close(one, other) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor.double(), other[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_fedmls_default_trainer_gives_what_a_loop_by_hand_gives(weighting) -> None:
    torch.manual_seed(0)
    model, dataset = nn.Linear(5, 2), linear_dataset()
    args = arguments(client_weighting=weighting)
    sizes = list(dataset[4].values())
    served, average = by_hand(
        model, args, dataset[5], sizes if weighting == "samples" else [1, 1, 1]
    )
    server = federate(args, dataset, model, lambda own, given: None)
    assert_close(server.get_model_params(), served)
    assert_close(server.evaluation_state_dict(), average)


class OwnTrainer(ClientTrainer):
    """A user's: one pass of SGD with momentum."""

    def get_model_params(self):
        return self.model.cpu().state_dict()

    def set_model_params(self, model_parameters):
        self.model.load_state_dict(model_parameters)

    def train(self, train_data, device, args):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)
        for x, y in train_data:
            optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            optimizer.step()


def test_a_trainer_of_the_users_own() -> None:
    torch.manual_seed(0)
    model, dataset = nn.Linear(5, 2), linear_dataset()
    w_0 = copy.deepcopy(model.state_dict())
    trained = []
    for batches in dataset[5].values():
        trainer = OwnTrainer(copy.deepcopy(model), arguments())
        trainer.train(batches, CPU, arguments())
        trained.append(trainer.get_model_params())
    server = federate(arguments(), dataset, model, OwnTrainer, rounds=1)
    for name, tensor in server.evaluation_state_dict().items():
        torch.testing.assert_close(tensor, sum(state[name] for state in trained) / CLIENTS)
    moved = {name: server.get_model_params()[name] - start for name, start in w_0.items()}
    norms = [sum((state[n] - w_0[n]).square().sum() for n in w_0).sqrt() for state in trained]
    move = sum(t.square().sum() for t in moved.values()).sqrt()
    torch.testing.assert_close(move, 0.7 * sum(norms) / CLIENTS)  # βE


def test_our_trainer_by_hand() -> None:
    """One full-batch step: w - η (∇ + λ w); the proximal term counts from the second step on."""
    data = [(torch.eye(2), torch.tensor([0, 1]))]
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    args = arguments(epochs=2, learning_rate=1.0, weight_decay=0.5, prox_mu=0.25, round_idx=0)
    trainer = fp.FedNNNNClientTrainer(model, args)
    trainer.train(data, CPU, args)
    # Softmax of zeros is 1/2: the gradient is (p - 1)/2 on the diagonal, p/2 beside it.
    first = torch.tensor([[0.25, -0.25], [-0.25, 0.25]])
    share = torch.softmax(first, dim=0)  # of each input's logits
    gradient = (share - torch.eye(2)) / 2
    expected = first - (gradient + 0.5 * first + 0.25 * first)
    torch.testing.assert_close(trainer.get_model_params()["weight"], expected)


def test_our_trainers_seeds_go_on_after_a_restart() -> None:
    data = images()
    loader = fedml_dataset(data, 5, 3)[5][1]
    model = create_model("nnnn_digits", 0)

    def trained(start: int, number: int) -> OrderedDict:
        args = arguments(start_round=start, round_idx=number)
        trainer = fp.FedNNNNClientTrainer(copy.deepcopy(model), args)
        trainer.train(loader, CPU, args)
        return trainer.get_model_params()

    assert_equal(trained(2, 0), trained(0, 2))
    assert_equal(trained(2, 1), trained(0, 3))
    assert not torch.equal(trained(1, 0)["fc2.weight"], trained(0, 0)["fc2.weight"])


def test_what_our_trainer_gives_is_a_copy_and_it_counts_as_fedmls_does() -> None:
    torch.manual_seed(0)
    model, args = nn.Linear(5, 2), arguments(round_idx=0)
    trainer = fp.FedNNNNClientTrainer(model, args)
    assert type(trainer.get_model_params()) is OrderedDict
    trainer.get_model_params()["weight"].zero_()
    assert model.weight.abs().sum() > 0
    data = linear_dataset()[3]
    expected = ModelTrainerCLS(model, args).test(data, CPU, args)
    assert trainer.test(data, CPU, args) == pytest.approx(expected)
    precise = fp.FedNNNNClientTrainer(model, arguments(precision="fp64"))
    precise.train(data, CPU, args)
    assert precise.get_model_params()["weight"].dtype == torch.float64


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"client_optimizer": "adam"}, "args: train_args.client_optimizer: 'adam': must be"),
        ({"learning_rate": None}, "args: train_args.learning_rate: missing; must be"),
        ({"weight_decay": "much"}, "args: train_args.weight_decay: 'much': must be"),
        ({"prox_mu": -1}, "args: train_args.prox_mu: -1: must be"),
        ({"client_threads": 0}, "args: train_args.client_threads: 0: must be"),
        ({"client_threads": True}, "args: train_args.client_threads: true: must be"),
        ({"scenario": "hierarchical"}, "scenario: hierarchical: "),
    ],
)
def test_our_trainer_names_a_setting_that_does_not_fit(values, line) -> None:
    with pytest.raises(fp.UserError) as caught:
        fp.FedNNNNClientTrainer(nn.Linear(5, 2), arguments(**values))
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_our_trainer_takes_a_full_batch() -> None:
    """As many steps as epochs, the same as with a batch of the client's size."""
    dataset, model = fedml_dataset(images(), -1, 3), create_model("nnnn_digits", 0)

    def trained(batch_size: int) -> OrderedDict:
        args = arguments(batch_size=batch_size, round_idx=0)
        trainer = fp.FedNNNNClientTrainer(copy.deepcopy(model), args)
        trainer.train(dataset[5][0], CPU, args)
        return trainer.get_model_params()

    assert_equal(trained(-1), trained(dataset[4][0]))


class Threads(nn.Linear):
    """Counts the threads that it computes on."""

    def forward(self, x):
        self.threads = torch.get_num_threads()
        return super().forward(x)


@pytest.mark.parametrize("given", [None, "auto", 1, 3])
def test_our_trainer_uses_the_cores_that_its_silo_has(given) -> None:
    model, args, before = Threads(5, 2), arguments(client_threads=given), torch.get_num_threads()
    args.round_idx = 0
    fp.FedNNNNClientTrainer(model, args).train(linear_dataset()[5][0], CPU, args)
    assert model.threads == (given if given in (1, 3) else len(os.sched_getaffinity(0)))
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("outputs", "labels"), [((4, 2, 3), (4, 3)), ((4, 2, 3, 5), (4, 3, 5)), ((4, 2), (4,))]
)
def test_our_trainer_counts_labels_not_samples(outputs, labels) -> None:
    """Logits that are all the same: class 0 everywhere, and a loss of ln 2."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return self.w + torch.zeros(outputs)

    args = arguments()
    y = (torch.arange(math.prod(labels)) % 4 == 0).long().reshape(labels)
    found = fp.FedNNNNClientTrainer(Flat(), args).test([(torch.zeros(4, 1), y)], CPU, args)
    assert found["test_total"] == y.numel()
    assert found["test_correct"] == (y == 0).sum()
    assert found["test_loss"] / found["test_total"] == pytest.approx(math.log(2))


@pytest.fixture
def started(monkeypatch) -> list:
    """Keep what FedML's cross-silo server and client are started with, and start neither."""
    calls: list = []

    def start(role):
        def record(args, device, dataset, model, helper=None):
            calls.append((role, args.federated_optimizer, args, helper))

        return record

    monkeypatch.setattr("fedml.cross_silo.Server", start("server"))
    monkeypatch.setattr("fedml.cross_silo.Client", start("client"))
    return calls


def run(args, dataset, **helpers) -> None:
    fedml.FedMLRunner(args, CPU, dataset, create_model("nnnn_digits", 0), **helpers)


def test_by_name_the_server_gets_our_aggregator_and_fedml_sees_fedavg(started) -> None:
    args = arguments(federated_optimizer="FedAdam", role="server", server_lr=0.1)
    args.beta = args.gamma = None
    run(args, linear_dataset())
    [(role, name, given, aggregator)] = started
    assert (role, name, given is args) == ("server", "FedAvg", True)
    assert type(aggregator) is fp.FedNNNNAggregator
    assert aggregator._recipe.rule.name == args.federated_optimizer == "FedAdam"


def test_by_name_a_missing_trainer_is_ours_for_our_data_only(started, caplog) -> None:
    ours, theirs = fedml_dataset(images(), 5, 3), linear_dataset()
    args = arguments(federated_optimizer="FedNNNN", role="client")
    own = OwnTrainer(nn.Linear(5, 2), args)
    for dataset, helpers in ((ours, {}), (theirs, {}), (ours, {"client_trainer": own})):
        run(args, dataset, **helpers)
    assert [(role, name) for role, name, *_ in started] == [("client", "FedAvg")] * 3
    first, second, third = (helper for *_, helper in started)
    assert type(first) is fp.FedNNNNClientTrainer
    assert second is None  # FedML makes its default
    assert third is own
    assert not caplog.records
    args.federated_optimizer, args.prox_mu = "PaperFedProx", 0.1
    run(args, theirs)
    assert "FedML's default trains: the proximal term" in caplog.text


@pytest.mark.parametrize("kind", ["cross_cloud", "fedml_serving", "cross_device"])
@pytest.mark.parametrize("role", ["server", "client"])
def test_by_name_what_fedml_has_beside_is_refused_in_a_line(kind, role) -> None:
    args = arguments(training_type=kind, federated_optimizer="FedNNNN", role=role)
    with pytest.raises(fp.UserError, match=f"^training_type: {kind}: FedNNNN runs by name"):
        run(args, linear_dataset())
    with pytest.raises(fp.UserError, match=f"^training_type: {kind}: "):
        sys.modules["fedml.core.mlops"].pre_setup(args)  # as fedml.init does first
    args.federated_optimizer = "NoSuchMethod"  # FedML's own words
    with pytest.raises(Exception, match=r".") as caught:
        run(args, linear_dataset())
    assert not isinstance(caught.value, fp.UserError)


def test_a_model_that_does_not_take_our_images_is_named() -> None:
    args = arguments(model="lr", round_idx=0)
    trainer = fp.FedNNNNClientTrainer(nn.Linear(784, 10), args)
    with pytest.raises(fp.UserError, match=r"^model_args.model: lr: does not take images of"):
        trainer.train(fedml_dataset(images(), 5, 3)[5][0], CPU, args)


def test_by_name_an_aggregator_of_another_kind_is_refused(started) -> None:
    class Average(ServerAggregator):
        get_model_params = set_model_params = test = None

    args = arguments(federated_optimizer="FedNNNN", role="server")
    ours = fp.FedNNNNAggregator(nn.Linear(5, 2), args)
    run(args, linear_dataset(), server_aggregator=ours)
    assert started[0][3] is ours
    with pytest.raises(fp.UserError, match="server_aggregator: Average: federated_optimizer FedN"):
        run(args, linear_dataset(), server_aggregator=Average(nn.Linear(5, 2), args))
    assert args.federated_optimizer == "FedNNNN"


def test_fedmls_own_name_and_plain_use_reach_fedml_as_they_are(started) -> None:
    args = arguments(role="server")
    ours = fp.FedNNNNAggregator(nn.Linear(5, 2), args)
    run(args, linear_dataset(), server_aggregator=ours)
    run(arguments(role="client", beta=None), linear_dataset())
    assert [(role, name) for role, name, *_ in started] == [
        ("server", "FedAvg"),
        ("client", "FedAvg"),
    ]
    assert [helper for *_, helper in started] == [ours, None]


def test_by_name_a_failure_leaves_the_arguments_as_they_were(monkeypatch) -> None:
    def fail(*_):
        raise RuntimeError("no such address")

    monkeypatch.setattr("fedml.cross_silo.Server", fail)
    args = arguments(federated_optimizer="FedNNNN", role="server")
    with pytest.raises(RuntimeError, match="no such address"):
        run(args, linear_dataset())
    assert args.federated_optimizer == "FedNNNN"
