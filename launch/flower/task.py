"""The task: a small network, each client's digits, local training, the test."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fednnnn_plugin as fp

TEST = 300  # images, the last ones


class Net(nn.Sequential):
    """Two layers, for images of 8 × 8 pixels."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def images() -> TensorDataset:
    """All 1,797 images, in [0, 1], with their labels."""
    digits = load_digits()
    return TensorDataset(torch.tensor(digits.images / 16).float(), torch.tensor(digits.target))


def train_loader(partition: int, partitions: int, batch_size: int) -> DataLoader:
    """One client's images: those of about two digits, so that the clients differ."""
    inputs, labels = images()[:-TEST]
    shares = fp.partition(labels, partitions, method="dirichlet", alpha=0.1, min_samples=1)
    share = torch.as_tensor(shares[partition])
    return DataLoader(TensorDataset(inputs[share], labels[share]), batch_size, shuffle=True)


def train(net: nn.Module, loader: DataLoader, epochs: int, learning_rate: float) -> float:
    """Train, and return the last epoch's mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), learning_rate)
    for _ in range(epochs):
        total = 0.0
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(inputs), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
    return total / len(loader.dataset)


def test(net: nn.Module) -> tuple[float, float]:
    """Return loss and accuracy on the test images."""
    inputs, labels = images()[-TEST:]
    with torch.no_grad():
        outputs = net(inputs)
    loss = nn.functional.cross_entropy(outputs, labels).item()
    return loss, (outputs.argmax(1) == labels).float().mean().item()
