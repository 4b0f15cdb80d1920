"""Simulations in ``FedMLRunner``: any data set, any module, any client trainer."""

import copy
from pathlib import Path
from types import SimpleNamespace

import fedml
import numpy as np
import pytest
import torch
import yaml
from fedml.ml.trainer.my_model_trainer_classification import ModelTrainerCLS
from fedml.ml.trainer.my_model_trainer_tag_prediction import ModelTrainerTAGPred
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.testing import assert_close
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import fednnnn_plugin as fp
from fednnnn_plugin.fedml.loaders import engine_data, fedml_dataset
from fednnnn_plugin.fedml.settings import script_recipe
from fednnnn_plugin.fedml.trainer_adapter import ClientTrainerAdapter
from fednnnn_plugin.recipe import Recipe

from .rounds import CPU, Versioned, eight_values, fedml_args, linear, refused, simulate, two_clients

pytestmark = pytest.mark.usefixtures("own_folder", "one_core")
CUSTOM = {"model": "custom"}
CLIENTS, ROUNDS, RATE = 3, 3, 0.5  # of FedAvg


class Counting(ModelTrainerCLS):
    """Adds client + 1 to every weight, and writes down how it was called."""

    def __init__(self, args, found=None) -> None:
        super().__init__(linear(), args)
        self.calls, self.found = [], found

    def set_model_params(self, model_parameters):
        self.model.load_state_dict(model_parameters, assign=True)  # below in place

    def on_before_local_training(self, train_data, device, args):
        self.calls.append(("before", self.id, self.local_sample_number, train_data))

    def train(self, train_data, device, args):
        self.calls.append(("train", args.round_idx, device))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(self.id + 1)

    def on_after_local_training(self, train_data, device, args):
        self.calls.append(("after", self.local_test_dataset))

    def test(self, test_data, device, args):
        self.tested = args.round_idx
        torch.nn.init.zeros_(self.model.weight)
        return self.found


def test_trainer_is_called_in_fedmls_order() -> None:
    """Δ₀ = 1, Δ₁ = 2 in each of 8 weights, so S = 1.5 everywhere and N = E: FedNNNN is exact."""
    args = fedml_args(federated_optimizer="FedNNNN", beta=0.5, gamma=0.5, comm_round=2, output="a")
    found = {"test_correct": 3, "test_loss": 2.0, "test_total": 4, "f1": 0.7}
    dataset, trainer = two_clients(), Counting(args, found)
    result, record = simulate(dataset, linear(), trainer, args=args)
    # w₁ = w₀ + 0.75; the average of round 2 is w₁ + 1.5.
    assert_close(result["weight"], linear().weight + 0.75 + 1.5)
    client = trainer.calls[0][1]
    expected = [("before", client, 4, dataset[5][client])]
    expected += [("train", 0, CPU), ("after", dataset[6][client])]
    assert trainer.calls[:3] == expected
    assert trainer.calls[1::3] == [("train", r, CPU) for r in (0, 0, 1, 1)]
    tested = (record["test_acc"], record["test_loss"], record["test_metrics"])
    assert tested == (0.75, 0.5, {"f1": 0.7})
    adapter = ClientTrainerAdapter(trainer, linear(), args, CPU, dataset)
    adapter.test(dict(linear().named_parameters()), 7)  # by a rank without a client
    assert trainer.tested == 6


@pytest.mark.parametrize("given", [2, 2.0, np.int64(2), np.float64(2), torch.tensor(2)])
def test_number_of_classes_is_whole_in_any_type(given) -> None:
    assert engine_data([*two_clients()[:7], given], 2).num_classes == 2


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        (None, "client model: NoneType: must map names to tensors"),
        (linear().weight.detach().numpy(), "client model: ndarray: must map names to tensors"),
        (
            {name: w.detach().numpy() for name, w in linear().state_dict().items()},
            "client model: weight: ndarray: must be a tensor",
        ),
    ],
    ids=["nothing", "an array", "arrays"],
)
def test_trainer_that_gives_no_model_is_refused(monkeypatch, sent, line: str) -> None:
    monkeypatch.setattr(Counting, "get_model_params", lambda _: sent)
    args = fedml_args()
    with pytest.raises(fp.RunError, match=line):
        simulate(trainer=Counting(args), args=args)


def test_trainers_keys_under_other_names_may_be_absent() -> None:
    """What its test does not find is not recorded: no cross-entropy in its place."""
    args = fedml_args(output="a")
    for key in ("epochs", "batch_size", "learning_rate"):
        delattr(args, key)
    with pytest.raises(fp.UserError, match=r"batch_size: missing(.|\n)*learning_rate: missing"):
        simulate(args=args)
    args.lr = 0.1
    fedml.device.get_device(args)
    result, record = simulate(trainer=Counting(args, (0.5, 1.0, None, None)), args=args)
    assert_close(result["weight"], linear().weight + 1.5)
    assert [record.get(f"test_{key}") for key in ("acc", "loss", "metrics")] == [None] * 3
    with refused("args: train_args.batch_size: missing"):
        fedml.data.load(fedml_args(dataset="digits", batch_size=None, epochs=None))


def shuffled() -> list:
    """Two clients' loaders with generators of their own, which continue from pass to pass."""
    data, dataset = TensorDataset(torch.eye(12)[:, :3], torch.arange(12) % 2), two_clients()
    first, second, third = (torch.Generator().manual_seed(seed) for seed in range(3))
    drawn = BatchSampler(RandomSampler(data, generator=first), 5, drop_last=False)
    dataset[3] = DataLoader(data, 5, shuffle=True, generator=second)
    dataset[5][0] = DataLoader(data, 5, shuffle=True, generator=third)
    dataset[5][1] = DataLoader(data, None, sampler=drawn)
    return dataset


@pytest.mark.slow
@pytest.mark.every_python
@pytest.mark.parametrize("trainer", [None, ModelTrainerCLS])
def test_resume_of_shuffling_loaders_costs_no_bits(trainer) -> None:
    """With dropout, which draws from torch's global generator."""

    def after(output: str, *rounds: int) -> tuple:
        for number, last in enumerate(rounds):
            args = fedml_args(output=output, comm_round=last, resume=number > 0)
            net = nn.Sequential(nn.Dropout(0.3), linear())
            own = trainer and trainer(copy.deepcopy(net), args)
            result, record = simulate(shuffled(), net, own, args=args)
        return result, record["test_loss"]

    assert_close(after("once", 2), after("twice", 1, 2), rtol=0, atol=0)


@pytest.mark.parametrize("trainer", [None, Counting])
@pytest.mark.slow
@pytest.mark.every_python
def test_clients_without_data_are_in_no_cohort(trainer, caplog) -> None:
    """As FedML weights them with 0: S, E and α are of the two others; of all rounds said once."""
    dataset, (one, other) = two_clients(), two_clients()[5].values()
    empty = {0: [], 2: None, 4: [], 5: one, 6: DataLoader([], 4)}
    dataset[5] = {1: one, 3: other} | empty
    dataset[4] = {0: 0, 1: 4, 2: 0, 3: 4, 4: 4, 5: 0, 6: 3}
    args = fedml_args(output="out", comm_round=2, client_num_in_total=7, client_num_per_round=7)
    _, record = simulate(dataset, trainer=trainer and trainer(args), args=args)
    assert record["clients"] == 2
    [said] = [text for text in caplog.messages if "have no data" in text]
    assert said.startswith("clients 0, 2, 4, 5, 6 ")
    if trainer:  # which adds client + 1 to 8 weights
        assert record["client_norms"] == pytest.approx([2 * 8**0.5, 3 * 8**0.5, 4 * 8**0.5])


def test_data_set_without_a_test_is_not_tested(caplog) -> None:
    """FedML's values may be None: of the whole test, and of the clients' own."""
    dataset = two_clients()
    dataset[3], dataset[6] = None, dict.fromkeys(dataset[6])
    _, record = simulate(dataset, comm_round=1)
    assert (record["tested"], record["test_acc"], record["test_loss"]) == (False, None, None)
    assert "not tested: the data set has no test data" in caplog.messages


@pytest.mark.slow
@pytest.mark.every_python
def test_own_data_and_model_are_recorded_so(caplog) -> None:
    """A second run needs a word in the YAML; without a test set the clients' own data test."""
    names = {"dataset": "mnist", "model": "nnnn_mnist", "partition_method": "hetero"}
    names |= {"output": "~/out", "max_client_nrm": 1.0, "metrics_path": "m"}  # ~ is this folder
    found, without = [], two_clients()
    without[3] = None
    for dataset, values in ((two_clients(), {}), (without, {"overwrite": True})):
        _, last = simulate(dataset, args=fedml_args(**names | values))
        found.append(last | {"seconds": None})
        recipe = yaml.safe_load(Path("out/recipe.yaml").read_text())
        assert (recipe["data_args"], recipe["model_args"]) == ({"dataset": "mnist"}, CUSTOM)
    assert found[0] == found[1]
    for name in ("max_client_nrm: no such key", "metrics_path: without effect in a simulation"):
        assert len([line for line in caplog.messages if line.startswith(name)]) == 2
    with pytest.raises(fp.UserError, match=r"tracking_args\.resume: true, .* tracking_args\.over"):
        simulate()


@pytest.mark.parametrize("trainer", [None, ModelTrainerCLS])
def test_model_of_tied_weights_buffers_and_extra_state(trainer) -> None:
    """The state of the run is left in it; one that is no tensor stays as it is."""
    tied = [nn.Linear(3, 3) for _ in range(2)]
    tied[1].weight = tied[0].weight
    last = nn.Linear(3, 2) if trainer else Versioned(3, 2)
    model = nn.Sequential(*tied, nn.BatchNorm1d(3), last)
    own = trainer and trainer(copy.deepcopy(model), fedml_args())
    result, _ = simulate(model=model, trainer=own, comm_round=2)
    assert torch.equal(result["0.weight"], result["1.weight"])
    assert torch.equal(result["3.weight"], last.weight)
    assert result["2.num_batches_tracked"] == 2


def test_fedmls_own_tasks_keep_fedmls_trainer() -> None:
    x, nets = torch.randn(8, 3), [nn.Sequential(linear(), nn.Sigmoid()) for _ in range(3)]
    dataset = eight_values({k: [(x, (x[:, :2] > 0).float())] for k in range(2)})
    ours, theirs = (fedml_args(output=o, dataset="stackoverflow_lr", lr=0.1) for o in "ab")
    result, _ = simulate(dataset, nets[0], args=ours)
    expected, _ = simulate(dataset, nets[1], ModelTrainerTAGPred(nets[2], theirs), args=theirs)
    assert_close(result, expected, rtol=0, atol=0)
    assert not torch.equal(result["0.weight"], linear().weight)


def test_settings_that_are_not_ours_are_ignored() -> None:
    """``worker_num`` FedML sets, to m or the size of the MPI world; ``server_lr`` is FedOpt's."""

    def read(custom_trainer=False, **given) -> Recipe:
        ours = {"federated_optimizer": "FedNNNN", "beta": "7e-1", "gamma": 0.5}
        return script_recipe(fedml_args(**ours | given), custom_trainer=custom_trainer)

    foreign = {"comm": object(), "worker_num": 9, "process_id": 2, "enable_defense": True}
    foreign |= {"client_id_list": object(), "data_dir": object(), "gpu_id": None, "server_lr": 0.05}
    assert read(**foreign) == read()
    assert read().rule_settings == {"beta": 0.7, "gamma": 0.5}
    adam = read(federated_optimizer="FedAdam", server_lr=0.05, beta=None, gamma=None)
    assert adam.rule_settings["server_lr"] == 0.05
    assert read(True, client_optimizer="lbfgs").train_args.client_optimizer == "lbfgs"
    for given, meant in (("True", True), ("false", False), ("1", True)):  # from the environment
        assert read(using_mlops=given).common_args.using_mlops is meant


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"prox_mu": 1, "yaml_config_file": "a.yaml"}, "a.yaml: train_args.prox_mu: 1: "),
        ({"client_num_in_total": 3}, ".*client_num_in_total: 3: the data set has no client 2"),
        ({"backend": "NCCL"}, "comm_args.backend: 'NCCL': .* 'sp' or 'MPI'"),
        *(
            ({f"enable_{of}": True}, f"enable_{of}: true: ")
            for of in ("attack", "defense", "dp", "fhe", "contribution")
        ),
        ({"output": "."}, "args.output: "),
        ({"dataset": two_clients()[:7]}, "dataset: must be FedML's eight values"),
        ({"dataset": [*two_clients()[:5], [], {}, 2]}, r"dataset\[5\]: list: "),
        ({"dataset": [*two_clients()[:4], {0: 0, 1: 0}, *two_clients()[5:]]}, r"dataset\[4\]: no"),
        ({"dataset": [*two_clients()[:7], None]}, r"dataset\[7\]: null: must be the number of"),
    ],
)
def test_simulation_refuses_what_does_not_fit(values, line) -> None:
    with refused(line):
        simulate(**values)
    assert not Path("out").exists()


def test_fedmls_models_of_flat_images_are_refused(images) -> None:
    """Our images have a channel; the line says what to put before the model."""
    args = fedml_args(client_num_in_total=3, round_idx=0, dataset="mnist", model="lr")
    fedmls = SimpleNamespace(**vars(args) | {"federated_optimizer": "FedAvg"})
    model = fedml.model.create(fedmls, 10)
    dataset, trainer = fedml_dataset(images, 5, 0), fp.FedNNNNClientTrainer(model, args)
    for call in (
        lambda: simulate(dataset, model, args=args),
        lambda: trainer.train(dataset[5][0], CPU, args),
    ):
        with refused(r"model_args\.model: FedML's \w+: our images are \[n, 1, 8, 8\].*Flatten"):
            call()


def fedavg(net: nn.Module, batches: dict[int, list]) -> Tensor:
    """w ← Σ n_k/n w_k, where w_k is w trained on client k's data."""
    net = copy.deepcopy(net)
    samples = torch.tensor([float(sum(len(y) for _, y in own)) for own in batches.values()])
    for _ in range(ROUNDS):
        trained = []
        for own in batches.values():
            model = copy.deepcopy(net)
            for x, y in own:
                model.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                torch.optim.SGD(model.parameters(), RATE).step()
            trained.append(parameters_to_vector(model.parameters()).detach())
        vector_to_parameters(samples / samples.sum() @ torch.stack(trained), net.parameters())
    return parameters_to_vector(net.parameters()).detach()


@pytest.mark.slow
@pytest.mark.every_python
def test_fedavg_is_the_plain_loop() -> None:
    generator = torch.Generator().manual_seed(0)

    def batch(size: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(size, 4, generator=generator)
        return x, torch.randint(2, (size,), generator=generator)

    batches = {k: [batch(4), batch(2 + k)] for k in range(CLIENTS)}
    values = {"client_num_in_total": CLIENTS, "client_num_per_round": CLIENTS, "output": "run"}
    values |= {"comm_round": ROUNDS, "learning_rate": RATE, "client_weighting": "samples"}
    net = nn.Linear(4, 2)
    expected = fedavg(net, batches)
    fedml.FedMLRunner(fedml_args(**values), CPU, eight_values(batches), net).run()
    assert_close(parameters_to_vector(net.parameters()).detach(), expected)
