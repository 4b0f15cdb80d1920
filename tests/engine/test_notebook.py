"""A notebook in a kernel: a model and data of its own, an interrupt, a resume, an edit."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from .conftest import OWN

START = """
import os, signal
import fednnnn_plugin as fp

def start(output, **more):
    settings = {"client_num_in_total": 4, "client_num_per_round": 4, "comm_round": 3, "epochs": 1}
    fp.run("digits_noniid_b_fednnnn", model=Net, data=hospitals, output=output,
           overrides={**settings, "using_gpu": False}, **more)
"""
INTERRUPTED = """
class Stop(fp.Follower):
    def client_done(self, number, done, of):
        if (number, done) == (2, 2):
            os.kill(os.getpid(), signal.SIGINT)  # what the notebook's button sends

start("stopped", followers=[Stop()])
"""
RESUMED = 'start("whole")\nstart("stopped", resume=True)'
EDITED = OWN.replace("torch.relu", "torch.tanh") + 'start("stopped", resume=True)'


@pytest.mark.slow
def test_objects_in_a_notebook(tmp_path: Path) -> None:
    sources = OWN + START, INTERRUPTED, RESUMED, EDITED
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    for ending in (cells[1], cells[3]):
        ending.metadata["tags"] = ["raises-exception"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    first, interrupted, resumed, refused = (cell.outputs for cell in cells)
    assert not first

    # A bar of the notebook's own, and none of a terminal's.
    assert any("application/vnd.jupyter.widget-view+json" in o.get("data", ()) for o in resumed)
    assert not any(out.get("name") == "stdout" and "|" in out.text for out in resumed)

    assert interrupted[-1].ename == "KeyboardInterrupt"
    assert "resume=True" in interrupted[-1].evalue
    runs = [tmp_path / name / "model.safetensors" for name in ("whole", "stopped")]
    assert runs[0].read_bytes() == runs[1].read_bytes()
    assert refused[-1].ename == "UserError"
    assert refused[-1].evalue.startswith("resume=True: model (code): ")
