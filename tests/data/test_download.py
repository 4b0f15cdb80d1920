import hashlib
import http.server
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torchvision

from fednnnn_plugin.data.download import download
from fednnnn_plugin.data.load import load_images
from fednnnn_plugin.errors import UserError

CONTENT = os.urandom(100_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    files: dict[str, bytes]
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        content = self.files.get(self.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write((content or b"")[: 50_000 if "cut" in self.path else None])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, type[_Handler]]]:
    files = {"/good": CONTENT, "/cut": CONTENT, "/bad": CONTENT[:-1] + b"x"}
    handler = type("Handler", (_Handler,), {"files": files, "asked": []})
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}", handler
    httpd.shutdown()
    httpd.server_close()


def test_a_good_file_arrives(server, tmp_path: Path, capsys) -> None:
    target = tmp_path / "deep" / "down" / "file"
    download([f"{server[0]}/good"], MD5, target)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["file"]
    assert capsys.readouterr().out == ""


def test_the_next_mirror_is_tried(server, tmp_path: Path) -> None:
    url = server[0]
    urls = [f"{url}/none", f"{url}/bad", f"{url}/cut", f"{url}/good"]
    download(urls, MD5, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("path", "problem"),
    [("bad", "File not found or corrupted"), ("none", "HTTP Error 404"), ("cut", ".")],
)
def test_a_failure_is_one_line_and_leaves_nothing(
    server, tmp_path: Path, path: str, problem: str
) -> None:
    with pytest.raises(UserError, match=f"^{tmp_path}/file: download failed: .*{problem}") as no:
        download([f"{server[0]}/{path}"], MD5, tmp_path / "file")
    assert "\n" not in str(no.value)
    assert list(tmp_path.iterdir()) == []
    assert socket.getdefaulttimeout() is None


def test_remains_of_a_killed_download_are_swept_away(server, tmp_path: Path) -> None:
    remains = tmp_path / ".file.download"
    remains.mkdir()
    (remains / "file").write_bytes(CONTENT[:10])
    download([f"{server[0]}/good"], MD5, tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_no_network_and_no_place(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"download failed: http://127\.0\.0\.1:9/x: .*refused"):
        download(["http://127.0.0.1:9/x"], MD5, tmp_path / "file")
    (tmp_path / "in the way").touch()
    with pytest.raises(UserError, match="download failed: "):
        download(["http://127.0.0.1:9/x"], MD5, tmp_path / "in the way" / "file")


def test_mnist_is_downloaded_where_it_is_missing(
    server, tiny_mnist: Path, tmp_path_factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = server
    resources = []
    for path in sorted((tiny_mnist / "MNIST" / "raw").iterdir()):
        handler.files[f"/{path.name}"] = path.read_bytes()
        resources.append((path.name, hashlib.md5(path.read_bytes()).hexdigest()))
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [f"{url}/gone/", f"{url}/"])
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", resources)
    folder = tmp_path_factory.mktemp("empty") / "new"
    dataset = load_images("mnist", folder, download=True, seed=0)
    assert len(dataset.pixels.train_labels) == 30
    handler.asked.clear()
    load_images("mnist", folder, download=True, seed=0)
    assert handler.asked == []  # all is there: no network


def test_cifar10_whose_sum_is_wrong_is_refused(
    server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cifar10 = torchvision.datasets.CIFAR10
    assert cifar10.tgz_md5 == "c58f30108f718f92721af3b95e74349a"
    monkeypatch.setattr(cifar10, "url", f"{server[0]}/good")
    with pytest.raises(UserError, match=r"cifar-10-python.tar.gz: download failed: .*corrupted"):
        load_images("cifar10", tmp_path, download=True, seed=0)
    assert not (tmp_path / "cifar-10-python.tar.gz").exists()


def test_cifar10_is_downloaded_and_read_as_it_comes(
    server, tmp_path: Path, tiny_archive: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = server
    cifar10 = torchvision.datasets.CIFAR10
    handler.files["/archive"] = tiny_archive
    monkeypatch.setattr(cifar10, "url", f"{url}/archive")
    monkeypatch.setattr(cifar10, "tgz_md5", hashlib.md5(tiny_archive).hexdigest())
    dataset = load_images("cifar10", tmp_path, download=True, seed=0)
    assert dataset.pixels.test_labels.tolist() == [5, 6, 7, 8]
    assert [p.name for p in tmp_path.glob("[!f]*")] == ["cifar-10-python.tar.gz"]


def test_present_data_needs_no_network(tiny_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    for dataset, count in (("mnist", 30), ("digits", 1437)):
        loaded = load_images(dataset, tiny_mnist, download=True, seed=0)
        assert len(loaded.pixels.train_labels) == count
