"""``launch/cross_silo/start.sh``: whichever process fails first ends the others."""

import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Command, Run

# The role and the rank of a process are its last words: --rank 0 --role server.
PROCESS = """
import os, pathlib, socket, sys, time
name = f"{sys.argv[-1]} {sys.argv[-3]}"
pathlib.Path(f"output/{name}.pid").write_text(str(os.getpid()))
if name == FAILING:
    sys.exit(f"{name} has an error")
if name == "server 0":
    socket.create_server(("127.0.0.1", PORT)).accept()  # it has been seen
time.sleep(0.3 if ENDS else 600)
"""
PYTHON = {"PYTHON": sys.executable}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """A federation whose processes train nothing."""

    def of(failing: str = "", *, clients: int = 3, ends: bool = False) -> Path:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        made = tmp_path / "federation"
        made.mkdir()
        rows = [f"{rank},{rank},127.0.0.1,{port + rank}," for rank in range(clients + 1)]
        (made / "grpc_ipconfig.csv").write_text("\n".join(["eid,rank,ip,port,in", *rows]) + "\n")
        text = PROCESS.replace("PORT", str(port))
        text = text.replace("FAILING", repr(failing)).replace("ENDS", repr(ends))
        for role in ("server", "client"):
            (made / f"{role}.py").write_text(text)
        return made

    return of


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["server 0", "client 2"])
def test_silo_that_fails_ends_the_others(
    script: Run, folder: Callable[..., Path], failing: str
) -> None:
    made = folder(failing)
    said = script("cross_silo/start.sh", str(made), status=1, **PYTHON)
    assert f"{failing} has an error" in said
    for started in (made / "output").glob("*.pid"):
        while Path("/proc", started.read_text()).exists():
            time.sleep(0.1)


@pytest.mark.slow
def test_silos_that_end_well_are_waited_for(
    script: Run, folder: Callable[..., Path], command: Command, tmp_path: Path
) -> None:
    """One client too many would wait for the server for ever, one too few the server for it."""
    clients = 2  # the example has 3
    made = folder(clients=clients, ends=True)
    command("interpreter", f'exec {sys.executable} "$@"')
    # All relative, and with a CDPATH, which would make cd print.
    words = ("cross_silo/start.sh", made.name)
    said = script(*words, PYTHON="bin/interpreter", CDPATH=str(tmp_path))
    assert "output/evaluation_model.safetensors" in said
    assert len(list((made / "output").glob("*.pid"))) == 1 + clients


def test_silos_do_not_start_after_a_mistake(script: Run, folder: Callable[..., Path]) -> None:
    made = folder()
    words, addresses = ("cross_silo/start.sh", str(made)), made / "grpc_ipconfig.csv"
    assert "PYTHON=bin/none" in script(*words, status=2, PYTHON="bin/none")
    port = addresses.read_text().splitlines()[1].split(",")[3]
    with socket.create_server(("127.0.0.1", int(port))):
        assert f"127.0.0.1:{port} is in use" in script(*words, status=1, **PYTHON)
    for rank in (1, 0):  # without the server's line, then without a client's
        addresses.write_text(f"eid,rank,ip,port,in\n{rank},{rank},127.0.0.1,8891,\n")
        said = script(*words, status=2, **PYTHON)
        assert str(addresses) in said
        assert said.count("\n") == 1
    addresses.unlink()
    assert str(addresses) in script(*words, status=2, **PYTHON)
    assert not [*made.glob("output/*")]
