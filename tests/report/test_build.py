"""``fednnnn report``: what it writes, and how it refuses."""

import os
import re
import resource
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import NoReturn

import pandas as pd
import pytest
from click.testing import CliRunner

from fednnnn_plugin.cli import main
from fednnnn_plugin.report.build import build_report

from .conftest import bare, maker


def report(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["report", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, str]:
    """A report of two runs, of which one has a bad name and a bad line; what was printed."""
    folder = tmp_path_factory.mktemp("built")
    make_run = maker(folder / "runs")
    make_run("FedNNNN", dataset="mnist")
    damaged = make_run("<b>&x", name="damaged", dataset="mnist")
    lines = (damaged / "metrics.jsonl").read_text().splitlines()
    (damaged / "metrics.jsonl").write_text("\n".join([*lines[:2], "{", lines[3]]))
    options = ("--target", 0.3, "--layer", "fc1", "--layer", "<i>")
    status, output = report(folder / "runs", "--out", folder / "out", *options)
    assert status == 0
    return folder / "out", output


def test_report_files_tables_and_warnings(built: tuple[Path, str]) -> None:
    out, output = built
    assert "FedNNNN*" in output
    assert f"page: {out}/index.html" in output
    written = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    names = ["accuracy", "rounds-to-accuracy"]
    tables = {f"{name}.{kind}" for name in names for kind in ("csv", "tex")}
    names = ["accuracy", "agreement", "client-norms", "integrated-norm", "loss", "seconds"]
    stems = [f"figures/mnist-non-iid-b/{name}" for name in (*names, "norms", "norms-fc1")]
    others = {"index.html", "README.md", "rounds.csv", ".fednnnn-report"}
    assert written == others | tables | {f"{stem}.svg" for stem in stems}
    assert len(pd.read_csv(out / "rounds.csv")) == 7
    text = (out / "README.md").read_text()  # what ``results/README.md`` is made of
    assert "| MNIST | non-IID, B | FedNNNN\\* |" in text
    assert set(re.findall(r"\]\((figures/[^)]+)\.svg\)", text)) == set(stems)
    assert not re.search(r"(?<!\\)[<>]", text)  # names are text
    # Problems are on the page and on the screen.
    for text in (output, (out / "index.html").read_text()):
        assert "damaged/metrics.jsonl: line 3" in text
        assert "--layer" in text


class Structure(HTMLParser):
    """The page's tags with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_page_is_whole_and_links_nowhere_else(built: tuple[Path, str]) -> None:
    page = (built[0] / "index.html").read_text()
    structure = Structure()
    structure.feed(page)
    assert not {"script", "b", "i"} & {tag for tag, _ in structure.tags}  # names are text
    assert "&lt;b&gt;&amp;x" in page
    for tag, attributes in structure.tags:
        assert (attributes.get("src") or "data:").startswith("data:")
        link = attributes.get("href") or ""
        if tag == "a":
            assert link.startswith("#") or (built[0] / link).is_file()
        else:
            assert link in ("", "data:,")
    assert "http:" not in page.replace("http-equiv", "")
    assert "url(" not in page
    labels = [a.get("alt") or "" for tag, a in structure.tags if tag == "img"]
    assert len(labels) == 8
    assert all(len(label) > 40 for label in labels)
    ids = [a["id"] for _, a in structure.tags if "id" in a]
    assert len(ids) == len(set(ids))


@pytest.mark.slow
def test_report_of_the_same_runs_has_the_same_bytes(make_run, tmp_path: Path) -> None:
    run = make_run("FedNNNN", change=bare)
    for out in ("a", "b"):
        build_report([run], tmp_path / out)
    for path in (tmp_path / "a").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [("--format", "gif", "--format"), ("--target", "nan", "--target"), ("--layer", "x", "nowhere")],
)
def test_report_refuses_wrong_options(tmp_path: Path, option: str, value: str, named: str) -> None:
    status, output = report(tmp_path / "nowhere", "--out", tmp_path / "out", option, value)
    assert status == 2
    assert named in output
    assert not (tmp_path / "out").exists()


def test_report_overwrites_no_other_page(study: Path, tmp_path: Path) -> None:
    page = tmp_path / "out/index.html"
    page.parent.mkdir()
    page.write_text("mine")
    status, output = report(study, "--out", page.parent)
    assert status == 2
    assert output.count("\n") == 1
    assert str(page) in output
    assert [path.read_text() for path in page.parent.iterdir()] == ["mine"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [".fednnnn-report", "figures", "index.html", "rounds.csv"])
def test_report_writes_through_no_link(make_run, tmp_path: Path, name: str) -> None:
    out, precious = tmp_path / "out", tmp_path / "precious"
    for folder in (out, precious):
        folder.mkdir()
    target = precious if name == "figures" else precious / "file"
    (precious / "file").write_text("index.html\n")
    (out / name).symlink_to(target)
    status, output = report(make_run("FedNNNN", change=bare), "--out", out)
    assert (status, output.count("\n"), str(out / name) in output) == (2, 1, True)
    assert [path.read_text() for path in precious.iterdir()] == ["index.html\n"]


@pytest.mark.slow
def test_report_leaves_hard_linked_copies(make_run, study: Path, tmp_path: Path) -> None:
    run, out, copy = make_run("FedNNNN", change=bare), tmp_path / "out", tmp_path / "copy"
    assert report(run, "--out", out)[0] == 0
    shutil.copytree(out, copy, copy_function=os.link)
    before = {path: path.read_bytes() for path in copy.rglob("*.*") if path.is_file()}
    assert report(study, "--out", out)[0] == 0
    assert {path: path.read_bytes() for path in copy.rglob("*.*") if path.is_file()} == before


@pytest.mark.slow
def test_report_replaces_one_with_missing_files(make_run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert report(make_run("FedNNNN", change=bare), "--out", out)[0] == 0
    shutil.rmtree(out / "figures/digits-non-iid-b")
    (out / ".fednnnn-report").write_bytes(b"\xff\n" + (out / ".fednnnn-report").read_bytes())
    other = make_run("FedNNNN", change=bare, partition_method="iid")
    assert report(other, "--out", out)[0] == 0


@pytest.mark.slow
def test_report_after_a_refused_one_overwrites_nothing(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "figures").write_text("in the way")
    status, output = report(study, "--out", out)
    assert (status, f"{out}/figures" in output) == (2, True)
    (out / "figures").unlink()
    (out / "index.html").write_text("mine")
    assert report(study, "--out", out)[0] == 2
    assert (out / "index.html").read_text() == "mine"
    assert report(study, "--out", out / "index.html")[0] == 2


@pytest.mark.slow
def test_report_replaces_an_earlier_report_only(make_run, study: Path, tmp_path: Path) -> None:
    out, precious = tmp_path / "out", tmp_path / "precious"
    out.mkdir()
    precious.write_text("mine")
    (out / ".fednnnn-report").write_text(f"../precious\n{precious}\n")  # leads out of the folder
    run = make_run("FedNNNN", change=bare)
    assert report(run, "--out", out, "--target", 0.3, "--format", "pdf,png")[0] == 0
    assert precious.exists()
    figures = out / "figures/digits-non-iid-b"
    for kind in ("pdf", "png"):
        assert kind.upper().encode() in (figures / f"accuracy.{kind}").read_bytes()[:5]
    (out / "notes.txt").write_text("mine")
    (figures / "mine.svg").write_text("mine")
    assert report(study, "--out", out)[0] == 0
    assert [path.name for path in figures.iterdir()] == ["mine.svg"]
    assert (out / "notes.txt").exists()
    left = {path.name for path in out.iterdir()}
    assert left == {"notes.txt", "figures", "index.html", "README.md", ".fednnnn-report"}


def test_report_on_a_full_disk_is_one_line(study: Path) -> None:
    """A file system without room, as a limit on the size of files."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        status, output = report(study, "--out", study.parent / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status == 1
    assert output.count("\n") == 1
    assert report(study, "--out", study.parent / "out")[0] == 0


def test_report_interrupted_does_not_advise_to_resume(
    monkeypatch, study: Path, tmp_path: Path
) -> None:
    def interrupted(_: Path) -> NoReturn:
        raise KeyboardInterrupt  # a signal itself would stay ignored in this process after it

    monkeypatch.setattr("fednnnn_plugin.report.build.read_study", interrupted)
    assert report(study, "--out", tmp_path / "out") == (130, "interrupted\n")
    assert not (tmp_path / "out").exists()
