"""Losses by name: which outputs are predictions of classes, and of which."""

from typing import Any

import pytest
import torch

from fednnnn_plugin.client.loss import LOSSES, Loss


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "predicted"),
    [
        ("cross_entropy", [[0.1, 0.2], [-1.0, -2.0]], [0, 0], [1, 0]),
        ("cross_entropy", [[[0.1, 3.0], [0.2, -3.0]]], [[0, 0]], [[1, 0]]),  # of each place
        ("bce_with_logits", [-0.1, 0.1], [0, 1], [0, 1]),
        ("bce_with_logits", [[-0.1, 0.1]], [[0, 1]], None),  # several labels a sample
        ("bce_with_logits", [-0.1, 0.1], [0.0, 1.0], None),
        ("mse", [[1.0], [2.0]], [1, 2], None),
        ("own", [[-0.1], [0.1]], [0, 1], None),  # perhaps of yes and no: nobody says where yes is
        ("own", [[0.1, 0.2], [-1.0, -2.0]], [0, 0], [1, 0]),
    ],
)
def test_loss_predicts_classes_worked_by_hand(
    name: str, outputs: Any, targets: Any, predicted: Any
) -> None:
    loss = LOSSES.get(name, Loss(name, torch.nn.functional.cross_entropy))
    found = loss.predictions(torch.tensor(outputs), torch.tensor(targets))
    assert (found if found is None else found.tolist()) == predicted


@pytest.mark.parametrize("name", ["bce_with_logits", "mse"])
def test_loss_broadcasts_nothing(name: str) -> None:
    with pytest.raises(ValueError, match="must be the same"):
        LOSSES[name](torch.zeros(3), torch.zeros(3, 1))


def test_mse_rounds_no_target() -> None:
    """In bfloat16 2019 is 2016."""
    loss = LOSSES["mse"](torch.tensor([2016.0]).bfloat16(), torch.tensor([2019.0]))
    assert loss.item() == 9.0
