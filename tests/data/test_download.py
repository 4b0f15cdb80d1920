"""Downloads: through torchvision, whole or not at all, and never where the data is there."""

import hashlib
import http.server
import multiprocessing
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torchvision

from fednnnn_plugin.data.load import load_images
from fednnnn_plugin.data.sources import OWN_FOLDER
from fednnnn_plugin.errors import UserError


class Handler(http.server.BaseHTTPRequestHandler):
    files: dict[str, bytes]
    asked: list[str]

    def do_HEAD(self) -> None:
        self.answer(b"")

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.answer(self.files.get(self.path, b""))

    def answer(self, content: bytes) -> None:
        found = self.path in self.files
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(self.files.get(self.path, b""))))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[Handler]]]:
    handler = type("Handler", (Handler,), {"files": {}, "asked": []})
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}/", handler
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture
def mnist(server, tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> type[Handler]:
    """The server, which torchvision asks for MNIST after one that has none of it."""
    url, handler = server
    resources = []
    for path in sorted((tiny_mnist / "MNIST" / "raw").iterdir()):
        handler.files[f"/{path.name}"] = path.read_bytes()
        resources.append((path.name, hashlib.md5(path.read_bytes()).hexdigest()))
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", ["http://127.0.0.1:9/", url])
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", resources)
    return handler


def names(folder: Path) -> list[str]:
    return sorted(
        path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"
    )


def load(dataset: str, folder: Path) -> int:
    return len(load_images(dataset, folder, download=True, seed=0).pixels.train_labels)


def test_mnist_is_downloaded_where_it_is_missing(mnist, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "new"
    assert load("mnist", folder) == 30
    assert capsys.readouterr().out == ""
    assert len(set(mnist.asked)) == 4
    mnist.asked.clear()
    assert load("mnist", folder) == 30
    assert not mnist.asked  # all is there: no network
    assert not list(folder.glob(".download-*"))
    assert socket.getdefaulttimeout() is None


def test_what_is_there_is_not_replaced(mnist, tmp_path: Path) -> None:
    raw = tmp_path / "new" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    own = (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").read_bytes() + b"\0"
    (raw / "t10k-labels-idx1-ubyte.gz").write_bytes(own)
    assert load("mnist", tmp_path / "new") == 30
    assert (raw / "t10k-labels-idx1-ubyte.gz").read_bytes() == own


@pytest.mark.parametrize("damage", ["gone", "changed", "cut"])
def test_a_failure_is_one_line_and_leaves_nothing(mnist, tmp_path: Path, damage: str) -> None:
    path = "/t10k-images-idx3-ubyte.gz"
    content = mnist.files.pop(path)
    if damage != "gone":
        mnist.files[path] = content[:-1] + (b"x" if damage == "changed" else b"")
    folder = tmp_path / "new"
    with pytest.raises(UserError, match=f"^{folder}: download failed: ") as refused:
        load("mnist", folder)
    assert str(refused.value).isprintable()
    assert [path.name for path in folder.iterdir()] == [OWN_FOLDER]
    assert socket.getdefaulttimeout() is None
    mnist.files[path] = content
    assert load("mnist", folder) == 30


def test_of_several_processes_one_downloads(mnist, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=load, args=("mnist", tmp_path / "new")) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert len(mnist.asked) == 8  # torchvision asks twice, first for a redirection


def test_cifar10_is_downloaded(server, tmp_path: Path, tiny_archive: bytes, monkeypatch) -> None:
    url, handler = server
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "url", f"{url}archive")
    handler.files["/archive"] = b"of another sum"
    with pytest.raises(UserError, match=r"download failed: .*corrupted"):
        load("cifar10", tmp_path)
    assert names(tmp_path) == ["lock"]
    handler.files["/archive"] = tiny_archive
    assert load("cifar10", tmp_path) == 20
    assert "data_batch_1" in names(tmp_path)


def test_no_network_and_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "url", "http://127.0.0.1:9/x")
    with pytest.raises(UserError, match=r"download failed: .*refused"):
        load("cifar10", tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / OWN_FOLDER).touch()  # in the way, for root too
    with pytest.raises(UserError, match=f"^{tmp_path}/full/{OWN_FOLDER}: cannot be used: "):
        load("cifar10", tmp_path / "full")


def test_present_data_and_data_that_is_not_to_be_downloaded_need_no_network(
    tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    assert load("mnist", tiny_mnist) == 30
    assert load("digits", tiny_mnist) == 1437
    with pytest.raises(UserError, match="no CIFAR-10 here"):
        load_images("cifar10", tiny_mnist, download=False, seed=0)
