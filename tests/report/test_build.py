import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.report.build import build_report


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_files_of_a_report(two_methods: list[Path], tmp_path: Path) -> None:
    report = build_report(two_methods, tmp_path / "out", target=0.5)
    charts = ("accuracy", "agreement", "client-norms", "integrated-norm", "served")
    charts += ("norms", "norms-fc2", "norms-conv2")
    tables = ("accuracy", "rounds-to-accuracy")
    assert files_below(tmp_path / "out") == {
        "index.html",
        *(f"{name}.{kind}" for name in tables for kind in ("txt", "md", "csv", "tex")),
        *(
            f"figures/digits-non-iid-b/{name}.{kind}"
            for name in charts
            for kind in ("svg", "pdf", "png", "csv")
        ),
    }
    assert report.page == tmp_path / "out" / "index.html"
    assert report.warnings == ()
    out = tmp_path / "out"
    assert report.text == "\n".join((out / f"{name}.txt").read_text() for name in tables)


def test_the_quick_starts_table(two_methods: list[Path], tmp_path: Path) -> None:
    lines = build_report(two_methods, tmp_path / "out").text.splitlines()
    assert lines[0] == "Accuracy of the evaluation model on the test set (%)"
    assert lines[2].split() == [
        *("data", "set", "condition", "method", "seeds", "rounds", "best", "final"),
    ]
    assert lines[4].split()[:5] == ["digits", "non-IID,", "B", "FedAvg", "2"]
    assert lines[5].split()[:2] == ["FedNNNN", "2"]


def test_a_second_report_replaces_the_first_and_nothing_else(
    two_methods: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    (out / "index.html").write_text("old")
    outside = tmp_path / "outside.md"
    outside.write_text("outside")
    (out / "accuracy.md").symlink_to(outside)
    build_report(two_methods, out)
    first = {file: (out / file).read_bytes() for file in files_below(out)}
    build_report(two_methods, out)
    assert {file: (out / file).read_bytes() for file in files_below(out)} == first
    assert (out / "mine.txt").read_text() == "mine"
    assert b"FedNNNN report" in first["index.html"]
    assert outside.read_text() == "outside"
    assert not list(out.glob(".partial*"))


def test_nothing_is_written_outside(two_methods: list[Path], tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (out / "figures").symlink_to(elsewhere)
    with pytest.raises(UserError, match=r"--out: .*figures leads out of"):
        build_report(two_methods, out)
    assert files_below(elsewhere) == set()


def test_an_out_that_is_a_file(two_methods: list[Path], tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match=r"--out: .* cannot be written"):
        build_report(two_methods, tmp_path / "out")


@pytest.mark.parametrize("target", [0.0, -1.0, 1.5, 90.0, float("nan")])
def test_a_target_that_is_no_accuracy(
    two_methods: list[Path], tmp_path: Path, target: float
) -> None:
    with pytest.raises(UserError, match=r"--target: .* must be above 0 and at most 1"):
        build_report(two_methods, tmp_path / "out", target=target)


def test_no_run_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        build_report([tmp_path / "none"], tmp_path / "out")
    assert str(error.value).splitlines() == [
        f"{tmp_path}/none: not found",
        "no run with a recorded round was given",
    ]
    assert not (tmp_path / "out").exists()


def test_an_unknown_layer_is_said(two_methods: list[Path], tmp_path: Path) -> None:
    report = build_report(two_methods, tmp_path / "out", layers=["fc1", "fc9"])
    assert report.warnings == (
        "--layer fc9: no run recorded it; recorded are conv1, conv2, fc1, fc2",
    )
    assert (tmp_path / "out/figures/digits-non-iid-b/norms-fc1.svg").exists()


def test_bad_folders_beside_good_ones(two_methods: list[Path], tmp_path: Path) -> None:
    cut = two_methods[0] / "metrics.jsonl"
    cut.write_text(cut.read_text()[:-30])
    (two_methods[0] / "summary.json").unlink()
    report = build_report([*two_methods, tmp_path / "none"], tmp_path / "out")
    assert report.warnings == (
        f"{cut}: line 30: the last line is cut off; left out",
        f"{tmp_path}/none: not found",
    )
    assert "29 of 30" in report.text
    page = report.page.read_text()
    for warning in report.warnings:
        assert f"<li>{warning}</li>" in page


def test_modules_whose_names_differ_in_signs_only(make_run, tmp_path: Path) -> None:
    folder = make_run("FedNNNN", rounds=3)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["layers"] = dict.fromkeys(("a.fc", "A/fc", "../fc"), line["layers"]["fc1"])
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    build_report([folder], tmp_path / "out", layers=["a.fc", "A/fc", "../fc"])
    found = {p.name for p in (tmp_path / "out/figures/digits-non-iid-b").glob("norms-*.svg")}
    assert found == {"norms-a-fc.svg", "norms-a-fc-2.svg", "norms-fc.svg"}


class Structure(HTMLParser):
    """The page's tags with their attributes, and whether they nest."""

    EMPTY = frozenset({"meta", "link", "line", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.EMPTY:
            assert self.open.pop() == tag


def test_the_page_names_no_other_address(two_methods: list[Path], tmp_path: Path) -> None:
    page = build_report(two_methods, tmp_path / "out").page.read_text()
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
    assert "http:" not in page.replace("http://www.w3.org/1999/xlink", "")
    assert "https:" not in page
    assert "url(" not in page.replace("url(#", "")
    labels = [a.get("aria-label") for t, a in structure.tags if t == "svg" and "role" in a]
    assert len(labels) == 8
    assert all(label and label.startswith("Line chart of ") for label in labels)


def test_settings_that_differ_are_marked(two_methods: list[Path], tmp_path: Path) -> None:
    page = build_report(two_methods, tmp_path / "out").page.read_text()
    assert '<th scope="row">random_seed</th><td><mark>1</mark></td>' in page
    assert '<th scope="row">federated_optimizer</th><td><mark>PaperFedAvg</mark></td>' in page
    assert '<th scope="row">epochs</th><td>5</td>' in page


def test_neither_torch_nor_fedml_is_imported(two_methods: list[Path], tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from fednnnn_plugin.report.build import build_report\n"
        "build_report([Path(p) for p in sys.argv[2:]], Path(sys.argv[1]))\n"
        "assert not {'torch', 'fedml', 'matplotlib.pyplot'} & set(sys.modules)\n"
    )
    arguments = [sys.executable, "-c", script, tmp_path / "out", *two_methods]
    subprocess.run(arguments, check=True)
