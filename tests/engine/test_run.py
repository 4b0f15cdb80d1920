"""A whole run, in process: what it records, and what its bits may depend on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fednnnn_plugin.client.loss import Loss
from fednnnn_plugin.data.federated import FederatedData
from fednnnn_plugin.engine.batches import LoaderData
from fednnnn_plugin.engine.evaluation import Evaluation, Tally, evaluation, tally
from fednnnn_plugin.errors import UserError
from fednnnn_plugin.models import create_model

from .conftest import Drawing, Tiny, draw


def test_run_bits_depend_on_the_seed_alone(tiny: Tiny) -> None:
    """The caller's model is left as it was."""
    model = create_model("nnnn_digits", 0)
    bits = []
    for number, settings in enumerate(({"worker_num": 1}, {"worker_num": 2}, {"random_seed": 1})):
        tiny(str(number), comm_round=2, model=model, **settings)
        bits.append(nn.utils.parameters_to_vector(tiny.model(str(number)).values()))
    assert torch.equal(bits[0], bits[1])
    assert not torch.equal(bits[0], bits[2])
    before = create_model("nnnn_digits", 0).state_dict()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_run_in_bf16_is_within_its_roundings(tiny: Tiny) -> None:
    """A step of each client from 0 by one image: four roundings of 2^-8 of it at most."""
    images, labels = torch.linspace(0, 1, 6 * 64).view(6, 1, 8, 8), torch.arange(6)
    data = FederatedData(images, labels, labels.split(1), images, labels, num_classes=10)
    norms, bits = [], []
    for precision in ("fp32", "bf16"):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        nn.utils.vector_to_parameters(torch.zeros(650), model.parameters())
        tiny(precision, comm_round=1, model=model, data=data, precision=precision)
        [record] = tiny.records(precision)
        norms.append([record["mean_update_norm"], record["mean_client_norm"]])
        bits.append(nn.utils.parameters_to_vector(tiny.model(precision).values()))
    assert not torch.equal(*bits)
    assert norms[0] == pytest.approx(norms[1], rel=0, abs=5 * 2**-8 * norms[0][1])


def test_trainer_repeats_its_bits_and_metrics(tiny: Tiny, content: Any, tmp_path: Path) -> None:
    trainer = Drawing()
    summary = tiny("whole", trainer=trainer)
    assert (summary.best_test_acc, summary.best_round, summary.final_test_acc) == (None,) * 3
    tiny("parts", comm_round=2, trainer=trainer)
    draw()
    tiny("parts", mode="resume", trainer=trainer)
    assert content(tmp_path / "whole") == content(tmp_path / "parts")
    assert trainer.threads == {1}
    for record in tiny.records("parts"):
        assert record["test_metrics"].keys() == {"mse"}
        assert record["test_acc"] is None


@pytest.mark.parametrize(
    ("sizes", "settings", "named"),
    [
        ([1] * 32_768, {}, "client_num_per_round: 32768"),  # more than add up exactly
        ([7, 7, 0, 7], {"client_weighting": "samples"}, "client_weighting: samples: client 2"),
    ],
)
def test_settings_that_do_not_fit_data_are_refused(
    tiny: Tiny, sizes: list[int], settings: Any, named: str
) -> None:
    clients = dict(enumerate(sizes))
    settings |= {"client_num_in_total": len(clients), "client_num_per_round": len(clients)}
    with pytest.raises(UserError, match=rf"^train_args\.{named}:? "):
        tiny(data=LoaderData(dict.fromkeys(clients, ()), clients, (), 10), **settings)


class Outputs(nn.Identity):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))


def test_tallies_are_weighed_by_their_samples() -> None:
    """Errors of 1 in three samples, of 3 in one: (3 · 1 + 9) / 4."""
    batches = [(torch.ones(3), torch.zeros(3)), (torch.full((1,), 3.0), torch.zeros(1))]
    mse = Loss("mse", nn.functional.mse_loss)
    assert evaluation([tally(Outputs(), batch, mse) for batch in batches]).loss == 3.0
    assert evaluation([Tally(1, 2.0, 2, 2), Tally(2, 4.0, 4, 4)]) == Evaluation(0.5, 1.0)
    assert evaluation([Tally(1, float("inf"), 2, 2)]) == Evaluation(0.5, None)
    assert evaluation([]) == Evaluation()
