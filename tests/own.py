"""A user's own code: a module of theirs by name, or what cells of a notebook define.

Tests take it by :func:`tiny.cell`, as a notebook has it, or from the current directory, where
the fixture `start` puts it as ``own.py``.
"""

import random
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fednnnn_plugin import ClientMethod
from fednnnn_plugin.server.rules import positive


def made(labels):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(43, 6, generator=generator)
    y = labels(x, generator)
    return x[:33], y[:33], x[33:], y[33:], torch.arange(33).split((7, 12, 5, 9))


def numbers(shift=0.0):
    return made(lambda x, _: x @ torch.arange(6.0) / 5 + shift)


def several():
    return made(lambda x, _: (x[:, :3] > 0).float())


def tokens():
    def labels(x, generator):
        drawn = (x[:, :2] > 0).long() + 2 * (x[:, 2:4] > 0)
        return drawn.masked_fill(torch.rand(drawn.shape, generator=generator) < 0.2, -100)

    return made(labels)


def tensors():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(180) % 4
    inputs = torch.randn(180, 6, generator=generator) + labels.view(-1, 1)
    return inputs[:140], labels[:140], inputs[140:], labels[140:]


def hospitals(shift=0.0):
    x, y, *test = tensors()
    return x + shift, y, *test, torch.arange(140).split((30, 50, 20, 40))


class Hospital(Dataset):
    """Samples that are transformed when they are asked for."""

    def __init__(self, inputs, labels):
        self.inputs, self.labels = inputs, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.inputs[index] + torch.randn(()) / 10, self.labels[index]


def datasets(shift=0.0):
    x, y, *test, clients = hospitals(shift)
    return {f"clinic {min(own)}": Hospital(x[own], y[own]) for own in clients}, test


def words():
    labels = torch.arange(48) % 3
    inputs = torch.randint(9, (48, 5))
    return inputs[:36], labels[:36], inputs[36:], labels[36:]


def convolution(classes):
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(144, classes))


def net(classes):
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, classes))


def tagger(_):  # for a vocabulary of which the labels have four
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 10), nn.Unflatten(1, (5, 2)))


class Net(nn.Module):
    def __init__(self, classes, width=8, p=0.5):
        super().__init__()
        self.fc1, self.dropout = nn.Linear(6, width), nn.Dropout(p)
        self.fc2 = nn.Linear(width, classes)

    def forward(self, x):
        return self.fc2(self.dropout(torch.relu(self.fc1(x))))


def reader(_):
    return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 3))


def huber(outputs, targets):
    return F.smooth_l1_loss(outputs.squeeze(-1), targets)


def worst(outputs, targets):
    return (outputs.squeeze(-1) - targets).abs().max()


worst.higher_is_better = False


def the_higher_the_oftener(number, clients, size, generator):
    return torch.multinomial(torch.arange(clients) + number / 9, size, generator=generator)


def by_turns(number, clients, size, generator):
    first = random.randrange(clients) + int(torch.randint(clients, (1,), generator=generator))
    return [(first + number + k) % clients for k in range(size)]


def noisy(x, generator):
    noise = torch.rand(x.shape, generator=generator) + torch.rand(()) + random.random()
    return (x + 5 * noise).to(x.dtype)


def slower(number):
    return 1 / number


class Drag(ClientMethod):
    """Each client is drawn back to where it ended before, and by what all of them did."""

    keys: ClassVar = {"drag_mu": positive(default=0.5)}
    sends, keeps, returns = ("mean",), ("last", "rounds"), ("update",)

    def __init__(self, drag_mu):
        self.prox_mu = drag_mu

    def correction(self, sent, kept):
        noise = torch.rand(()) / 100
        return noise - (sent["mean"] + kept["last"]) / (1 + kept["rounds"])

    def finish_client(self, local):
        kept = {"last": local.update, "rounds": local.kept["rounds"] + 1}
        return kept, {"update": local.update}

    def finish_round(self, sent, returned, share):
        return {"mean": sent["mean"] / 2 + share * returned["update"] + torch.rand(()) / 100}


class Wrong(ClientMethod):
    keeps = ("last",)

    def finish_client(self, local):
        return {"last": local.update[0]}, {}


class Raises(ClientMethod):
    returns = ("x",)

    def finish_client(self, local):
        raise ValueError("no")
