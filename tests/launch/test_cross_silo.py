"""``launch/cross_silo/start.sh``: whichever process fails first ends the others."""

import socket
import sys
import time
from pathlib import Path

import pytest

from .conftest import Launcher

# The role and the rank of a process are its last words: --rank 0 --role server.
PROCESS = """
import os, pathlib, socket, sys, time
name = f"{sys.argv[-1]} {sys.argv[-3]}"
pathlib.Path(f"output/{name}.pid").write_text(str(os.getpid()))
if name == os.environ.get("FAILING"):
    sys.exit(f"{name} has an error")
if name == "server 0":
    socket.create_server(("127.0.0.1", PORT)).accept()  # it has been seen
time.sleep(float(os.environ.get("LASTING", 2000)))  # longer than a test may take
"""
START = "cross_silo/start.sh"
PYTHON = {"PYTHON": sys.executable}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A federation of two clients, where the example has three; its processes train nothing."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = tmp_path / "federation"
    made.mkdir()
    rows = [f"{rank},{rank},127.0.0.1,{port + rank}," for rank in range(3)]
    (made / "grpc_ipconfig.csv").write_text("\n".join(["eid,rank,ip,port,in", *rows]) + "\n")
    for role in ("server", "client"):
        (made / f"{role}.py").write_text(PROCESS.replace("PORT", str(port)))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["server 0", "client 2"])
def test_silo_that_fails_ends_the_others(launcher: Launcher, folder: Path, failing: str) -> None:
    said = launcher.run(START, str(folder), status=1, FAILING=failing, **PYTHON)
    assert f"{failing} has an error" in said
    for started in (folder / "output").glob("*.pid"):
        while Path("/proc", started.read_text()).exists():
            time.sleep(0.1)


@pytest.mark.slow
def test_silos_that_end_well_are_waited_for(launcher: Launcher, folder: Path) -> None:
    """One client too many would wait for the server for ever, one too few the server for it."""
    launcher.command("interpreter", f'exec {sys.executable} "$@"')
    # All relative, and with a CDPATH, which would make cd print.
    how = {"PYTHON": "bin/interpreter", "CDPATH": str(folder.parent), "LASTING": "0.3"}
    said = launcher.run(START, folder.name, **how)
    assert "output/evaluation_model.safetensors" in said
    assert len(list((folder / "output").glob("*.pid"))) == 3


def test_silos_do_not_start_after_a_mistake(launcher: Launcher, folder: Path) -> None:
    words, addresses = (START, str(folder)), folder / "grpc_ipconfig.csv"
    assert f"launch/{START}" in launcher.run(START, "--help")
    assert "PYTHON=bin/none" in launcher.run(*words, status=2, PYTHON="bin/none")
    port = addresses.read_text().splitlines()[1].split(",")[3]
    with socket.create_server(("127.0.0.1", int(port))):
        assert f"127.0.0.1:{port} is in use" in launcher.run(*words, status=1, **PYTHON)
    addresses.write_text("eid,rank,ip,port,in\n1,1,127.0.0.1,8891,\n")  # no server's line
    assert str(addresses) in launcher.run(*words, status=2, **PYTHON)
    assert not [*folder.glob("output/*")]
