"""Our methods in ``FedMLRunner``: any data set, any module, any client trainer."""

import copy
from pathlib import Path

import fedml
import pytest
import torch
import yaml
from fedml.ml.trainer.my_model_trainer_classification import ModelTrainerCLS
from fedml.ml.trainer.my_model_trainer_tag_prediction import ModelTrainerTAGPred
from torch import nn
from torch.testing import assert_close
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import fednnnn_plugin as fp

from .rounds import CPU, eight_values, fedml_args, linear, refused, simulate, two_clients

pytestmark = pytest.mark.usefixtures("own_folder", "one_core")


class Counting(ModelTrainerCLS):
    """Adds client + 1 to every weight, and writes down how it was called."""

    def __init__(self, args) -> None:
        super().__init__(linear(), args)
        self.calls: list[tuple] = []

    def set_model_params(self, model_parameters):
        self.calls.append(("set", self.id, self.local_sample_number))
        super().set_model_params(model_parameters)

    def on_before_local_training(self, train_data, device, args):
        self.calls.append(("before", train_data))

    def train(self, train_data, device, args):
        self.calls.append(("train", args.round_idx, device))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(self.id + 1)

    def on_after_local_training(self, train_data, device, args):
        self.calls.append(("after", self.local_test_dataset))

    def test(self, test_data, device, args):
        return {"test_correct": 3, "test_loss": 2.0, "test_total": 4, "f1": 0.7}


def test_trainer_is_called_in_fedmls_order() -> None:
    """Δ₀ = 1, Δ₁ = 2 in each of 8 weights, so S = 1.5 everywhere and N = E: FedNNNN is exact."""
    args = fedml_args(federated_optimizer="FedNNNN", beta=0.5, gamma=0.5, comm_round=2, output="a")
    dataset, trainer = two_clients(), Counting(args)
    result, record = simulate(dataset, linear(), trainer, args=args)
    # w₁ = w₀ + 0.75; the average of round 2 is w₁ + 1.5.
    assert_close(result["weight"], linear().weight + 0.75 + 1.5)
    calls = [call for call in trainer.calls if call[0] == "train"]
    assert calls == [("train", r, CPU) for r in (0, 0, 1, 1)]
    first = next(i for i, call in enumerate(trainer.calls) if call[0] == "before")
    name, client, samples = trainer.calls[first - 1]
    assert (name, samples) == ("set", 4)
    assert trainer.calls[first] == ("before", dataset[5][client])
    assert trainer.calls[first + 1] == ("train", 0, CPU)
    assert trainer.calls[first + 2] == ("after", dataset[6][client])
    found = (record["test_acc"], record["test_loss"], record["test_metrics"])
    assert found == (0.75, 0.5, {"f1": 0.7})


@pytest.mark.parametrize("found", [None, (0.5, 1.0, None, None)])
def test_trainer_that_tests_nothing_records_nothing(found) -> None:
    """No cross-entropy in its place."""
    trainer = Counting(fedml_args())
    trainer.test = lambda *_: found
    _, record = simulate(trainer=trainer)
    assert [record.get(f"test_{key}") for key in ("acc", "loss", "metrics")] == [None] * 3


def test_trainers_keys_under_other_names_may_be_absent() -> None:
    class OwnNames(Counting):
        def train(self, train_data, device, args):
            assert not hasattr(args, "learning_rate")
            super().train(train_data, device, args)

    args = fedml_args(output="a", lr=0.1)
    for key in ("epochs", "batch_size", "learning_rate"):
        delattr(args, key)
    with pytest.raises(fp.UserError, match=r"epochs: missing(.|\n)*learning_rate: missing"):
        simulate(args=args)
    fedml.device.get_device(args)
    result, _ = simulate(trainer=OwnNames(args), args=args)
    assert_close(result["weight"], linear().weight + 1.5)
    with refused("args: train_args.batch_size: missing"):
        fedml.data.load(fedml_args(dataset="digits", batch_size=None, epochs=None))


@pytest.mark.parametrize("name", ["lr", "cnn"])
def test_model_that_takes_no_images_is_named(name) -> None:
    dataset, _ = fedml.data.load(fedml_args(dataset="digits", partition_method="iid"))
    model = fedml.model.create(fedml_args(model=name, dataset="mnist"), 10)  # whose models they are
    with refused(f"model_args.model: {name}: does not take images of"):
        simulate(dataset, model, args=fedml_args(model=name, output="out"))
    assert not Path("out").exists()


class Drawing(ModelTrainerCLS):
    """Draws from torch's global generator, as a model with dropout does."""

    def train(self, train_data, device, args):
        super().train(train_data, device, args)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter))


def test_resume_of_our_loaders_costs_no_bits() -> None:
    """Where a trainer shuffles by them, and draws."""
    digits = {"dataset": "digits", "model": "nnnn_digits", "partition_method": "iid"}

    def after(output: str, *rounds: int) -> dict:
        for number, last in enumerate(rounds):
            values = digits | {"comm_round": last, "resume": number > 0, "batch_size": 200}
            args = fedml_args(output=output, **values)
            dataset, classes = fedml.data.load(args)
            for _ in range(number):  # passes of no concern to the run
                list(dataset[5][0])
            model = fedml.model.create(args, classes)
            result, _ = simulate(dataset, model, Drawing(copy.deepcopy(model), args), args=args)
        return result

    assert_close(after("once", 2), after("twice", 1, 2), rtol=0, atol=0)


@pytest.mark.slow
def test_resume_of_loaders_with_generators_costs_no_bits() -> None:
    """A generator would continue from pass to pass."""
    data = TensorDataset(torch.eye(12)[:, :3], torch.arange(12) % 2)

    def loader(seed: int) -> DataLoader:
        generator = torch.Generator().manual_seed(seed)
        return DataLoader(data, batch_size=5, shuffle=True, generator=generator)

    def by_batches(seed: int) -> DataLoader:
        drawn = RandomSampler(data, generator=torch.Generator().manual_seed(seed))
        return DataLoader(data, batch_size=None, sampler=BatchSampler(drawn, 5, drop_last=False))

    def after(output: str, *rounds: int) -> tuple:
        for number, last in enumerate(rounds):
            dataset = two_clients()
            dataset[3], dataset[5] = loader(2), {0: loader(0), 1: by_batches(1)}
            found = simulate(dataset, output=output, comm_round=last, resume=number > 0)
        return found[0], found[1]["test_loss"]

    assert_close(after("once", 2), after("twice", 1, 2), rtol=0, atol=0)


def test_own_data_and_model_are_recorded_so(caplog) -> None:
    """And a near miss of a key is named, each time."""
    names = {"dataset": "mnist", "model": "nnnn_mnist", "partition_method": "hetero"}
    names |= {"max_client_nrm": 1.0}
    for rounds in (1, 2):
        simulate(args=fedml_args(**names, output="out", comm_round=rounds, resume=rounds > 1))
        recipe = yaml.safe_load(Path("out/recipe.yaml").read_text())
        assert recipe["data_args"] == {"dataset": "mnist"}
        assert recipe["model_args"] == {"model": "custom"}
    said = [line for line in caplog.messages if line.startswith("max_client_nrm: ")]
    assert ["max_client_norm?" in line for line in said] == [True, True]


def test_extra_state_of_a_model_stays() -> None:
    class Versioned(nn.Linear):
        def get_extra_state(self):
            return {"version": 1}

        def set_extra_state(self, state) -> None:
            raise AssertionError

    model = Versioned(3, 2)
    result, _ = simulate(model=model)
    assert_close(model.weight.detach(), result["weight"], rtol=0, atol=0)


def test_trainer_of_tied_weights_and_buffers() -> None:
    tied = [nn.Linear(3, 3) for _ in range(2)]
    tied[1].weight = tied[0].weight
    model = nn.Sequential(*tied, nn.BatchNorm1d(3), nn.Linear(3, 2))
    trainer = ModelTrainerCLS(copy.deepcopy(model), fedml_args())
    result, _ = simulate(model=model, trainer=trainer, comm_round=2)
    assert torch.equal(result["0.weight"], result["1.weight"])
    assert result["2.num_batches_tracked"] == 2


def test_clients_are_tested_without_a_test_set() -> None:
    without = two_clients()
    without[3] = None
    (_, one), (_, other) = simulate(output="a"), simulate(without, output="b")
    assert (one["test_acc"], one["test_loss"]) == (other["test_acc"], other["test_loss"])


def test_fedmls_own_tasks_keep_fedmls_trainer() -> None:
    x = torch.randn(8, 3)
    dataset = eight_values({0: [(x, (x[:, :2] > 0).float())]})
    tags = {"dataset": "stackoverflow_lr", "lr": 0.1}
    tags |= {"client_num_in_total": 1, "client_num_per_round": 1}
    nets = [nn.Sequential(linear(), nn.Sigmoid()) for _ in range(3)]
    ours, theirs = (fedml_args(output=name, **tags) for name in "ab")
    result, _ = simulate(dataset, nets[0], args=ours)
    expected, _ = simulate(dataset, nets[1], ModelTrainerTAGPred(nets[2], theirs), args=theirs)
    assert_close(result, expected, rtol=0, atol=0)
    assert not torch.equal(result["0.weight"], linear().weight)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"federated_optimizer": "FedNNNN", "gamma": 0.5}, "args: train_args.beta: missing"),
        ({"client_num_in_total": 3}, ".*client_num_in_total: 3: the data set has no client 2"),
        ({"backend": "NCCL"}, ".*comm_args.backend: 'NCCL': .* sp or MPI"),
        ({"enable_dp": True}, "enable_dp: true: "),
        ({"output": "."}, "--output: "),
        ({"resume": True, "overwrite": True}, ".*tracking_args.overwrite: true: resume is true"),
        ({"dataset": two_clients()[:7]}, "dataset: must be FedML's eight values"),
        ({"dataset": [*two_clients()[:5], [], {}, 2]}, r"dataset\[5\]: list: "),
    ],
)
def test_simulation_refuses_what_does_not_fit(values, line) -> None:
    with refused(line):
        simulate(**values)
    assert not Path("out").exists()


@pytest.mark.slow
def test_second_run_needs_a_word_in_the_yaml() -> None:
    simulate()
    with pytest.raises(fp.UserError, match="already holds a run") as caught:
        simulate(comm_round=2)
    for key in ("tracking_args.overwrite: true", "tracking_args.resume: true"):
        assert key in str(caught.value)
    for values in ({"overwrite": True}, {"resume": True, "comm_round": 2}):
        assert simulate(**values)[1]["round"] == values.get("comm_round", 1)
