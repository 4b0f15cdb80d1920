"""The standalone engine's peak memory does not grow with the number of clients a round."""

from pathlib import Path

import pytest
import torch
from torch import nn

from fednnnn_plugin.data.federated import FederatedData

from .conftest import Tiny


@pytest.mark.slow
def test_peak_is_the_same_for_40_clients(tiny: Tiny) -> None:
    """Of a model of 10 MB and clients of one image: what would be kept of a client is its model."""
    images, labels = torch.randn(40, 1, 8, 8), torch.arange(40) % 10
    data = FederatedData(images, labels, torch.arange(40).split(1), images[:9], labels[:9], 10)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 30_000), nn.Linear(30_000, 10))
    given = {"model": model, "data": data, "client_num_in_total": 40, "comm_round": 1}
    peaks = []
    for clients in (4, 40):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        tiny(str(clients), client_num_per_round=clients, **given)
        status = Path("/proc/self/status").read_text()
        peaks.append(int(status.split("VmHWM:")[1].split()[0]) * 1024)
    one = sum(parameter.nbytes for parameter in model.parameters())
    assert (peaks[1] - peaks[0]) / one < 15  # of 36; the allocator scatters a few
