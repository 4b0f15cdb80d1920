"""Downloads: through torchvision, whole or not at all, and never where the data is there."""

import http.server
import multiprocessing
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torchvision

from fednnnn_plugin.data.sources import OWN_FOLDER

from .conftest import load_images, md5, refusal


@dataclass
class Server:
    url: str
    folder: Path  # of the files that it serves
    asked: list[str]


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, asked = tmp_path_factory.mktemp("served"), list[str]()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            asked.append(self.path)

    handler = partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        threading.Thread(target=serving.serve_forever, args=(0.01,), daemon=True).start()
        yield Server(f"http://127.0.0.1:{serving.server_port}/", folder, asked)
        serving.shutdown()


@pytest.fixture
def mnist(server: Server, tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, which torchvision asks for MNIST after one that has none of it."""
    paths = sorted((tiny_mnist / "MNIST" / "raw").iterdir())
    for path in paths:
        shutil.copy(path, server.folder)
    resources = [(path.name, md5(path.read_bytes())) for path in paths]
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", ["http://127.0.0.1:9/", server.url])
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", resources)
    return server


def load(dataset: str, folder: Path) -> int:
    return len(load_images(dataset, folder, download=True).parts.train.labels)


def test_download_of_mnist_replaces_nothing(
    mnist: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "t10k-labels-idx1-ubyte.gz"
    raw = tmp_path / "new" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    own = (mnist.folder / name).read_bytes() + b"\0"
    (raw / name).write_bytes(own)
    assert load("mnist", tmp_path / "new") == 30
    assert capsys.readouterr().out == ""
    assert len(set(mnist.asked)) == 4
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"MNIST", OWN_FOLDER}
    assert (raw / name).read_bytes() == own
    assert socket.getdefaulttimeout() is None
    mnist.asked.clear()
    assert load("mnist", tmp_path / "new") == 30
    assert not mnist.asked  # all is there: no network


def test_download_that_fails_leaves_nothing(mnist: Server, tmp_path: Path) -> None:
    path = mnist.folder / "t10k-images-idx3-ubyte.gz"
    content = path.read_bytes()
    folder = tmp_path / "new"
    for served in (content[:-1], None):
        path.write_bytes(served) if served else path.unlink()
        assert refusal(load, "mnist", folder).startswith(f"{folder}: download failed: ")
        assert [path.name for path in folder.iterdir()] == [OWN_FOLDER]
    assert socket.getdefaulttimeout() is None
    path.write_bytes(content)
    assert load("mnist", folder) == 30


def test_download_is_done_by_one_process(mnist: Server, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=load, args=("mnist", tmp_path / "new")) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(mnist.asked) == 8  # torchvision asks twice, first for a redirection
