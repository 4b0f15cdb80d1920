"""``fednnnn report``: what it writes, and how it refuses."""

import re
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from fednnnn_plugin.cli import main
from fednnnn_plugin.report.build import build_report


def report(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["report", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture
def runs(make_run) -> Path:
    make_run("PaperFedAvg", dataset="mnist")
    return make_run("FedNNNN", dataset="mnist").parent


def test_a_report(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    status, output = report(runs, "--out", out, "--target", 0.3)
    assert status == 0
    assert "FedNNNN*" in output
    assert f"page: {out}/index.html" in output
    written = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    names = ["accuracy", "rounds-to-accuracy"]
    tables = {f"{name}.{kind}" for name in names for kind in ("csv", "md", "tex")}
    names = ["accuracy", "agreement", "client-norms", "integrated-norm", "loss", "seconds"]
    names += ["norms", "norms-conv2", "norms-fc2"]
    figures = {f"figures/mnist-non-iid-b/{name}.svg" for name in names}
    others = {"index.html", "report.md", "rounds.csv", ".fednnnn-report"}
    assert written == others | tables | figures
    assert len(pd.read_csv(out / "rounds.csv")) == 8
    text = (out / "report.md").read_text()  # what ``results/README.md`` is made of
    assert "| MNIST | non-IID, B | FedNNNN\\* |" in text
    assert "99.1" in text
    assert set(re.findall(r"\]\((figures/[^)]+)\)", text)) == figures


def test_the_same_runs_give_the_same_bytes_in_every_format(runs: Path, tmp_path: Path) -> None:
    for out in ("a", "b"):
        arguments = ("--out", tmp_path / out, "--format", "pdf,png", "--layer", "fc1")
        status, output = report(runs, *arguments, "--layer", "no")
        assert status == 0
        assert "--layer no" in output
    for path in (tmp_path / "a").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
    folder = tmp_path / "a/figures/mnist-non-iid-b"
    assert {path.suffix for path in folder.glob("norms-fc1.*")} == {".svg", ".pdf", ".png"}
    assert (folder / "accuracy.pdf").read_bytes().startswith(b"%PDF")
    assert (folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert not list(folder.glob("norms-fc2.*"))


@pytest.mark.parametrize(
    ("option", "value"), [("--format", "gif"), ("--target", "1.5"), ("--target", "0")]
)
def test_what_cannot_be_is_refused(tmp_path: Path, option: str, value: str) -> None:
    status, output = report(tmp_path / "nowhere", "--out", tmp_path / "out", option, value)
    assert status == 2
    assert option in output
    assert output.count("\n") == 1


def test_nothing_to_report(tmp_path: Path) -> None:
    status, output = report(tmp_path / "nowhere", "--out", tmp_path / "out")
    assert status == 2
    assert "nowhere" in output
    assert not (tmp_path / "out").exists()


def test_a_page_of_others_is_not_overwritten(study: Path, tmp_path: Path) -> None:
    page = tmp_path / "out/index.html"
    page.parent.mkdir()
    page.write_text("mine")
    status, output = report(study, "--out", page.parent)
    assert status == 2
    assert output.count("\n") == 1
    assert str(page) in output
    assert [path.read_text() for path in page.parent.iterdir()] == ["mine"]


def test_what_an_earlier_report_made_goes_and_nothing_else(
    runs: Path, make_run, tmp_path: Path
) -> None:
    out, precious = tmp_path / "out", tmp_path / "precious"
    out.mkdir()
    precious.write_text("mine")
    (out / ".fednnnn-report").write_text(f"../precious\n{precious}\n")  # leads out of the folder
    assert report(runs, "--out", out, "--target", 0.3, "--format", "png")[0] == 0
    assert precious.exists()
    (out / "notes.txt").write_text("mine")
    (out / "figures/mnist-non-iid-b/mine.svg").write_text("mine")
    assert report(make_run("FedNNNN", dataset="cifar10"), "--out", out)[0] == 0
    assert not (out / "rounds-to-accuracy.csv").exists()
    assert [p.name for p in (out / "figures/mnist-non-iid-b").iterdir()] == ["mine.svg"]
    assert (out / "notes.txt").exists()
    assert {p.suffix for p in (out / "figures/cifar-10-non-iid-b").iterdir()} == {".svg"}


def test_a_full_disk_ends_in_one_line(study: Path) -> None:
    """A file system without room, as a limit on the size of files."""
    script = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n"
        "from fednnnn_plugin.cli import main; main()\n"
    )
    command = [sys.executable, "-c", script, "report", study, "--out", study.parent / "out"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "Traceback" not in ended.stderr


def test_ctrl_c_does_not_advise_to_resume(monkeypatch, study: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(
        "fednnnn_plugin.report.build.read_study", lambda _: signal.raise_signal(signal.SIGINT)
    )
    assert report(study, "--out", tmp_path / "out") == (130, "interrupted\n")
    assert not (tmp_path / "out").exists()


class Structure(HTMLParser):
    """The page's tags with their attributes, and whether they nest."""

    EMPTY = frozenset({"meta", "link", "line", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open += [tag] * (tag not in self.EMPTY)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.EMPTY:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_names_no_other_address(
    runs: Path, study: Path, tmp_path: Path
) -> None:
    page = build_report([runs, study], tmp_path / "out", formats=["png"]).page.read_text()
    structure = Structure()
    structure.feed(page)
    assert structure.open == []
    for tag, attributes in structure.tags:
        assert "src" not in attributes
        link = attributes.get("href") or ""
        if tag == "a":
            assert link.startswith("#") or (tmp_path / "out" / link).is_file()
        else:
            assert link in ("", "data:,")
    assert not re.findall(r"https?:(?!//www\.w3\.org/(1999/xlink|2000/svg))", page)
    assert "url(" not in page.replace("url(#", "")
    labels = [a.get("aria-label") or "" for t, a in structure.tags if t == "svg" and "role" in a]
    assert len(labels) == 11
    assert all(len(label) > 40 for label in labels)
    ids = [a["id"] for _, a in structure.tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_names_of_others_are_text(make_run, tmp_path: Path) -> None:
    make_run("FedNNNN", name="<b>&x", dataset="<i>data", model="<script>")
    make_run("<b>FedNNNN")
    page = build_report([tmp_path / "runs"], tmp_path / "out").page.read_text()
    assert "<b>&x" not in page
    assert "&lt;b&gt;&amp;x" in page
    assert "<script>" not in page


def test_held_out_images_are_not_called_the_test_set(make_run, tmp_path: Path) -> None:
    held_out = make_run("FedNNNN", validation_fraction=0.2)
    text = build_report([held_out], tmp_path / "one").text
    assert text.startswith("Validation accuracy")
    both = build_report([held_out, make_run("PaperFedAvg")], tmp_path / "two").text
    assert "non-IID, B (held out 0.2) FedNNNN" in both
    assert both.startswith("Test and validation accuracy")


def test_problems_are_on_the_page_and_on_the_screen(runs: Path, make_run, tmp_path: Path) -> None:
    damaged = make_run("FedExP", dataset="mnist")
    lines = (damaged / "metrics.jsonl").read_text().splitlines()
    (damaged / "metrics.jsonl").write_text("\n".join([*lines[:2], "{", lines[3]]))
    status, output = report(runs, "--out", tmp_path / "out")
    assert status == 0
    assert f"warning: {damaged}/metrics.jsonl: line 3" in output
    assert f"<li>{damaged}/metrics.jsonl: line 3" in (tmp_path / "out/index.html").read_text()


@pytest.mark.slow
def test_all_forty_conditions_make_a_page_that_opens_at_once(make_run, tmp_path: Path) -> None:
    for dataset, rounds in (("mnist", 100), ("cifar10", 250)):
        for partition in ("iid", "n_class"):
            for sizes in ("balanced", "power_law"):
                for method in ("PaperFedAvg", "PaperFedProx", "NormNorm", "Momentum", "FedNNNN"):
                    make_run(method, dataset=dataset, comm_round=rounds, partition_method=partition,
                             partition_sizes=sizes)  # fmt: skip
    page = build_report([tmp_path / "runs"], tmp_path / "out").page
    assert page.stat().st_size < 6_000_000
