"""The app in ``launch/flower``, by ``flwr run`` in real processes."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fednnnn_plugin as fp

APP = Path(__file__).parents[2] / "launch" / "flower"
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A SuperLink of its own, which Flower would otherwise leave running, and its configuration."""
    ports = [free_port() for _ in range(2)]
    home = tmp_path / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "test"\n'
        f'[superlink.test]\naddress = "127.0.0.1:{ports[1]}"\ninsecure = true\n'
    )
    environment = os.environ | {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
    environment |= {"PATH": f"{BIN}:{os.environ['PATH']}", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    environment |= {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "OMP_NUM_THREADS": "1"}
    options = ["--insecure", "--simulation", "--isolation", "subprocess"]
    options += ["--control-api-address", f"127.0.0.1:{ports[0]}"]
    options += ["--host", "127.0.0.1", "--port", str(ports[1])]
    with (tmp_path / "superlink.log").open("w") as log:
        superlink = subprocess.Popen(
            [BIN / "flower-superlink", *options],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        for _ in range(600):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", ports[1])) == 0:
                    break
            time.sleep(0.1)
        yield environment
    finally:
        os.killpg(superlink.pid, signal.SIGKILL)
        superlink.wait()


@pytest.mark.slow
@pytest.mark.every_python
def test_flwr_runs_the_app(environment, tmp_path) -> None:
    output = tmp_path / "output"
    config = f"num-server-rounds=2 output='{output}'"
    nodes = "num-supernodes=3 client-resources-num-cpus=1"
    command = [BIN / "flwr", "run", APP, "--stream", "--run-config", config]
    ended = subprocess.run(
        [*command, "--federation-config", nodes],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd=tmp_path,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(re.findall(r"Aggregated MetricRecord: .*'N/E': 0\.\d+", ended.stdout)) == 4
    assert re.search("PaperFedAvg: accuracy .*\n.*FedNNNN: accuracy", ended.stdout)
    runs = fp.read_runs(output)
    assert runs.groupby("method")["clients"].sum().to_dict() == {"FedAvg": 6, "FedNNNN": 6}
    assert runs["test_acc"].notna().all()
