"""Losses, optimizers, metrics and targets of a recipe's choice, against a plain loop."""

import copy
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import f1_score, r2_score
from torch import Tensor, nn
from torch.nn import functional as F

import fednnnn_plugin as fp
from fednnnn_plugin.engine.scorer import Scorer

RECIPE, ROUNDS, SIZES = "digits_noniid_b_fedavg", 3, (7, 12, 5, 9)
QUICK: dict[str, Any] = {
    "comm_round": ROUNDS,
    "epochs": 2,
    "batch_size": -1,  # so that neither the order of samples nor the draw of clients matters
    "client_num_in_total": len(SIZES),
    "client_num_per_round": len(SIZES),
    "learning_rate": 0.1,
    "precision": "fp64",
    "checkpoint_every": 1,
    "device_args.using_gpu": False,
    "validation_args.frequency_of_the_test": 1,
}
MODULE = """
import torch
from torch import nn
from torch.nn import functional as F

def made(labels):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(43, 6, generator=generator)
    y = labels(x, generator)
    return x[:33], y[:33], x[33:], y[33:], torch.arange(33).split((7, 12, 5, 9))

def numbers():
    return made(lambda x, _: x @ torch.arange(6.0) / 5)

def several():
    return made(lambda x, _: (x[:, :3] > 0).float())

def tokens():
    def labels(x, generator):
        drawn = (x[:, :2] > 0).long() + 2 * (x[:, 2:4] > 0)
        return drawn.masked_fill(torch.rand(drawn.shape, generator=generator) < 0.2, -100)
    return made(labels)

class Net(nn.Module):
    def __init__(self, outputs=1, length=0):
        super().__init__()
        self.length, self.fc1 = length, nn.Linear(6, 5)
        self.fc2 = nn.Linear(5, outputs * max(length, 1))

    def forward(self, x):
        out = self.fc2(torch.tanh(self.fc1(x)))
        return out.unflatten(1, (-1, self.length)) if self.length else out

def net(num_classes):
    return Net(num_classes)

def tagger(num_classes):
    return Net(5, 2)  # a vocabulary of which the labels have four

def huber(outputs, targets):
    return F.smooth_l1_loss(outputs.squeeze(-1), targets)

def worst(outputs, targets):
    return (outputs.squeeze(-1) - targets).abs().max()
worst.higher_is_better = False
"""
own: dict[str, Any] = {}
exec(MODULE, own)

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plain_mse": ("numbers", "net", {"loss": "mse", "weight_decay": 0.01}),
    "adam_mse": (
        "numbers",
        "net",
        {
            **{"loss": "mse", "client_optimizer": "adam", "learning_rate_decay": 0.5},
            **{"client_optimizer_args": {"betas": [0.8, 0.95]}, "max_grad_norm": 0.1},
        },
    ),
    "proximal_huber": (
        "numbers",
        "net",
        {
            **{"loss": "own_options:huber", "federated_optimizer": "PaperFedProx", "prox_mu": 0.3},
            **{"client_optimizer": "RMSprop", "weight_decay": 0.02},
        },
    ),
    "adamw_bce": (
        "several",
        "net",
        {"loss": "bce_with_logits", "client_optimizer": "AdamW", "weight_decay": 0.05},
    ),
    "momentum_tokens": (
        "tokens",
        "tagger",
        {"client_optimizer_args": {"momentum": 0.9}, "max_grad_norm": 0.5, "weight_decay": 0.01},
    ),
}
_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": lambda outputs, targets: ((outputs.squeeze(-1) - targets) ** 2).mean(),
    "own_options:huber": own["huber"],
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "cross_entropy": F.cross_entropy,
}


def plain_loop(data: str, model: nn.Module, settings: dict[str, Any]) -> nn.Module:
    """Average the clients, each with an optimizer of its own: w ← mean of w_k, FedAvg."""
    x, y, _, _, clients = own[data]()
    served, targets = copy.deepcopy(model).double(), y.double() if y.is_floating_point() else y
    loss = _LOSSES[settings.get("loss", "cross_entropy")]
    name = {"adam": "Adam", "sgd": "SGD"}.get(
        settings.get("client_optimizer", "sgd"), settings.get("client_optimizer", "")
    )
    for number in range(ROUNDS):
        trained = []
        for rows in clients:
            local = copy.deepcopy(served)
            optimizer = getattr(torch.optim, name)(
                local.parameters(),
                lr=0.1 * settings.get("learning_rate_decay", 1.0) ** number,
                weight_decay=settings.get("weight_decay", 0.0),
                **settings.get("client_optimizer_args", {}),
            )
            for _ in range(QUICK["epochs"]):
                optimizer.zero_grad()
                value = loss(local(x[rows].double()), targets[rows])
                for w, start in zip(local.parameters(), served.parameters(), strict=True):
                    value = (
                        value + settings.get("prox_mu", 0) / 2 * ((w - start.detach()) ** 2).sum()
                    )
                value.backward()
                if bound := settings.get("max_grad_norm"):
                    nn.utils.clip_grad_norm_(local.parameters(), bound)
                optimizer.step()
            trained.append([p.detach() for p in local.parameters()])
        for w, *each in zip(served.parameters(), *trained, strict=True):
            w.data = torch.stack(each).mean(0)
    return served


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "own_options.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    sys.modules.pop("own_options", None)


def first_model(data: str, model: str) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        return own[model](1 if data == "numbers" else 3)


def start(case: str, folder: Path, metrics: list[Any] | None = None, **more: Any) -> fp.Run:
    data, model, settings = CASES[case]
    made = first_model(data, model)
    given: dict[str, Any] = {"model": made, "data": f"own_options:{data}"}
    overrides = QUICK | {f"train_args.{key}": value for key, value in settings.items()}
    overrides |= {"validation_args.metrics": metrics} if metrics else {}
    options = {"overrides": overrides | more.pop("overrides", {}), "allow_code": True}
    return fp.run(RECIPE, output=folder, **given | options | more)


@pytest.mark.parametrize("case", CASES)
def test_client_options_match_a_plain_loop(case: str, tmp_path: Path) -> None:
    found = start(case, tmp_path / "run")
    data, model, settings = CASES[case]
    made = first_model(data, model)
    expected = plain_loop(data, made, settings)
    weights = load_file(found.folder / "model.safetensors")
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-9, atol=1e-12)
    _, _, x, y, _ = own[data]()
    record = json.loads((found.folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert found.summary is not None
    targets = y.double() if y.is_floating_point() else y
    with torch.no_grad():
        loss = _LOSSES[settings.get("loss", "cross_entropy")](expected(x.double()), targets)
    assert record["test_loss"] == pytest.approx(float(loss), rel=1e-9)
    assert (record["test_acc"] is None) == y.is_floating_point()


def test_functions_as_objects_give_the_recipes_bits(
    tmp_path: Path, content: Callable[[Path], object]
) -> None:
    by_name = start("proximal_huber", tmp_path / "named", ["own_options:worst", "r2"])
    rmsprop = functools.partial(torch.optim.RMSprop, alpha=0.99)
    objects = {
        "loss": own["huber"],
        "client_optimizer": rmsprop,
        "metrics": [own["worst"], "r2"],
    }
    left = {"train_args.loss": None, "train_args.client_optimizer": "sgd"}
    plain = CASES["proximal_huber"][2] | left
    overrides = QUICK | {k.removeprefix("train_args."): v for k, v in plain.items() if v != "sgd"}
    overrides = {k: v for k, v in overrides.items() if k not in ("loss", "client_optimizer")}
    made = first_model("numbers", "net")
    given = {"model": made, "data": own["numbers"], "overrides": overrides, **objects}
    by_object = fp.run(RECIPE, output=tmp_path / "objects", **given)
    assert content(by_object.folder) == content(by_name.folder)
    given |= {"loss": F.mse_loss, "overrides": overrides | {"comm_round": 5}}
    with pytest.raises(fp.UserError, match="resume"):
        fp.run(RECIPE, output=by_object.folder, resume=True, **given)


def test_metrics_are_those_of_the_whole_test(tmp_path: Path) -> None:
    found = start("adam_mse", tmp_path / "numbers", ["r2", "own_options:worst"])
    record = json.loads((found.folder / "metrics.jsonl").read_text().splitlines()[-1])
    _, _, x, y, _ = own["numbers"]()
    model = own["net"](1).double()
    model.load_state_dict(load_file(found.folder / "model.safetensors"))
    outputs = model(x.double()).detach()
    assert record["test_metrics"]["r2"] == pytest.approx(r2_score(y, outputs), rel=1e-6)
    assert record["test_metrics"]["worst"] == pytest.approx(float(own["worst"](outputs, y)))
    assert found.summary is not None
    assert found.summary.metric == "r2"
    assert found.summary.final_metric == record["test_metrics"]["r2"]

    tokens = start("momentum_tokens", tmp_path / "tokens", ["f1_macro"])
    record = json.loads((tokens.folder / "metrics.jsonl").read_text().splitlines()[-1])
    _, _, x, y, _ = own["tokens"]()
    tagger = own["tagger"](0).double()
    tagger.load_state_dict(load_file(tokens.folder / "model.safetensors"))
    predicted = tagger(x.double()).argmax(1)
    counts = y != -100
    assert record["test_acc"] == pytest.approx(float((predicted == y)[counts].double().mean()))
    expected = f1_score(y[counts], predicted[counts], average="macro")
    assert record["test_metrics"]["f1_macro"] == pytest.approx(expected)


def test_scorers_know_classes_labels_and_numbers() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [1.0, 0.0]])
    assert Scorer("f1_macro")(logits, torch.tensor([0, 1, 0, 1])) == pytest.approx(
        (0.8 + 2 / 3) / 2
    )
    yes = torch.tensor([[1.0], [-1.0], [2.0], [-2.0]])
    assert Scorer("f1")(yes, torch.tensor([1, 0, 1, 1])) == pytest.approx(0.8)
    assert Scorer("roc_auc")(yes, torch.tensor([1.0, 0.0, 1.0, 0.0])) == 1
    assert Scorer("neg_mean_absolute_error")(yes, torch.tensor([1.5, -1.0, 2.0, -2.0])) == -0.125
    several = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert Scorer("f1_micro")(several, torch.tensor([[1, 0], [1, 1]])) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"loss": "hinge"}, "train_args.loss"),
        ({"client_optimizer": "adm"}, "train_args.client_optimizer"),
        ({"client_optimizer_args": {"betas": 1}}, "train_args.client_optimizer_args.betas"),
        ({"client_optimizer_args": {"lr": 1}}, "train_args.client_optimizer_args.lr"),
        ({"client_optimizer": "adam", "client_optimizer_args": {"betas": 1}}, "client_optimizer"),
        ({"client_optimizer": "Rprop", "weight_decay": 0.1}, "train_args.weight_decay"),
        ({"learning_rate_decay": 1.5}, "train_args.learning_rate_decay"),
        ({"max_grad_norm": 0}, "train_args.max_grad_norm"),
        ({"validation_args.metrics": ["f1_makro"]}, "f1_macro"),
        ({"validation_args.metrics": "f1"}, "validation_args.metrics"),
        ({"validation_args.metrics": ["r2", "r2"]}, "validation_args.metrics: two"),
        ({"validation_args.metrics": ["roc_auc"]}, "validation_args.metrics: roc_auc"),
        ({"loss": "bce_with_logits"}, "model_args.model"),
    ],
)
def test_client_options_that_do_not_fit_are_refused(
    settings: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises((fp.UserError, fp.RunError)) as told:
        start(
            "plain_mse" if "loss" not in settings else "momentum_tokens",
            tmp_path / "run",
            overrides=settings,
        )
    assert named in str(told.value)
    assert "\n" not in str(told.value)
