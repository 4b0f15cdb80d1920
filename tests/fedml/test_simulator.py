"""Our methods in ``FedMLRunner``: any data set, any module, any client trainer."""

import copy
import json
import math
from pathlib import Path

import fedml
import numpy as np
import pytest
import torch
import yaml
from fedml.core import ServerAggregator
from fedml.ml.trainer.my_model_trainer_classification import ModelTrainerCLS
from fedml.ml.trainer.my_model_trainer_tag_prediction import ModelTrainerTAGPred
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import fednnnn_plugin as fp

pytestmark = pytest.mark.usefixtures("own_folder")

CPU = torch.device("cpu")
FEATURES, CLASSES = 3, 2
ALONE = {"client_num_in_total": 1, "client_num_per_round": 1}


@pytest.fixture
def synthetic(eight_values) -> list:
    """Each client's data one list of one batch of four."""
    generator = torch.Generator().manual_seed(1)

    def batch():
        x = torch.randn(4, FEATURES, generator=generator)
        return x, torch.randint(CLASSES, (4,), generator=generator)

    return eight_values({k: [batch()] for k in range(2)})


def linear() -> nn.Linear:
    model = nn.Linear(FEATURES, CLASSES)
    with torch.no_grad():
        model.weight.copy_(torch.arange(6.0).reshape(2, 3) / 10)
        model.bias.zero_()
    return model


@pytest.fixture
def run(fedml_args, synthetic):
    """Run in ``FedMLRunner``; returns the model of the run folder, and the last round's record."""

    def simulate(dataset=None, model=None, trainer=None, aggregator=None, args=None, **values):
        args = args or fedml_args(**{"output": "out"} | values)
        fedml.FedMLRunner(
            args, CPU, dataset or synthetic, model or linear(), trainer, aggregator
        ).run()
        last = Path(args.output, "metrics.jsonl").read_text().splitlines()[-1]
        return load_file(Path(args.output, "model.safetensors")), json.loads(last)

    return simulate


class Counting(ModelTrainerCLS):
    """Adds client + 1 to every weight, and writes down how it was called."""

    def __init__(self, model: nn.Module, args) -> None:
        super().__init__(model, args)
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


def test_a_client_trainer_is_called_in_fedmls_order(run, fedml_args, synthetic) -> None:
    """Δ₀ = 1, Δ₁ = 2 in each of 8 weights, so S = 1.5 everywhere and N = E: FedNNNN is exact."""
    args = fedml_args(federated_optimizer="FedNNNN", beta=0.5, gamma=0.5, comm_round=2, output="a")
    dataset, trainer = synthetic, Counting(linear(), args)
    result, _ = run(dataset, linear(), trainer, args=args)
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


def test_what_a_trainer_calls_otherwise_may_be_absent(run, fedml_args, synthetic) -> None:
    class OwnNames(Counting):
        def train(self, train_data, device, args):
            assert not hasattr(args, "learning_rate")
            super().train(train_data, device, args)

    args = fedml_args(output="a", lr=0.1)
    for key in ("epochs", "batch_size", "learning_rate"):
        delattr(args, key)
    with pytest.raises(fp.UserError, match=r"epochs: missing(.|\n)*learning_rate: missing"):
        run(args=args)
    fedml.device.get_device(args)
    result, _ = run(trainer=OwnNames(linear(), args), args=args)
    assert_close(result["weight"], linear().weight + 1.5)
    with pytest.raises(fp.UserError, match=r"^args: train_args.batch_size: missing[^\n]*$"):
        fedml.data.load(fedml_args(dataset="digits", batch_size=None, epochs=None))


COUNTS = {"test_correct": 3, "test_loss": 2.0, "test_total": 4}
ABOVE_1 = {"test_correct": 9.0, "test_loss": 1.0, "test_total": 4.0}
NUMBERS = {"mse": torch.tensor(0.25), "worst": np.float32(2.0), "name": "x"}


@pytest.mark.parametrize(
    ("found", "recorded"),
    [
        (COUNTS, (0.75, 0.5, None)),
        (COUNTS | {"f1": 0.7}, (0.75, 0.5, {"f1": 0.7})),
        (None, (None, None, None)),
        (NUMBERS, (None, None, {"mse": 0.25, "worst": 2.0})),
        ({"mse": math.nan}, (None, None, None)),
        (ABOVE_1, (None, None, ABOVE_1)),
        ((0.5, 1.0, None, None), (None, None, None)),
    ],
)
def test_trainers_metrics_are_recorded(found, recorded, run, fedml_args) -> None:
    """No cross-entropy in its place, and no accuracy where it gives none, or one above 1."""
    trainer = Counting(linear(), fedml_args())
    trainer.test = lambda *_: found
    _, record = run(trainer=trainer)
    assert tuple(record[f"test_{key}"] for key in ("acc", "loss")) == recorded[:2]
    assert record.get("test_metrics") == recorded[2]


@pytest.mark.parametrize("name", ["lr", "cnn"])
def test_model_that_takes_no_images_is_named(name, run, fedml_args) -> None:
    args = fedml_args(dataset="digits", partition_method="iid", batch_size=50)
    dataset, _ = fedml.data.load(args)
    model = fedml.model.create(fedml_args(model=name, dataset="mnist"), 10)  # whose models they are
    with pytest.raises(fp.UserError, match=rf"^model_args.model: {name}: does not take images of"):
        run(dataset, model, args=fedml_args(model=name, output="out"))
    assert not Path("out").exists()


class Drawing(ModelTrainerCLS):
    """Draws from torch's global generator, as a model with dropout does."""

    def train(self, train_data, device, args):
        super().train(train_data, device, args)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter))


def test_resumed_run_has_an_uninterrupted_ones_bits(run, fedml_args) -> None:
    """Also where a trainer shuffles by our loader."""
    digits = {"dataset": "digits", "model": "nnnn_digits", "partition_method": "iid"}

    def after(output: str, *rounds: int) -> dict:
        for number, last in enumerate(rounds):
            values = digits | {"comm_round": last, "resume": number > 0, "batch_size": 200}
            args = fedml_args(output=output, **values)
            dataset, classes = fedml.data.load(args)
            for _ in range(number):  # passes of no concern to the run
                list(dataset[5][0])
            model = fedml.model.create(args, classes)
            result, _ = run(dataset, model, Drawing(copy.deepcopy(model), args), args=args)
        return result

    assert_close(after("once", 2), after("twice", 1, 2), rtol=0, atol=0)


def test_loader_with_its_own_generator_resumes_too(run, synthetic) -> None:
    """It went on from pass to pass: a resumed run had other batches."""
    data = TensorDataset(torch.eye(12)[:, :FEATURES], torch.arange(12) % CLASSES)

    def loader(seed: int) -> DataLoader:
        generator = torch.Generator().manual_seed(seed)
        return DataLoader(data, batch_size=5, shuffle=True, generator=generator)

    def by_batches(seed: int) -> DataLoader:
        drawn = RandomSampler(data, generator=torch.Generator().manual_seed(seed))
        return DataLoader(data, batch_size=None, sampler=BatchSampler(drawn, 5, drop_last=False))

    def after(output: str, *rounds: int) -> tuple:
        for number, last in enumerate(rounds):
            local = {0: loader(0), 1: by_batches(1)}
            dataset = [*synthetic[:3], loader(2), *synthetic[4:5], local, *synthetic[6:]]
            found = run(dataset, output=output, comm_round=last, resume=number > 0)
        return found[0], found[1]["test_loss"]

    assert_close(after("once", 2), after("twice", 1, 2), rtol=0, atol=0)


def test_own_data_and_model_are_recorded_so(run, fedml_args, caplog) -> None:
    """And a near miss of a key is named, each time."""
    names = {"dataset": "mnist", "model": "nnnn_mnist", "partition_method": "hetero"}
    names |= {"max_client_nrm": 1.0}
    for rounds in (1, 2):
        run(args=fedml_args(**names, output="out", comm_round=rounds, resume=rounds > 1))
        recipe = yaml.safe_load(Path("out/recipe.yaml").read_text())
        assert recipe["data_args"] == {"dataset": "mnist"}
        assert recipe["model_args"] == {"model": "custom"}
    said = [line for line in caplog.messages if line.startswith("max_client_nrm: ")]
    assert ["max_client_norm?" in line for line in said] == [True, True]


def test_extra_state_of_a_model_stays(run) -> None:
    class Versioned(nn.Linear):
        def get_extra_state(self):
            return {"version": 1}

        def set_extra_state(self, state) -> None:
            raise AssertionError

    model = Versioned(FEATURES, CLASSES)
    result, _ = run(model=model)
    assert_close(model.weight.detach(), result["weight"], rtol=0, atol=0)


def test_custom_trainer_of_tied_weights_and_buffers(run, fedml_args) -> None:
    tied = [nn.Linear(FEATURES, FEATURES) for _ in range(2)]
    tied[1].weight = tied[0].weight
    model = nn.Sequential(*tied, nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES))
    trainer = ModelTrainerCLS(copy.deepcopy(model), fedml_args())
    result, _ = run(model=model, trainer=trainer, comm_round=2)
    assert torch.equal(result["0.weight"], result["1.weight"])
    assert result["2.num_batches_tracked"] == 2


def test_clients_are_tested_without_a_test_set(run, synthetic) -> None:
    without = [*synthetic[:3], None, *synthetic[4:]]
    (_, one), (_, other) = run(output="a"), run(without, output="b")
    assert (one["test_acc"], one["test_loss"]) == (other["test_acc"], other["test_loss"])


def test_fedmls_own_tasks_keep_fedmls_trainer(run, fedml_args, eight_values) -> None:
    x = torch.randn(8, FEATURES)
    dataset = eight_values({0: [(x, (x[:, :CLASSES] > 0).float())]})
    tags = {"dataset": "stackoverflow_lr", "lr": 0.1, **ALONE}
    nets = [nn.Sequential(linear(), nn.Sigmoid()) for _ in range(3)]
    ours, theirs = (fedml_args(output=name, **tags) for name in "ab")
    result, _ = run(dataset, nets[0], args=ours)
    expected, _ = run(dataset, nets[1], ModelTrainerTAGPred(nets[2], theirs), args=theirs)
    assert_close(result, expected, rtol=0, atol=0)
    assert not torch.equal(result["0.weight"], linear().weight)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"federated_optimizer": "FedNNNN", "gamma": 0.5}, r"beta: missing; FedNNNN needs it"),
        ({"client_num_in_total": 3}, r"client_num_in_total: 3: the data set has no client 2"),
        ({"backend": "NCCL"}, r"comm_args.backend: 'NCCL': .* sp or MPI"),
        ({"enable_dp": True}, r"enable_dp: true: .* hooks"),
        ({"output": "."}, r"output: must name a folder"),
        ({"resume": True, "overwrite": True}, r"tracking_args.overwrite: true: resume is true"),
    ],
)
def test_what_does_not_fit_is_one_line(values: dict, line: str, run) -> None:
    with pytest.raises(fp.UserError, match=line) as caught:
        run(**values)
    assert "\n" not in str(caught.value)
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda given: given[:7], r"^dataset: must be FedML's eight values"),
        (lambda given: [*given[:5], [*given[5].values()], *given[6:]], r"^dataset\[5\]: list: "),
    ],
)
def test_what_is_no_data_set_is_one_line(change, line, run, synthetic) -> None:
    with pytest.raises(fp.UserError, match=line):
        run(change(synthetic))


class Metrics(ServerAggregator):
    """Tests on the clients' data with a metric of its own, and writes down what it was given."""

    def __init__(self, model: nn.Module, args) -> None:
        super().__init__(model, args)
        self.tested: list[tuple] = []

    def get_model_params(self):
        return self.model.cpu().state_dict()

    def set_model_params(self, model_parameters) -> None:
        self.model.load_state_dict(model_parameters)

    def test_all(self, train_data_local_dict, test_data_local_dict, device, args) -> bool:
        self.tested.append((self.id, args.round_idx, self.model.weight.detach().clone()))
        return {"auc": float(len(test_data_local_dict)), "drawn": torch.rand(()).item()}

    def test(self, test_data, device, args) -> tuple:
        assert test_data is None
        return 0.25, 3.0, None, None


@pytest.mark.parametrize("trained", ["by the engine", "by a trainer"])
def test_a_server_aggregator_tests_the_average(trained, run, synthetic, fedml_args) -> None:
    """Of Δ = 1 and 2 in every weight, under β = γ = 1/2; see the trainer's test."""
    args = fedml_args(federated_optimizer="FedNNNN", beta=0.5, gamma=0.5, comm_round=2, output="a")
    net, without = linear(), [*synthetic[:3], None, *synthetic[4:]]
    trainer = Counting(linear(), args) if trained == "by a trainer" else None
    tester, before = Metrics(net, args), linear().weight
    before_all = torch.random.get_rng_state()
    result, last = run(without, net, trainer, tester, args)
    assert torch.equal(torch.random.get_rng_state(), before_all)
    assert [(id_, number) for id_, number, _ in tester.tested] == [(-1, 0), (-1, 1)]
    assert_close(tester.tested[-1][2], result["weight"], rtol=0, atol=0)
    assert_close(net.weight.detach(), result["weight"], rtol=0, atol=0)
    if trainer:
        averages = [weights for *_, weights in tester.tested]
        assert_close(averages, [before + 1.5, before + 0.75 + 1.5])
    assert (last["test_acc"], last["test_loss"], last["test_metrics"]["auc"]) == (0.25, 3.0, 2.0)


def test_a_tester_leaves_the_bits_of_the_run(run, fedml_args) -> None:
    """What it does to the model, and to the generators."""
    args = fedml_args(output="tested", comm_round=2)
    net = linear()

    class Changing(Metrics):
        def test(self, test_data, device, args) -> None:
            torch.nn.init.normal_(net.weight)

    tested, _ = run(model=net, aggregator=Changing(net, args), args=args)
    alone, _ = run(output="alone", comm_round=2)
    assert_close(tested, alone, rtol=0, atol=0)


def test_another_tester_does_not_continue_a_run(run, fedml_args) -> None:
    args = fedml_args(output="a")
    run(aggregator=Quiet(linear(), args), args=args)
    with pytest.raises(fp.UserError, match=r"tester \(code\)"):
        run(args=fedml_args(output="a", comm_round=2, resume=True))


class Quiet(Metrics):
    def test(self, test_data, device, args) -> None: ...


def test_an_aggregator_that_aggregates_is_refused(run, fedml_args) -> None:
    class Mine(Metrics):
        def on_after_aggregation(self, aggregated_model_or_grad):
            return aggregated_model_or_grad

    with pytest.raises(fp.UserError, match="server_aggregator: Mine: replaces on_after_agg"):
        run(aggregator=Mine(linear(), fedml_args()))
    args = fedml_args(federated_optimizer="FedNNNN", beta=0.5, gamma=0.5)
    with pytest.raises(fp.UserError, match=r"FedNNNNAggregator: a simulation .* leave it out"):
        run(aggregator=fp.FedNNNNAggregator(linear(), args), args=args)


def test_second_run_needs_a_word_in_the_yaml(run) -> None:
    run()
    with pytest.raises(fp.UserError, match="already holds a run") as caught:
        run(comm_round=2)
    for key in ("tracking_args.overwrite: true", "tracking_args.resume: true"):
        assert key in str(caught.value)
    for values in ({"overwrite": True}, {"resume": True, "comm_round": 2}):
        assert run(**values)[1]["round"] == values.get("comm_round", 1)


def test_custom_sampler_needs_the_environments_permission(
    run, fedml_args, own_code, monkeypatch
) -> None:
    Path("mine.py").write_text("def last(number, total, size, _):\n    return range(total)[-size:]")
    digits = {"dataset": "digits", "model": "nnnn_digits", "partition_method": "iid"}
    digits |= {"client_num_in_total": 5, "client_num_per_round": 2, "client_sampling": "mine:last"}
    args = fedml_args(**digits, output="out")
    dataset, classes = fedml.data.load(args)
    model = fedml.model.create(args, classes)
    trainer = Counting(copy.deepcopy(model), args)
    with pytest.raises(fp.UserError, match=r"^train_args\.client_sampling: .*FEDNNNN_ALLOW_CODE"):
        run(dataset, model, trainer, args=args)
    assert not Path("out").exists()
    monkeypatch.setenv("FEDNNNN_ALLOW_CODE", "1")
    run(dataset, model, trainer, args=args)
    trained = [client for call, client, *_ in trainer.calls if call == "set"]
    assert {3, 4} <= {*trained} <= {0, 3, 4}  # the first one's to test
