"""Memory does not grow with the clients: 200 of them, of ten million parameters each."""

import json
import subprocess
import sys

import pytest

PARAMETERS = 10_000_000
CLIENTS = 200
# A process of its own, for its high-water mark. The one client tensor is changed in place, so that
# clients cost nothing but the model and themselves, both there before the mark is read.
PROGRAM = f"""
import json, resource
from pathlib import Path
import torch
from fednnnn_plugin.server.average import UpdateAccumulator

def peak():
    # Not getrusage: its maximum would include what this process was forked from.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()

small = {{"w": torch.ones(1000)}}
warm = UpdateAccumulator(small, ["w"])
warm.add(small, 1.0)
warm.finish()

sizes = [4_000_000, 5_900_000, 100_000]
model = {{f"layer{{k}}.weight": torch.ones(size) for k, size in enumerate(sizes)}}
client = {{name: tensor.clone() for name, tensor in model.items()}}
before = resident()
acc = UpdateAccumulator(model, list(model))
for k in range({CLIENTS}):
    for tensor in client.values():
        tensor.fill_(1.0 + (1e-3, 1e-1, 3.0)[k % 3])
    assert acc.add(client, 1.0 + k % 7)
update = acc.finish()
assert update.clients == {CLIENTS}
print(json.dumps({{
    "buffers": (peak() - before) / (4 * sum(sizes)),
    "bins": len(acc.updates.bins),
}}))
"""


@pytest.mark.slow
def test_two_hundred_clients_of_ten_million_parameters(unmeasured: dict[str, str]) -> None:
    """Updates of scales further apart than the clients of a round are."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=unmeasured
    )
    measured = json.loads(done.stdout)
    assert measured["bins"] <= 3
    # In float32 buffers as long as all parameters: the model, a difference, the sums.
    assert measured["buffers"] <= 3.1 + 2.0 * measured["bins"]
