"""A notebook in a kernel: a model and data of its own, an interrupt, a resume, a second run."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

OBJECTS = """
import os, signal
import torch
from torch import nn
import fednnnn_plugin as fp

generator = torch.Generator().manual_seed(0)
labels = torch.arange(180) % 4
inputs = torch.randn(180, 6, generator=generator) + labels.view(-1, 1)
hospitals = [*zip(inputs[:140].split((30, 50, 20, 40)), labels[:140].split((30, 50, 20, 40)))]
data = hospitals, (inputs[140:], labels[140:])

class Net(nn.Module):
    def __init__(self, classes, width=8):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, width), nn.Linear(width, classes)

    def forward(self, x):
        return self.fc2(torch.dropout(torch.relu(self.fc1(x)), 0.2, self.training))

def start(output, model=Net, **more):
    settings = {"client_num_in_total": 4, "client_num_per_round": 4, "comm_round": 3, "epochs": 1}
    settings["device_args.using_gpu"] = False
    return fp.run("digits_noniid_b_fednnnn", model=model, data=data, overrides=settings,
                  output=output, **more)
"""
INTERRUPTED = """
class Stop(fp.Follower):
    def client_done(self, number, done, of):
        if (number, done) == (2, 2):
            os.kill(os.getpid(), signal.SIGINT)  # what the notebook's button sends

start("stopped", followers=[Stop()])
"""
RESUMED = """
for name in ("whole", "again"):
    start(name)
start("stopped", resume=True)
"""
RELU_TO_TANH = """
class Net(nn.Module):
    def __init__(self, classes, width=8):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, width), nn.Linear(width, classes)

    def forward(self, x):
        return self.fc2(torch.dropout(torch.tanh(self.fc1(x)), 0.2, self.training))

start("stopped", model=Net, resume=True)
"""


def test_objects_in_a_notebook(tmp_path: Path) -> None:
    sources = OBJECTS, INTERRUPTED, RESUMED, RELU_TO_TANH
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    for ending in (cells[1], cells[3]):
        ending.metadata["tags"] = ["raises-exception"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, resources=resources).execute()
    first, interrupted, resumed, refused = (cell.outputs for cell in cells)
    assert not first

    # A bar of the notebook's own, and none of a terminal's.
    assert any("application/vnd.jupyter.widget-view+json" in o.get("data", ()) for o in resumed)
    assert not any(out.get("name") == "stdout" and "|" in out.text for out in resumed)

    assert interrupted[-1].ename == "KeyboardInterrupt"
    assert "resume=True" in interrupted[-1].evalue
    assert any((tmp_path / "stopped" / "checkpoint").iterdir())

    whole, again, stopped = (
        (tmp_path / name / "model.safetensors").read_bytes()
        for name in ("whole", "again", "stopped")
    )
    assert whole == again == stopped

    assert refused[-1].ename == "UserError"
    assert refused[-1].evalue.startswith("resume=True: model (code): ")
