"""``fp.run`` with what does not fit: one line that names the key, before anything is written.

Its own arguments: ``test_run.py``; the command's and a recipe's: ``test_cli.py``, ``recipe/``.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, TensorDataset

import fednnnn_plugin as fp
from fednnnn_plugin.assembly.trial_pass import _single_batches
from fednnnn_plugin.client.local_sgd import LocalSGD
from fednnnn_plugin.rounds.loaders import LoaderData

from ..tiny import DATA, HOSPITALS, NET, PARTS, TEST, Start, X, Y

FEDAVG, FOUR = {"recipe": "digits_noniid_b_fedavg"}, {"client_num_in_total": 4}
OBJECTS = FOUR | {"model": NET, "data": DATA, "client_num_per_round": 1}
SCAFFOLD = FEDAVG | {"client_method": "scaffold"}
NUMBERS = FEDAVG | FOUR | {"data": "own:numbers", "model": "own:net", "loss": "mse"}
BETAS = {"client_optimizer_args": {"betas": 1}}
TOKENS = FEDAVG | FOUR | {"data": "own:tokens", "model": "own:tagger"}


SET = ConcatDataset([TensorDataset(*TEST)])


def normed(classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, classes))


# Of batches of 16, the last one of client 3 is a single sample.
ALONE = (
    [*zip(X.split((30, 30, 31, 33, 16)), Y.split((30, 30, 31, 33, 16)), strict=True)][:4],
    TEST,
)
ALONE_CUT = (
    [
        DataLoader(TensorDataset(*part), batch_sampler=BatchSampler(range(len(part[1])), 16, False))
        for part in ALONE[0]
    ],
    TEST,
)


class Masking(nn.Module):
    """Looks up the tokens from ``least`` on."""

    def __init__(self, classes: int, least: int = -1) -> None:
        super().__init__()
        self.words, self.head, self.least = nn.Embedding(10, 3), nn.Linear(3, classes), least

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x >= self.least
        found = torch.zeros(*x.shape, 3)
        found[mask] = self.words(x[mask])
        return self.head(found.mean(1))


def weight_normed() -> nn.Module:
    """Has seen a batch, so that its weight is computed."""
    layers = nn.Sequential(nn.Embedding(10, 3), nn.utils.weight_norm(nn.Linear(3, 3)))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(18, 4))
    model(torch.zeros(1, 6, dtype=torch.int64))
    return model


def masked(method: str) -> nn.Module:
    """Has a hook of the gradient that keeps a row of its weight as it is."""
    model = nn.Linear(6, 4)
    getattr(model.weight, method)(lambda gradient: gradient)
    return model


TOKENS_6 = torch.arange(140 * 6).reshape(140, 6) % 10
TEN, PADDED = ((x, Y, x[:4], Y[:4]) for x in (TOKENS_6, TOKENS_6.where(TOKENS_6 != 9, -1)))
FROM_ONE, TWO = (X, Y + 1, TEST[0], TEST[1] + 1), (X, Y % 2, TEST[0], TEST[1] % 2)
IMAGES = torch.zeros(8, 1, 8, 8, dtype=torch.uint8)


class Halving(torch.optim.SGD):
    """Takes two parameters at most."""

    def step(self, closure: Any = None) -> Any:
        if len(self.param_groups[0]["params"]) > 2:
            raise ValueError("too many")


FIRST_STEP = r"^the first step of client \d failed: ValueError: "


def rows(usual: dict[str, Any], *rows: tuple[dict[str, Any], str]) -> list[Any]:
    """Add what rows have in common to what each is given."""
    return [(usual | given, named) for given, named in rows]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        *rows(
            OBJECTS,
            ({"model_args.widht": 8}, r"^model_args\.widht: .* width\?"),
            ({"data": HOSPITALS, "data_args.shfit": 1}, r"^data_args\.shfit: .*shift\?"),
            ({"data": (PARTS[:3], TEST)}, r"^train_args\.client_num_in_total: 4: "),
            ({"data": (*DATA, [[0], [1], [2], [140]])}, "^data_args.*client 3: position 140: "),
            ({"data": (*DATA, 4)}, r"^data_args\.dataset: .*clients: a int: "),
            ({"data": ([*PARTS[:3], (X.long(), Y)], TEST)}, "^data_args.*client 3: inputs: "),
            ({"data": (X, Y)}, r"^data_args\.dataset: <object>:data: "),
            ({"data": ([TensorDataset(X)] * 4, TensorDataset(*TEST))}, "^data_args.*client 0: "),
            ({"data": ([*PARTS[:3], (X, Y[1:])], SET)}, "client 3: labels: 139, for 140 "),
            (
                {"data": ([*PARTS[:3], (IMAGES, Y[:8])], SET)},
                r"client 3: inputs: torch\.uint8 .*beside",
            ),
            ({"data": ([*PARTS[:3], 4], SET)}, "^data_args.*client 3: a int: "),
            ({"data": ([], SET)}, "^data_args.*clients: a list of 0: "),
            ({"model_args.model": "nnnn_mnist"}, r"^overrides: model_args\.model: "),
            ({"rule": torch.optim.SGD}, r"^train_args\.federated_optimizer: .*SGD: "),
            ({"client_optimizer": Halving}, FIRST_STEP + r"too many \(.*test_refusals\.py, line "),
            ({"client_optimizer": "muon"}, FIRST_STEP + "Muon only supports 2D"),
            ({"model": nn.LazyLinear(4)}, r"^model_args\.model: "),
            ({"model": normed, "batch_size": 1}, "batch_size: 1: "),
            (
                {"data": ALONE, "model": normed, "batch_size": 16},
                "batch_size: 16: .*client 3, .* 33 ",
            ),
            ({"data": ALONE_CUT, "model": normed, "batch_size": 9}, "batch_size: 16: .*client 3"),
            ({"data": PADDED, "model": Masking(4)}, r"token -1: words of the model"),
            ({"data": TEN, "model": weight_normed()}, r"cannot be copied: 1\.weight is computed"),
            ({"model": masked("register_hook")}, r"^model_args\.model: .*Linear: weight: .* hook"),
            ({"model": masked("register_post_accumulate_grad_hook")}, ": weight: has a hook"),
            ({"data": FROM_ONE, "model": nn.Linear(6, 4)}, r"^model_args\.model: .*y - 1"),
            ({"data": TWO, "model": nn.Linear(6, 1)}, r"^model_args\.model: .*bce_with_logits"),
            ({"data": TWO, "model": nn.Linear(6, 4), "metrics": ["roc_auc_ovr"]}, "roc_auc_ovr: "),
            (
                {"model": nn.Linear(6, 9), "loss": lambda x, y: x.mean(), "metrics": ["f1_macro"]},
                "metrics: f1_macro: ",
            ),
        ),
        *rows(
            {},
            ({"client_lr": 0.1}, r"client_lr: .* train_args\.learning_rate"),
            ({"momentum": 0.9}, r"momentum: .* train_args\.client_optimizer_args"),
            ({"learning_rate": [0.1, 0.01]}, r"learning_rate: a list: .*learning_rate_decay"),
            ({"federated_optimizer": "FedMom"}, "federated_optimizer: .* Momentum"),
            ({"federated_optimizer": "SCAFFOLD"}, "federated_optimizer: .*client_method: scaffold"),
            ({"client_sampling": lambda: []}, "client_sampling: .*TypeError"),
            ({"client_sampling": 3}, "client_sampling: .*int"),
            ({"client_sampling": "own:absent"}, "client_sampling: .*absent"),
            ({"client_sampling": "samples"}, "client_sampling: .*uniform"),
        ),
        *rows(
            SCAFFOLD,
            ({"client_method": "own:Wrong"}, "client_method: .*last"),
            ({"client_method": "own:Raises"}, "client_method: .*raised"),
            ({"client_method": "own:None"}, "client_method: .*None"),
            ({"client_method": "scafold"}, "client_method: .*scafold"),
            ({"client_optimizer": "adam"}, "client_optimizer: .*adam"),
            ({"prox_mu": 0.1}, r"prox_mu: .*0\.1"),
            ({"client_method": "fedprox"}, "prox_mu: "),
            ({"federated_optimizer": "PaperFedProx", "prox_mu": 0.1}, "client_method: .*scaffold"),
        ),
        *rows(
            NUMBERS,
            ({"client_optimizer": "adm"}, "client_optimizer: .*adm"),
            ({"client_optimizer": partial(torch.optim.SGD, lr=1)}, "client_optimizer: lr: "),
            (BETAS, r"client_optimizer_args\.betas: "),
            (BETAS | {"client_optimizer": "adam"}, "client_optimizer: adam: "),
            ({"client_optimizer_args": {"lr": 1}}, r"client_optimizer_args\.lr: "),
            ({"client_optimizer": "Rprop", "weight_decay": 0.1}, "weight_decay: "),
            ({"learning_rate_decay": 1.5}, "learning_rate_decay: 1.5"),
            ({"metrics": ["f1_makro"]}, "metrics: .*f1_macro"),
            ({"metrics": ["r2", "r2"]}, r"validation_args\.metrics: two"),
        ),
        *rows(
            TOKENS,
            ({"loss": "hinge"}, r"train_args\.loss: .*hinge"),
            ({"loss": "bce_with_logits"}, r"train_labels: from -100 to 3: "),
            ({"loss": lambda outputs: outputs}, r"^train_args\.loss: .*TypeError"),
            ({"loss": torch.nn.CrossEntropyLoss}, r"^train_args\.loss: .*CrossEntropyLoss"),
            ({"loss": lambda *_: torch.ones(2)}, r"^train_args\.loss: "),
        ),
    ],
)
def test_run_refuses_what_does_not_fit(start: Start, given: dict[str, Any], named: str) -> None:
    with pytest.raises(fp.UserError, match=named) as refused:
        start("run", allow_code=True, **given)
    assert "\n" not in str(refused.value)
    assert not Path("run").exists()


class InOrder:
    """A batch sampler that names the size of its batches alone."""

    batch_size = 16

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[*range(self.count)]])

    def __len__(self) -> int:
        return 1


@pytest.mark.slow
def test_run_takes_what_only_looks_wrong(start: Start) -> None:
    """Padding that is masked; batch samplers of a user's own; code that may run by another word."""
    loaders = [DataLoader(TensorDataset(*p), batch_sampler=InOrder(len(p[1]))) for p in PARTS]
    for name, given in (
        ("masked", {"data": PADDED, "model": Masking(4, least=0)}),
        ("batches", {"data": (loaders, TEST), "model": normed}),
    ):
        run = start(name, comm_round=1, allow_code=None, **OBJECTS | given)
        assert run.summary.rounds == 1


def test_batch_that_no_client_takes_is_not_tried(start: Start) -> None:
    """Of 33 samples in batches of 16 the last one is alone, in a pass that ends before it."""
    one_step = {"epochs": None, "local_steps": 1, "batch_size": 16}
    run = start("short", comm_round=1, **OBJECTS | {"data": ALONE, "model": normed} | one_step)
    assert run.summary.rounds == 1


def test_single_batches_are_those_of_the_sampler() -> None:
    """A FedML script may say another number of samples."""
    sgd = LocalSGD(epochs=1, batch_size=4, learning_rate=0.1)
    for there, said, found in ((9, 8, ["client 0, which has 9 samples"]), (8, 9, [])):
        loader = DataLoader(TensorDataset(X[:there], Y[:there]), 4)
        data = LoaderData({0: loader}, {0: said}, loader, 4)
        assert [whose for _, whose in _single_batches(data, sgd)] == found
