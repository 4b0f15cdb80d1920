"""Scorers of scikit-learn's on logits, probabilities and numbers, worked by hand."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fednnnn_plugin.client.loss import LOSSES, Loss
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.rounds.scorer import Scorer


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "value"),
    [
        # A label of -100 counts for nothing.
        ("f1_macro", [[2, 0], [0, 1], [3, 0], [1, 0], [9, 0]], [0, 1, 0, 1, -100], 11 / 15),
        ("f1", [[1], [-1], [2], [-2]], [1, 0, 1, 1], 0.8),
        ("roc_auc", [[1], [-1], [2], [-2]], [1.0, 0.0, 1.0, 0.0], 1),
        ("neg_mean_absolute_error", [[1], [-1], [2], [-2]], [1.5, -1.0, 2.0, -2.0], -0.125),
        ("neg_mean_squared_error", [0.5, 0.5, 1, 1], [0.0, 1.0, 0.0, 1.0], -0.375),  # not yes or no
        ("f1_micro", [[1, -1], [-1, 1]], [[1, 0], [1, 1]], 0.8),
        # Each place of an image: two of three yes are found, and nothing else.
        (
            "f1",
            [[[1, -1], [2, -3]], [[-2, -2], [-1, -4]]],
            [[[1, 0], [1, 0]], [[0, 0], [1, 0]]],
            0.8,
        ),
        ("jaccard", [[[[1, -1]]], [[[2, 3]]]], [[[[1.0, 0.0]]], [[[0.0, 1.0]]]], 2 / 3),
        # Several labels, and one in a column: the mean of 1 and 1/2, and of 1, 1/2 (of 1 and 2).
        ("roc_auc", [[1, 3], [-1, 1], [2, 2]], [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], 0.75),
        # Of three classes, the test lacks the last.
        ("neg_log_loss", [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]], [0, 1], math.log(0.5)),
        ("top_k_accuracy", [[0.5, 0.3, 0.2], [0.2, 0.1, 0.7]], [0, 1], 0.5),
        ("accuracy", [[0.6, 0.9], [2, 1]], [[1.0, 0.0], [0.0, 1.0]], 0),  # one-hot
    ],
)
def test_scorer_worked_by_hand(name: str, outputs: Any, targets: Any, value: float) -> None:
    found = Scorer(name)(torch.tensor(outputs, dtype=torch.float32), torch.tensor(targets))
    assert found == pytest.approx(value)


def own_bce(p: Tensor, t: Tensor) -> Tensor:
    return -(t * p.log() + (1 - t) * (1 - p).log()).mean()


def of_logits(z: Tensor, t: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(z.squeeze(-1), t.float())


@pytest.mark.parametrize(
    ("name", "loss", "outputs", "targets", "value"),
    [
        *(
            ("accuracy", loss, [0.2, 0.4, 0.6, 0.9], [0.0, 0.0, 1.0, 1.0], right)
            for loss, right in (
                (F.binary_cross_entropy, 1),
                (own_bce, 1),
                (partial(F.smooth_l1_loss, beta=0.5), 1),
                (of_logits, 0.5),
                (nn.SoftMarginLoss(), 0.5),
            )
        ),
        ("f1_macro", nn.BCELoss(), [[0.2, 0.9], [0.7, 0.3]], [[0.0, 1.0], [1.0, 0.0]], 1),
        ("accuracy", nn.MSELoss(), [-0.5, 0.3, 0.6, 1.5], [0.0, 0.0, 1.0, 1.0], 1),
        ("neg_brier_score", nn.BCELoss(), [[0.5], [1.0]], [[0.0], [1.0]], -0.125),
        # Probabilities of classes, and their logarithms.
        ("neg_log_loss", own_bce, [[0.5, 0.5], [0.25, 0.75]], [0, 1], math.log(0.375) / 2),
        ("neg_log_loss", nn.NLLLoss(), [[-math.log(2)] * 2] * 2, [0, 1], math.log(0.5)),
    ],
)
def test_scorer_of_probabilities(
    name: str, loss: Any, outputs: Any, targets: Any, value: float
) -> None:
    scorer = Scorer(name, Loss("mine", loss, 2))
    assert scorer(torch.tensor(outputs), torch.tensor(targets)) == pytest.approx(value)


def test_scorer_of_classes_refuses_numbers() -> None:
    """A user's hinge loss has targets of -1 and 1."""
    outputs, targets = torch.tensor([0.3, -0.2]), torch.tensor([1.0, -1.0])
    with pytest.raises(UserError, match=r"metrics: roc_auc: takes classes, or targets 0 and 1$"):
        Scorer("roc_auc", LOSSES["mse"])(outputs, targets)
