"""Testing a model: correct labels and the mean loss, whatever a label is of."""

import pytest
import torch
from torch import nn

from fednnnn_plugin.client.loss import Loss
from fednnnn_plugin.engine.evaluation import Evaluation, Tally, evaluation, tally


@pytest.mark.parametrize("shape", [(4,), (4, 5), (4, 3, 2)])
def test_tally_counts_each_label_but_ignored_ones(shape: tuple[int, ...]) -> None:
    """Logits [B, C, …] all 0: the first class is found, each loss is ln 3."""
    labels = torch.zeros(shape, dtype=torch.int64)
    labels[0] = 2
    labels[1] = -100
    model = nn.Identity()
    model.register_parameter("w", nn.Parameter(torch.zeros(1, dtype=torch.float64)))
    counted = tally(model, (torch.zeros(4, 3, *shape[1:]), labels))
    each = labels[0].numel()
    assert (counted.correct, counted.samples) == (2 * each, 3 * each)
    found = evaluation([counted])
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.loss == pytest.approx(torch.tensor(3.0).log().item())


def test_tallies_add_up() -> None:
    assert evaluation([Tally(1, 2.0, 2, 2), Tally(2, 4.0, 4, 4)]) == Evaluation(0.5, 1.0)
    assert evaluation([Tally(1, float("nan"), 2, 2)]) == Evaluation(0.5, None)
    assert evaluation([Tally(1, float("inf"), 2, 2)]) == Evaluation(0.5, None)
    assert evaluation([]) == Evaluation()


def test_tally_weighs_another_loss_by_its_samples() -> None:
    """Errors of 1 in three samples, of 3 in one: (3 · 1 + 9) / 4."""
    model = nn.Identity()
    model.register_parameter("w", nn.Parameter(torch.zeros(1)))
    mse = Loss("mse", nn.functional.mse_loss)
    batches = [(torch.ones(3), torch.zeros(3)), (torch.full((1,), 3.0), torch.zeros(1))]
    assert evaluation([tally(model, batch, mse) for batch in batches]).loss == 3.0
