"""``launch/cross_silo/start.sh``: whichever process fails first ends the others."""

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

# The role and the rank of a process are its last words: --rank 0 --role server.
PROCESS = """
import os, pathlib, socket, sys, time
name = f"{sys.argv[-1]} {sys.argv[-3]}"
pathlib.Path(f"output/{name}.pid").write_text(str(os.getpid()))
if name == FAILING:
    sys.exit(f"{name} has an error")
if name == "server 0":
    listener = socket.create_server(("127.0.0.1", PORT))
time.sleep(0.5 if ENDS else 600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """A federation whose processes train nothing."""

    def made(failing: str = "", *, ends: bool = False) -> Path:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        (tmp_path / "grpc_ipconfig.csv").write_text(f"eid,rank,ip,port,in\n0,0,127.0.0.1,{port},\n")
        text = PROCESS.replace("PORT", str(port))
        text = text.replace("FAILING", repr(failing)).replace("ENDS", repr(ends))
        for role in ("server", "client"):
            (tmp_path / f"{role}.py").write_text(text)
        return tmp_path

    return made


def wait_until_gone(process: int) -> None:
    for _ in range(600):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail(f"process {process} lives on")


@pytest.mark.parametrize("failing", ["server 0", "client 2"])
def test_the_first_to_fail_ends_the_others(
    script: Callable[..., str], folder: Callable[..., Path], failing: str
) -> None:
    said = script("cross_silo/start.sh", str(folder(failing)), status=1, PYTHON=sys.executable)
    assert f"{failing} failed" in said
    assert f"{failing} has an error" in said
    for process in (folder() / "output").glob("*.pid"):
        wait_until_gone(int(process.read_text()))


def test_all_that_end_well_are_waited_for(
    script: Callable[..., str], folder: Callable[..., Path]
) -> None:
    said = script("cross_silo/start.sh", str(folder(ends=True)), PYTHON=sys.executable)
    assert said == "done: output/evaluation_model.safetensors\n"
    assert len(list((folder() / "output").glob("*.pid"))) == 4
