"""``fednnnn report``: what it writes, how it refuses, and its page in headless Chromium."""

import csv
import html
import io
import json
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from fednnnn_plugin.cli import main
from fednnnn_plugin.reporting.build import build_report
from fednnnn_plugin.reporting.cells import as_csv
from fednnnn_plugin.reporting.typeset import escaped

from ..support.processes import WATCHDOG
from .conftest import bare, maker, write_study


def report(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["report", *map(str, arguments)])
    return result.exit_code, result.output


def files_of(folder: Path) -> dict[str, bytes]:
    found = filter(Path.is_file, folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, str]:
    """A report of two runs, one with bad names and a bad line, and a bad study; its output."""
    folder = tmp_path_factory.mktemp("built")
    make_run = maker(folder / "runs")
    make_run("FedNNNN", dataset="mnist")
    damaged = make_run("<b>&x|", name="=1+1", dataset="mnist", model="=cmd()")
    lines = (damaged / "metrics.jsonl").read_text().splitlines()
    (damaged / "metrics.jsonl").write_text("\n".join([*lines[:2], "{", lines[3]]))
    write_study(folder / "runs" / "search", metric="")
    options = ("--target", 0.3, "--layer", "fc1", "--layer", "<i>")
    status, output = report(folder / "runs", "--out", folder / "out", *options)
    assert status == 0
    return folder / "out", output


@pytest.mark.slow
def test_report_files_tables_and_warnings(built: tuple[Path, str]) -> None:
    out, output = built
    assert "FedNNNN (model nnnn_mnist)*" in output
    assert f"page: {out}/index.html" in output
    tables = {"accuracy.csv", "accuracy.tex", "rounds-to-accuracy.csv", "rounds-to-accuracy.tex"}
    others = {"index.html", "README.md", "rounds.csv"}
    names = ["accuracy", "agreement", "client-norms", "integrated-norm", "loss", "seconds"]
    names += ["norms", "norms-fc1"]
    figures = {f"figures/mnist-non-iid-b/{name}.svg" for name in names}
    assert files_of(out).keys() == others | tables | figures
    assert "client_acc" not in (out / "rounds.csv").read_text()  # which none has
    cells = "".join(path.read_text() for path in out.glob("*.csv"))
    assert {"'=1+1", "'=cmd()"} <= {*re.split("[,\n]", cells)}  # no formula for a spreadsheet
    assert len(pd.read_csv(out / "rounds.csv")) == 7
    text = (out / "README.md").read_text()  # what ``results/README.md`` is made of
    assert r"\<b\>\&x\|" in text
    assert set(re.findall(r"\]\((figures/[^)]+)\)", text)) == figures
    assert not re.search(r"(?<!\\)[<>]", text)  # names are text
    assert re.search(r"^\| data set \|.*\|\n\| --- \|", text, re.MULTILINE)
    for text in (output, (out / "index.html").read_text()):
        assert "=1+1/metrics.jsonl: line 3" in text
        assert "--layer" in text
        assert "study.yaml" in text


@pytest.mark.slow
def test_page_is_whole_and_links_nowhere_else(built: tuple[Path, str]) -> None:
    page = (built[0] / "index.html").read_text()
    assert not re.search(r"<(script|b|i)\b", page)  # names are text
    assert "&lt;b&gt;&amp;x" in page
    for link in re.findall(r' (?:src|href)="([^"]*)"', page):
        assert link.startswith(("data:", "#")) or (built[0] / link).is_file()
    assert "http:" not in page.replace("http-equiv", "")
    assert "url(" not in page
    labels = re.findall(r'<img [^>]*alt="([^"]*)"', page)
    assert [len(label) > 40 for label in labels] == [True] * 8


def test_csv_text_is_no_formula() -> None:
    names = ["=1+1", "+x", "-x", "@x", "\tx", "a\r=b", "a=b", "-1e-3", "-inf", None]
    table = pd.DataFrame({"name": names, "=HYPERLINK(1)": range(-9, 1), "norm": [-0.5] * 10})
    head, *rows = csv.reader(io.StringIO(as_csv(table).decode(), newline=""))
    assert head == ["name", "'=HYPERLINK(1)", "norm"]
    expected = ["'=1+1", "'+x", "'-x", "'@x", "'\tx", "a =b", "a=b", "-1e-3", "-inf", ""]
    assert [row[0] for row in rows] == expected
    assert [row[1:] for row in rows] == [[str(n), "-0.5"] for n in range(-9, 1)]


@pytest.mark.parametrize("name", ["", "figures", "index.html", "README.md"])
def test_report_replaces_no_file_of_others(make_run, tmp_path: Path, name: str) -> None:
    run, out = make_run("FedNNNN", change=bare), tmp_path / "out"
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("theirs")
    for how in ((), ("--overwrite",)):
        status, output = report(run, "--out", out, *how)
        assert (status, output.count("\n")) == (2, 1)
        assert "--out" in output
    assert (out / name).read_text() == "theirs"


def test_report_that_cannot_be_written_is_not_drawn(make_run, tmp_path: Path) -> None:
    run, out = make_run("FedNNNN", change=bare), tmp_path / "file/out"
    out.parent.touch()
    assert report(run, "--out", out) == (2, f"--out: {out}: cannot be written to\n")


@pytest.mark.slow
def test_report_is_replaced_with_overwrite_only(make_run, study: Path, tmp_path: Path) -> None:
    run, out = make_run("FedNNNN", change=bare), tmp_path / "runs"
    assert report(run, "--out", out, "--target", 0.3, "--format", "pdf,png")[0] == 0
    figures = out / "figures/digits-non-iid-b"
    for kind in ("pdf", "png"):
        assert kind.upper().encode() in (figures / f"accuracy.{kind}").read_bytes()[:5]
    (out / "theirs.svg").write_text("theirs")
    before = files_of(out)
    for given in (study, tmp_path / "missing"):
        status, output = report(given, "--out", out)
        assert (status, files_of(out)) == (2, before)
        assert "--overwrite" in output
    assert report(study, "--out", out, "--overwrite")[0] == 0
    left = {path.name for path in out.iterdir()}
    assert left == {"theirs.svg", run.name, "figures", "index.html", "README.md"}
    assert not figures.exists()
    assert before.keys() & files_of(out).keys() >= {f"{run.name}/metrics.jsonl"}


def test_report_that_was_killed_is_replaced(
    make_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = make_run("FedNNNN", change=bare), tmp_path / "out"
    assert report(run, "--out", out)[0] == 0
    whole = files_of(out).keys()
    renamed = list[Path]()

    def rename(part: Path, place: Path) -> Path:
        if renamed:
            raise KeyboardInterrupt
        renamed.append(place)
        return part.replace(place)

    monkeypatch.setattr(Path, "rename", rename)
    assert report(run, "--out", out, "--overwrite")[0] != 0
    monkeypatch.undo()
    assert len(files_of(out)) < len(whole)
    assert report(run, "--out", out, "--overwrite")[0] == 0
    assert files_of(out).keys() == whole


MARKED = "<b> [x](http://a) *b* _c_ `d` $e$ ~~f~~ @g #h :i: www.j.k ![l](m) | &amp; \\ 1. z"


def test_names_are_text_in_markdown() -> None:
    """As a Markdown parser reads them, at the beginning of a line, in a list, and in a table."""
    markdown = pytest.importorskip("markdown_it").MarkdownIt("gfm-like", {"linkify": False})
    for name in (MARKED, "- a", "+ a", "1. a", "12) a", "---", "===", "# a", "    code", "> a"):
        shown = re.sub(r"<[^>]*>", "", markdown.render(f"a\n\n{escaped(name)}"))
        assert html.unescape(shown) == f"a\n{name.strip()}\n"
        cells = markdown.render(f"| a | b |\n| --- | --- |\n| {escaped(name)} | b |")
        assert f"<td>{html.escape(name.strip())}</td>" in cells.replace("&#39;", "'")


def test_run_without_a_machine_on_record_has_a_page(make_run, tmp_path: Path) -> None:
    """A server's folder, of Flower or FedML, has no ``summary.json``."""
    (make_run("FedNNNN") / "summary.json").unlink()
    status, output = report(tmp_path / "runs", "--out", tmp_path / "out")
    assert status == 0, output
    page = (tmp_path / "out" / "index.html").read_text()
    assert "a machine that is not on record" in page


def test_page_links_the_pages_beside_it(
    make_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they are called; and studies are found as deep as runs."""
    monkeypatch.setattr("fednnnn_plugin.reporting.build.drawn", lambda *_: b"a drawing")
    make_run("FedNNNN", change=lambda line: bare(line, "seconds"))
    runs = make_run("FedNNNN", change=bare).parent  # without times
    write_study(runs / "a" / "b" / "search")
    for name in ("x](y) .md", "\udce9.md"):
        (runs / name).touch()
    (loop := tmp_path / "loop").symlink_to(loop)
    for out in (runs, tmp_path / "out"):
        build_report([runs, loop], out)
        text = (out / "README.md").read_text()
        linked = re.findall("^See also (.*)$", text, re.MULTILINE)
        expected = [r"[x\](y) .md](x%5D%28y%29%20.md).", r"[\\udce9.md](%E9.md)."]
        assert linked == expected * (out == runs)
        assert "Search: digits (search)" in text
        assert "evaluation took 0.1 minutes in all." in text


def test_report_on_a_full_disk_is_one_line(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without room, as a limit on the size of files."""
    monkeypatch.setattr("fednnnn_plugin.reporting.build.drawn", lambda *_: b"a drawing")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would keep the half of a module
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        status, output = report(study, "--out", study.parent / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status == 1
    assert re.fullmatch(rf"{re.escape(str(study.parent))}/out/[\w.-]+: File too large\n", output)
    assert report(study, "--out", study.parent / "out")[0] == 0


# A script beside the page asks what the browser made of it.
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-dev-shm-usage", "--dump-dom"),
)
ASK = """
<script>
const drawings = [...document.images];
Promise.all(drawings.map(image => image.decode())).then(() =>
document.body.innerHTML = `<pre id="answer">${JSON.stringify({
  drawings: drawings.map(image =>
    [image.getBoundingClientRect().height > 50, image.naturalWidth > 300]),
  paper: getComputedStyle(document.querySelector("figure")).backgroundColor,
  inverted: getComputedStyle(drawings[0]).filter != "none",
  wide: document.documentElement.scrollWidth - innerWidth,
})}</pre>`);
</script>
"""


def ask(page: Path, *flags: str) -> dict[str, Any]:
    """What the page is like in a browser started with some flags."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    asked = page.with_name("asked.html")
    text = page.read_text(encoding="utf-8").replace("</body>", ASK + "</body>")
    asked.write_text(text.replace("style-src", "script-src 'unsafe-inline'; style-src"))
    profile = f"--user-data-dir={page.parent.parent / 'profile'}"
    command = [chromium, *FLAGS, profile, *flags, asked.as_uri()]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WATCHDOG)
    (answer,) = re.findall(r'<pre id="answer">(.*?)</pre>', ended.stdout)
    return json.loads(answer)


@pytest.mark.chromium
@pytest.mark.slow
def test_page_in_a_browser(built: tuple[Path, str], tmp_path: Path) -> None:
    page = shutil.copytree(built[0], tmp_path / "out") / "index.html"
    light = ask(page, "--window-size=1280,900")
    assert len(light["drawings"]) == 8
    assert all(all(checks) for checks in light["drawings"])
    assert light["wide"] <= 0
    assert (light["inverted"], light["paper"]) == (False, "rgb(255, 255, 255)")

    dark = ask(page, "--blink-settings=preferredColorScheme=0", "--window-size=500,900")
    assert (dark["inverted"], dark["paper"]) == (True, "rgb(23, 27, 33)")
    assert dark["wide"] <= 0
