"""Our methods in ``FedMLRunner``: any data set, any module, any client trainer."""

import copy
import json
import logging
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import fedml
import numpy as np
import pytest
import torch
from fedml.core import ClientTrainer, ServerAggregator
from fedml.ml.trainer.my_model_trainer_classification import ModelTrainerCLS
from safetensors.torch import load_file
from torch import nn

import fednnnn_plugin as fp
from fednnnn_plugin.fedml.screen import quiet_fedml

fp.register()

CPU = torch.device("cpu")
FEATURES, CLASSES = 3, 2


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def arguments(**values) -> SimpleNamespace:
    settings = {
        "training_type": "simulation",
        "backend": "sp",
        "random_seed": 0,
        "dataset": "mine",
        "model": "mine",
        "federated_optimizer": "PaperFedAvg",
        "client_num_in_total": 2,
        "client_num_per_round": 2,
        "comm_round": 1,
        "epochs": 1,
        "batch_size": 4,
        "client_optimizer": "sgd",
        "learning_rate": 0.5,
        "output": "out",
    }
    return SimpleNamespace(**settings | values)


def synthetic(clients: int = 2, samples: int = 4) -> list:
    """FedML's eight values, each client's data one list of one batch."""
    generator = torch.Generator().manual_seed(1)
    local = {
        k: [
            (
                torch.randn(samples, FEATURES, generator=generator),
                torch.randint(CLASSES, (samples,), generator=generator),
            )
        ]
        for k in range(clients)
    }
    everything = [batch for batches in local.values() for batch in batches]
    total = samples * clients
    sizes = dict.fromkeys(local, samples)
    return [total, total, everything, everything, sizes, local, dict(local), CLASSES]


def linear() -> nn.Linear:
    model = nn.Linear(FEATURES, CLASSES)
    with torch.no_grad():
        model.weight.copy_(torch.arange(6.0).reshape(2, 3) / 10)
        model.bias.zero_()
    return model


def run(args, dataset, model, client_trainer=None, server_aggregator=None) -> dict:
    fedml.FedMLRunner(args, CPU, dataset, model, client_trainer, server_aggregator).run()
    return load_file(Path(args.output) / "model.safetensors")


def test_any_data_set_and_module_by_hand() -> None:
    """One full-batch step a client: w₁ = w₀ − η · mean of the clients' gradients."""
    model, dataset = linear(), synthetic()
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for batches in dataset[5].values():
        x, y = batches[0]
        replica = copy.deepcopy(model)
        nn.functional.cross_entropy(replica(x), y).backward()
        for name, parameter in replica.named_parameters():
            expected[name] -= 0.5 * parameter.grad / 2
    result = run(arguments(), dataset, model)
    for name, tensor in expected.items():
        assert torch.allclose(result[name], tensor, atol=1e-6)
        assert torch.equal(model.state_dict()[name], result[name])  # left in the caller's model


class Counting(ClientTrainer):
    """Adds client + 1 to every weight, and writes down how it was called."""

    def __init__(self, model: nn.Module, args: SimpleNamespace) -> None:
        super().__init__(model, args)
        self.calls: list[tuple] = []

    def get_model_params(self):
        return self.model.state_dict()

    def set_model_params(self, model_parameters):
        self.calls.append(("set", self.id, self.local_sample_number, type(model_parameters)))
        self.model.load_state_dict(model_parameters)

    def on_before_local_training(self, train_data, device, args):
        self.calls.append(("before", train_data))

    def train(self, train_data, device, args):
        self.calls.append(("train", args.round_idx, device))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(self.id + 1)

    def on_after_local_training(self, train_data, device, args):
        self.calls.append(("after", self.local_test_dataset))


def test_a_client_trainer_is_called_in_fedmls_order() -> None:
    """Δ₀ = 1, Δ₁ = 2 in each of 8 weights, so S = 1.5 everywhere and N = E: FedNNNN is exact."""
    args = arguments(federated_optimizer="FedNNNN", beta=0.5, gamma=0.5, comm_round=2)
    model, dataset = linear(), synthetic()
    start = model.weight.detach().clone()
    trainer = Counting(model, args)
    result = run(args, dataset, copy.deepcopy(model), trainer)
    # w₁ = w₀ + 0.75; the average of round 2 is w₁ + 1.5.
    assert torch.allclose(result["weight"], start + 0.75 + 1.5)
    rounds = [call for call in trainer.calls if call[0] == "train"]
    assert rounds == [("train", r, CPU) for r in (0, 0, 1, 1)]
    first = next(i for i, call in enumerate(trainer.calls) if call[0] == "before")
    client = trainer.calls[first - 1][1]
    assert [call[0] for call in trainer.calls[first - 1 : first + 3]] == [
        *("set", "before", "train", "after")
    ]
    assert trainer.calls[first - 1][2] == 4
    assert trainer.calls[first][1] is dataset[5][client]
    assert trainer.calls[first + 2][1] is dataset[6][client]


def record(args) -> dict:
    return json.loads(Path(args.output, "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.parametrize(
    ("found", "metrics"),
    [
        (None, None),
        (
            {"mse": torch.tensor(0.25), "worst": np.float32(2.0), "name": "x"},
            {"mse": 0.25, "worst": 2.0},
        ),
        ({"mse": math.nan}, None),
        (
            {"test_correct": 9, "test_loss": 1.0, "test_total": 4},
            {"test_correct": 9.0, "test_loss": 1.0, "test_total": 4.0},
        ),
        ((0.5, 1.0, None, None), None),
    ],
)
def test_what_a_trainer_measures_is_recorded_as_it_is(found, metrics) -> None:
    """No cross-entropy in its place, and no accuracy where it gives none, or one above 1."""

    class Own(Counting):
        def test(self, test_data, device, args):
            return found

    args = arguments()
    run(args, synthetic(), linear(), Own(linear(), args))
    last = record(args)
    assert (last["test_acc"], last["test_loss"]) == (None, None)
    assert last["test_metrics"] == metrics


def test_fedmls_counts_are_an_accuracy() -> None:
    class Own(Counting):
        def test(self, test_data, device, args):
            return {"test_correct": 3, "test_loss": 2.0, "test_total": 4}

    args = arguments()
    run(args, synthetic(), linear(), Own(linear(), args))
    assert (record(args)["test_acc"], record(args)["test_loss"]) == (0.75, 0.5)


def test_labels_are_counted_not_samples() -> None:
    """Outputs [B, C, T] for labels [B, T]."""
    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(6, 1, 5, generator=generator), torch.randint(2, (6, 5), generator=generator))
    ]
    dataset = [6, 6, batches, batches, {0: 6}, {0: batches}, {0: batches}, CLASSES]
    sequences = {"client_num_in_total": 1, "client_num_per_round": 1}
    model = nn.Conv1d(1, CLASSES, 1)
    args = arguments(**sequences)
    run(args, dataset, model)
    with torch.no_grad():
        right = (model(batches[0][0]).argmax(1) == batches[0][1]).double().mean().item()
    assert record(args)["test_acc"] == pytest.approx(right)


@pytest.mark.parametrize("name", ["lr", "cnn"])
def test_a_model_of_fedmls_that_does_not_take_our_images_is_named(name) -> None:
    digits = {"dataset": "digits", "partition_method": "iid", "batch_size": 50}
    args = arguments(model=name, **digits)
    dataset, _ = fedml.data.load(args)
    args.dataset = "mnist"  # whose models these are
    model = fedml.model.create(args, 10)
    with pytest.raises(fp.UserError, match=rf"^model_args.model: {name}: does not take images of"):
        run(args, dataset, model)
    assert not Path("out").exists()


def test_fedmls_default_trainer_can_be_given() -> None:
    """One epoch of one batch without weight decay: the engine's own training and FedML's agree."""
    args = arguments(output="theirs")
    model = linear()
    theirs = run(args, synthetic(), model, ModelTrainerCLS(linear(), args))
    ours = run(arguments(output="ours"), synthetic(), linear())
    for name, tensor in ours.items():
        assert torch.allclose(tensor, theirs[name], atol=1e-6)


class Drawing(ModelTrainerCLS):
    """Draws from torch's global generator, as a model with dropout does."""

    def train(self, train_data, device, args):
        super().train(train_data, device, args)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter))


@pytest.mark.parametrize("what", ["trainer", "other test data", "ours"])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(what: str) -> None:
    """Also where the shuffling is our loader's, called by a trainer or by the engine."""

    def results(output: str, *rounds: int) -> dict:
        for number, last in enumerate(rounds):
            args = arguments(
                output=output,
                comm_round=last,
                resume=number > 0,
                dataset="digits",
                model="nnnn_digits",
                partition_method="iid",
                learning_rate=0.05,
                batch_size=50,
            )
            dataset, classes = fedml.data.load(args)
            for _ in range(number):  # passes of no concern to the run
                list(dataset[5][0])
            model = fedml.model.create(args, classes)
            if what == "other test data":
                dataset[3] = list(dataset[3])
            trainer = Drawing(copy.deepcopy(model), args) if what == "trainer" else None
            result = run(args, dataset, model, trainer)
        return result

    once, twice = results("once", 3), results("twice", 2, 3)
    assert all(torch.equal(once[name], twice[name]) for name in once)


def test_a_trainer_of_a_model_with_tied_weights_and_buffers() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
            self.second.weight = self.first.weight
            self.norm = nn.BatchNorm1d(FEATURES)
            self.head = nn.Linear(FEATURES, CLASSES)

        def forward(self, x):
            return self.head(self.norm(self.second(self.first(x))))

    args = arguments(comm_round=2)
    result = run(args, synthetic(), Tied(), ModelTrainerCLS(Tied(), args))
    assert torch.equal(result["first.weight"], result["second.weight"])
    assert result["norm.num_batches_tracked"] == 2


def test_tests_without_a_global_test_set_use_the_clients() -> None:
    with_global, without = synthetic(), synthetic()
    without[3] = None
    run(arguments(output="a"), with_global, linear())
    run(arguments(output="b"), without, linear())
    a, b = (Path(name, "summary.json").read_text() for name in "ab")
    assert [line for line in a.splitlines() if "acc" in line] == [
        line for line in b.splitlines() if "acc" in line
    ]


def test_tag_prediction_keeps_fedmls_trainer() -> None:
    x = torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(0))
    batches = [(x, (x[:, :CLASSES] > 0).float())]
    model = nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Sigmoid())
    dataset = [8, 8, batches, batches, {0: 8}, {0: batches}, {0: batches}, CLASSES]
    args = arguments(dataset="stackoverflow_lr", client_num_in_total=1, client_num_per_round=1)
    args.comm_round, args.lr = 200, 0.1
    run(args, dataset, model)
    with torch.no_grad():
        assert ((model(x) > 0.5) == batches[0][1].bool()).float().mean() > 0.9


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"federated_optimizer": "FedNNNN", "gamma": 0.5}, r"beta: missing; FedNNNN needs it"),
        ({"client_num_in_total": 3}, r"client_num_in_total: 3: the data set has no client 2"),
        ({"backend": "NCCL"}, r"comm_args.backend: 'NCCL': .* sp or MPI"),
        ({"enable_dp": True}, r"enable_dp: true: .* hooks"),
        (
            {"resume": True, "overwrite": True},
            r"tracking_args.overwrite: true: resume is true",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(values: dict, line: str) -> None:
    with pytest.raises(fp.UserError, match=line) as caught:
        run(arguments(**values), synthetic(), linear())
    assert "\n" not in str(caught.value)
    assert not Path("out").exists()


def test_a_server_aggregator_is_refused() -> None:
    class Mine(ServerAggregator):
        get_model_params = set_model_params = test = None

    args = arguments()
    aggregator = Mine(linear(), args)
    with pytest.raises(fp.UserError, match=r"server_aggregator: Mine: .* leave"):
        run(args, synthetic(), linear(), server_aggregator=aggregator)


def test_a_second_run_needs_to_be_told_what_to_do() -> None:
    run(arguments(), synthetic(), linear())
    with pytest.raises(fp.UserError, match="already holds a run"):
        run(arguments(), synthetic(), linear())
    run(arguments(overwrite=True), synthetic(), linear())


def test_what_fedml_logs_stays_off_the_screen_and_prints_come_through(capsys, caplog) -> None:
    theirs = logging.getLogger("fedml's own")
    theirs.addHandler(logging.StreamHandler(sys.stderr))
    theirs.propagate = False
    theirs.setLevel(logging.INFO)
    real, logging.root = logging.root, theirs  # as fedml.init does
    vars(sys.stdout)["write"] = theirs.info
    try:
        with quiet_fedml(), caplog.at_level(logging.INFO):
            logging.info("FedML's noise")
            sys.stdout.write("round 1\n")
        sys.stdout.write("back to the logger")
    finally:
        logging.root = real
        vars(sys.stdout).pop("write", None)
    shown = capsys.readouterr()
    assert shown.out == "round 1\n"
    assert shown.err == "back to the logger\n"
    assert "FedML's noise" in caplog.text
