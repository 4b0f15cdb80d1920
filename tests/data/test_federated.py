"""From a specification to what clients hold: loaded, normalised, divided."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits as bundled

from fednnnn_plugin.data.federated import DataSpec, FederatedData, load_federated
from fednnnn_plugin.data.load import is_present, load_images
from fednnnn_plugin.errors import UserError

DIGITS = DataSpec(
    dataset="digits",
    data_cache_dir=Path("/nonexistent"),
    download=False,
    partition_method="n_class",
    partition_sizes="balanced",
    classes_per_client=2,
    power_law_exponent=1.0,
    min_samples=10,
    num_clients=20,
    seed=3,
)


def test_digits_between_20_clients() -> None:
    data = load_federated(DIGITS)
    assert data.num_clients == 20
    assert data.num_classes == 10
    assert data.class_names == tuple("0123456789")
    assert data.train_images.shape == (1437, 1, 8, 8)
    assert data.test_images.shape == (360, 1, 8, 8)
    assert {t.dtype for t in (data.train_images, data.test_images)} == {torch.float32}
    assert data.train_images.is_contiguous()
    every = torch.cat(data.client_indices).sort().values
    assert torch.equal(every, torch.arange(1437))
    for client in range(20):
        images, labels = data.client_data(client)
        assert len(labels) == len(images) == data.client_size(client)
        assert len(labels.unique()) == 2
        assert torch.equal(images[5], data.train_images[data.client_indices[client][5]])


def test_to_keeps_everything() -> None:
    data = load_federated(DIGITS)
    moved = data.to("cpu")
    assert moved.train_images is data.train_images
    assert torch.equal(moved.client_indices[7], data.client_indices[7])
    assert moved.num_classes == 10
    assert moved.class_names == data.class_names


def test_classes_without_names_are_called_by_their_labels() -> None:
    images, labels = torch.zeros(2, 1), torch.tensor([0, 2])
    data = FederatedData(images, labels, (torch.arange(2),), images, labels, 3)
    assert data.class_names == ("0", "1", "2")


def test_a_dirichlet_partition_by_its_alpha() -> None:
    spec = replace(DIGITS, partition_method="dirichlet")
    most = []
    for alpha in (0.05, 100.0):
        data = load_federated(replace(spec, partition_alpha=alpha))
        assert {data.client_size(k) for k in range(20)} == {71, 72}
        counts = [torch.bincount(data.client_data(k)[1]).max().item() for k in range(20)]
        most.append(sum(counts) / 20)
    assert most[0] > 2 * most[1]
    with pytest.raises(UserError, match=r"^data_args.partition_alpha: 0: .* greater than 0"):
        load_federated(replace(spec, partition_alpha=0))


def test_own_inputs_of_any_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "import numpy as np\ndef load():\n    x = np.arange(60.).reshape(20, 3)\n"
    (tmp_path / "own_table.py").write_text(
        text + "    return x, np.arange(20) % 4, x[:5], x[:5, 0].astype(int) % 4\n"
    )
    data = load_federated(replace(DIGITS, dataset="own_table:load", allow_code=True, num_clients=4))
    assert data.train_images.shape == (20, 3)
    assert data.client_data(0)[0].shape == (5, 3)
    assert data.num_classes == 4


@pytest.mark.slow
def test_digits_load_where_an_import_hook_hides_where_scikit_learn_lies() -> None:
    """As an old wandb's does: the module's spec has no origin."""
    code = """
import importlib.util
found = importlib.util.find_spec
def hiding(name, *rest):
    spec = found(name, *rest)
    if name == "sklearn" and spec is not None:
        spec.origin = None
    return spec
importlib.util.find_spec = hiding
from pathlib import Path
from fednnnn_plugin.data.load import load_images
print(len(load_images("digits", Path(), download=False, seed=0).pixels.train_labels))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1437\n"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dataset": "minst"}, "dataset: 'minst': must be one of .*mnist"),
        ({"dataset": None}, "dataset: None: must be one of digits, mnist, cifar10$"),
        ({"dataset": "mnist"}, "/nonexistent: no MNIST here"),
        (
            {"num_clients": 4},
            r"train_args.client_num_in_total: 4: with data_args.classes_per_client=2 they ",
        ),
        (
            {"partition_sizes": "power_law", "min_samples": 500},
            r"data_args.min_samples: 500: .* with train_args.client_num_in_total=20$",
        ),
    ],
)
def test_what_cannot_be_loaded_or_divided(changed: dict, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        load_federated(replace(DIGITS, **changed))


def test_what_is_present(tmp_path: Path, tiny_mnist: Path) -> None:
    assert is_present("digits", tmp_path / "gone")
    assert is_present("mnist", tiny_mnist)
    assert not is_present("mnist", tmp_path / "gone")
    assert not is_present("cifar10", tmp_path)
    (tmp_path / "cifar10" / "train" / "kittens").mkdir(parents=True)
    assert not is_present("cifar10", tmp_path)
    (tmp_path / "cifar-10-python.tar.gz").touch()
    assert is_present("cifar10", tmp_path)
    assert not is_present("unknown", tmp_path)


def test_every_digit_is_in_one_part_with_its_label() -> None:
    pixels = load_images("digits", DIGITS.data_cache_dir, download=False, seed=5).pixels
    images = torch.cat([pixels.train_images, pixels.test_images]).reshape(1797, 64)
    labels = torch.cat([pixels.train_labels, pixels.test_labels])
    dealt = sorted(map(tuple, torch.cat([labels[:, None], images], dim=1).tolist()))
    source = bundled()
    rows = np.concatenate([source.target[:, None], source.data], axis=1).astype(int)
    assert dealt == sorted(map(tuple, rows.tolist()))


def test_digits_are_normalised_to_mean_0_and_standard_deviation_1() -> None:
    dataset = load_images("digits", DIGITS.data_cache_dir, download=False, seed=0)
    images = dataset.normalised(dataset.pixels.train_images)
    assert images.dtype == torch.float32
    assert images.is_contiguous()
    assert images.mean().item() == pytest.approx(0, abs=1e-6)
    assert images.std(correction=0).item() == pytest.approx(1, abs=1e-6)
    assert DIGITS.data_cache_dir.exists() is False
