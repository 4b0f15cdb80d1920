"""Our data sets and partitions through ``fedml.data.load``."""

import logging

import fedml
import pytest
import torch
from fedml.data import data_loader
from torch import nn
from torch.utils.data import DataLoader

import fednnnn_plugin as fp
from fednnnn_plugin.fedml.loaders import engine_data, our_data
from fednnnn_plugin.fedml.settings import script_recipe
from fednnnn_plugin.rounds.loaders import LoaderData

from .rounds import CPU, fedml_args, refused

CLIENTS = 5
OURS = {"federated_optimizer": "FedNNNN", "beta": 0.5, "gamma": 0.5}


def load(**values) -> tuple[list, int]:
    digits = {"dataset": "digits", "partition_method": "iid", "model": "nnnn_digits"}
    digits |= {"client_num_in_total": CLIENTS, "client_num_per_round": 3, "batch_size": 10}
    return fedml.data.load(fedml_args(**digits | {"federated_optimizer": "FedAvg"} | values))


def labels_of(loader) -> list[int]:
    return sorted(torch.cat([y for _, y in loader]).tolist())


def test_data_are_fedmls_eight_values() -> None:
    dataset, classes = load()
    train_size, test_size, train, test, sizes, local, local_test, classes_again = dataset
    assert (train_size, test_size, classes, classes_again) == (1437, 360, 10, 10)
    assert (train_size, test_size) == (len(labels_of(train)), len(labels_of(test)))
    assert sizes == {k: len(local[k].dataset) for k in range(CLIENTS)}
    for loader in (train, test, *local.values(), *local_test.values()):
        assert isinstance(loader, DataLoader)
        assert len([*loader]) == len(loader)
        assert all(x.shape[1:] == (1, 8, 8) and x.dtype == torch.float32 for x, _ in loader)
    assert {len(y) for _, y in local[0]} == {10, sizes[0] % 10 or 10}
    for whole, parts in ((train, local), (test, local_test)):
        together = sorted(label for part in parts.values() for label in labels_of(part))
        assert together == labels_of(whole)
    x, y = next(iter(test))  # it agrees with its data set image by image
    again = DataLoader(test.dataset, batch_size=len(y))  # as FedML's split_dl makes one
    torch.testing.assert_close(next(iter(again)), [x, y], rtol=0, atol=0)
    many, _ = load(client_num_in_total=362, batch_size=-1)  # more clients than test images
    assert [len(many[6][k].dataset) for k in (0, 359, 360, 361)] == [1, 1, 0, 0]
    assert [len(y) for _, y in many[5][0]] == [many[4][0]]


def test_deployment_holds_no_samples_out() -> None:
    """Its clients have no test of each; a simulation's train without what they are tested on."""
    (sizes, held), (_, fewer) = (
        [load(**values, per_client=per_client)[0][4] for per_client in (False, True)]
        for values in (OURS | {"training_type": "cross_silo", "role": "client"}, OURS)
    )
    assert sizes == held
    assert all(fewer[k] < sizes[k] for k in range(CLIENTS))


def test_data_are_shuffled_every_pass_by_the_seed() -> None:
    before = torch.get_rng_state()
    loaders = [load(random_seed=seed)[0][5][1] for seed in (0, 0, 1)]
    (first, second), again, other = (
        [torch.cat([y for _, y in loader]).tolist() for _ in range(2)] for loader in loaders
    )
    assert first != second
    assert sorted(first) == sorted(second)
    assert again == [first, second]
    assert other[0] != first
    assert torch.equal(torch.get_rng_state(), before)


def test_data_of_an_untouched_set_are_tensors() -> None:
    dataset, _ = load()
    assert our_data(dataset) is dataset[3].data
    test, sizes, local, tests = dataset[3:7]
    for changed in (
        (list(test), sizes, local, tests),
        (test, sizes, local | {1: list(local[1])}, tests),
        (test, sizes, local | {1: local[0]}, tests),
        (test, sizes, {k: local[k] for k in range(CLIENTS - 1)}, tests),
    ):
        assert our_data([*dataset[:3], *changed, dataset[7]]) is None


def test_test_loaders_that_replace_ours_are_tested_on() -> None:
    dataset, _ = load()
    assert engine_data(dataset, CLIENTS) is dataset[3].data
    test, tests = dataset[3], dataset[6]
    for new, local in ((tests[0], tests), (test, tests | {1: list(tests[1])}), (test, None)):
        found = engine_data([*dataset[:3], new, *dataset[4:6], local, dataset[7]], CLIENTS)
        assert isinstance(found, LoaderData)
        assert sum(len(y) for _, y in found.test_loader) == sum(len(y) for _, y in new)


def test_data_of_ours_train_fedmls_optimizers(caplog, own_folder) -> None:
    by_class = {"partition_method": "dirichlet_by_class", "batch_size": 50}
    dataset, classes = load(**by_class)
    with refused("data_args.partition_sizes: 'power_law': "):
        load(partition_sizes="power_law", **by_class)
    args = fedml_args(federated_optimizer="FedAvg", ci=0, client_num_in_total=CLIENTS)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    with caplog.at_level(logging.INFO):
        fedml.FedMLRunner(args, CPU, dataset, model).run()
    reported = [r.msg["test_acc"] for r in caplog.records if "test_acc" in str(r.msg)][-1]
    correct = sum((model(x).argmax(1) == y).sum().item() for x, y in dataset[3])
    assert reported == pytest.approx(correct / 360)


FEDMLS, FOUND, OTHERS = "FedML's", "ours", "data_args.dataset: .* cifar10, digits, .*mnist"
OTHER = OURS | {"dataset": "cifar100"}


@pytest.mark.parametrize(
    ("values", "whose"),
    [
        *(({"partition_method": method}, FEDMLS) for method in (None, "hetero", 3)),
        *(({"dataset": name}, FEDMLS) for name in ("mnist", None)),
        ({"dataset": "hdfs://somewhere", **OURS}, FEDMLS),
        ({"partition_sizes": "power_law", "partition_method": None}, FEDMLS),
        (OURS | {"partition_method": None}, FOUND),
        ({"partition_sizes": "balanced"}, FOUND),
        ({"dataset": "image_folder"}, FOUND),
        (OTHER | {"partition_method": "dirichlet_by_class"}, OTHERS),
        (OTHER | {"classes_per_client": 2}, OTHERS),
    ],
)
def test_data_are_ours_by_our_names(values, whose, tmp_path, monkeypatch) -> None:
    """FedML's are left to FedML, ours looked for in our place, and others not split our way."""
    assert fedml.data.load is data_loader.load
    monkeypatch.setattr(data_loader, "load_synthetic_data", lambda args: FEDMLS)
    given = {"dataset": "mnist", "data_cache_dir": str(tmp_path), "data_dir": str(tmp_path)}
    if whose == FEDMLS:
        assert load(**given | values) == FEDMLS
        return
    with pytest.raises(fp.UserError, match=str(tmp_path) if whose == FOUND else whose):
        load(**given | values)


def test_keys_of_a_named_data_set_count(tmp_path) -> None:
    given = {"dataset": "EMNIST", "data_cache_dir": str(tmp_path), "split": "letters"}
    with refused("data_cache_dir: .*emnist-letters-train-images"):
        load(**given)
    assert script_recipe(fedml_args(**given | OURS)).data_args.arguments == {"split": "letters"}
