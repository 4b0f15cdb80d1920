"""The page in headless Chromium, driven over its DevTools pipe (no driver, no port)."""

import base64
import csv
import json
import os
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from click.testing import CliRunner

from fednnnn_plugin.cli import main
from fednnnn_plugin.report.build import build_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--force-color-profile=srgb", "--window-size=1280,900"),
)


class Browser:
    """One page of a browser that answers on file descriptors 3 and 4."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None, "needs Debian's package chromium"
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        arguments = [CHROMIUM, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        quiet = os.open(os.devnull, os.O_RDWR)
        self._pid = os.posix_spawn(
            CHROMIUM,
            [*arguments, "about:blank"],
            os.environ | {"HOME": str(profile)},
            file_actions=[
                # Copied high first, so that neither copy onto 3 and 4 closes the other's source.
                (os.POSIX_SPAWN_DUP2, theirs_in, 103),
                (os.POSIX_SPAWN_DUP2, theirs_out, 104),
                (os.POSIX_SPAWN_DUP2, 103, 3),
                (os.POSIX_SPAWN_DUP2, 104, 4),
                (os.POSIX_SPAWN_DUP2, quiet, 1),
                (os.POSIX_SPAWN_DUP2, quiet, 2),
            ],
        )
        for descriptor in (theirs_in, theirs_out, quiet):
            os.close(descriptor)
        self._out, self._in = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")
        self._rest, self._last, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        pages = self.call("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events on the way are kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while (answer := self._receive()).get("id") != self._last:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, page: Path) -> None:
        self.call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """A key of the keyboard."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                **{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code},
                **(text if kind == "keyDown" else {}),
            )

    def screenshot(self, path: Path) -> None:
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        self._session = ""
        self.call("Browser.close")
        os.waitpid(self._pid, 0)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self._in.fileno(), 1 << 20)
            assert read, "the browser ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    browser = Browser(tmp_path / "profile")
    yield browser
    browser.close()


@pytest.fixture
def page(two_methods: list[Path], tmp_path: Path) -> Path:
    return build_report(two_methods, tmp_path / "report", target=0.5).page


COLUMN = """
    [...document.querySelectorAll("table.sortable tbody tr")].map(r => r.cells[%d].textContent)
"""


def test_page_in_browser(page: Path, browser: Browser) -> None:
    browser.open(page)
    found = browser.evaluate(
        """({
            images: [...document.images].map(i => i.complete && i.naturalWidth > 0),
            drawings: [...document.querySelectorAll("figure > svg")].map(
                s => [s.getBoundingClientRect().height > 50, s.querySelectorAll("path").length > 5,
                      s.getAttribute("aria-label").length > 40]),
            twice: [...document.querySelectorAll("[id]")].map(e => e.id)
                .filter((id, i, all) => all.indexOf(id) !== i),
            headings: [...document.querySelectorAll("h1, h2, h3")].map(h => +h.tagName[1]),
            wide: document.documentElement.scrollWidth - innerWidth,
        })"""
    )
    assert all(found["images"])
    assert len(found["drawings"]) == 8
    assert all(all(checks) for checks in found["drawings"])
    assert found["twice"] == []
    assert found["headings"][0] == 1
    assert all(b - a <= 1 for a, b in pairwise(found["headings"]))
    assert found["wide"] <= 0

    # A click sorts, a second one turns the order round.
    best = 6
    button = f'document.querySelectorAll("table.sortable th button")[{best}]'
    before = browser.evaluate(COLUMN % best)
    browser.evaluate(f"{button}.click()")
    assert browser.evaluate(COLUMN % best) == sorted(before, key=float)
    assert browser.evaluate(f'{button}.closest("th").ariaSort') == "ascending"
    browser.evaluate(f"{button}.click()")
    assert browser.evaluate(COLUMN % best) == sorted(before, key=float, reverse=True)
    assert browser.evaluate('document.querySelectorAll("[aria-sort]").length') == 1
    # So does the keyboard; text sorts as text.
    browser.evaluate('document.querySelector("table.sortable th button").focus()')
    browser.press("Enter", 13)
    names = browser.evaluate(COLUMN % 0)
    assert names == sorted(names)
    assert browser.evaluate('document.getElementById("sorted").textContent') == (
        "Sorted by run, ascending"
    )

    # A link to a run's settings opens them.
    browser.evaluate('document.querySelector("table.sortable tbody a").click()')
    browser.evaluate("new Promise(requestAnimationFrame)")
    assert browser.evaluate('document.querySelectorAll("details[open]").length') == 1

    browser.screenshot(page.with_name("screenshot.png"))
    assert complaints(browser) == []
    assert requests(browser) == [page.as_uri()]


def test_a_search_in_browser(tmp_path: Path, browser: Browser) -> None:
    study = tmp_path / "study"
    study.mkdir()
    (study / "study.yaml").write_text(
        "{recipe: r, metric: best_accuracy, steps: [{name: FedNNNN, method: FedNNNN, rounds: 30, "
        "grid: {beta: [0.5, 0.6], gamma: [0.7, 0.8]}}]}"
    )
    points = {(0.5, 0.7): 0.91, (0.5, 0.8): 0.99, (0.6, 0.7): 0.93, (0.6, 0.8): 0.92}
    lines = ["step,state,value,beta,gamma"]
    lines += [f"FedNNNN,finished,{value},{b},{g}" for (b, g), value in points.items()]
    (study / "trials.csv").write_text("\n".join(lines) + "\n")
    page = build_report([study], tmp_path / "report").page
    browser.open(page)
    found = browser.evaluate(
        """({
            label: document.querySelector("figure > svg").getAttribute("aria-label"),
            colours: [...document.querySelectorAll("figure > svg path")]
                .map(p => getComputedStyle(p).fill),
            wide: document.documentElement.scrollWidth - innerWidth,
        })"""
    )
    assert found["label"].startswith("Heat map of the best validation accuracy over β and γ")
    assert "rgb(253, 231, 37)" in found["colours"]  # the best cell: the end of viridis
    assert found["wide"] <= 0
    accuracy = 5
    button = f'document.querySelectorAll("table.sortable th button")[{accuracy}]'
    browser.evaluate(f"{button}.click()")
    assert browser.evaluate(COLUMN % accuracy) == ["91.00", "92.00", "93.00", "99.00"]
    assert complaints(browser) == []
    assert requests(browser) == [page.as_uri()]


@pytest.mark.slow
def test_report_of_short_digits_runs(tmp_path: Path, browser: Browser) -> None:
    """Five methods and two seeds, run by the engine itself."""
    small = ("train_args.comm_round=3", "train_args.epochs=1", "validation_args.test_served=true")
    for method in ("fedavg", "fedprox", "normnorm", "momentum", "fednnnn"):
        for seed in (0, 1):
            arguments = ["run", f"digits_noniid_b_{method}"]
            arguments += ["--output", str(tmp_path / "runs" / f"{method}-{seed}")]
            for value in (*small, f"common_args.random_seed={seed}"):
                arguments += ["--set", value]
            assert CliRunner().invoke(main, arguments).exit_code == 0
    out = tmp_path / "report"
    result = CliRunner().invoke(
        main, ["report", str(tmp_path / "runs"), "--out", str(out), "--target", "0.5"]
    )
    assert result.exit_code == 0
    assert "warning" not in result.output

    recorded: dict[str, list[list[float]]] = {}
    for file in sorted((tmp_path / "runs").glob("*/metrics.jsonl")):
        accuracies = [json.loads(line)["test_acc"] for line in file.read_text().splitlines()]
        recorded.setdefault(file.parent.name.partition("-")[0], []).append(accuracies)
    rows = {
        row["method"].replace("-", "").lower(): row
        for row in csv.DictReader((out / "accuracy.csv").read_text().splitlines())
    }
    assert len(rows) == 5
    for method, runs in recorded.items():
        assert float(rows[method]["best_mean"]) == pytest.approx(mean(map(max, runs)), abs=1e-15)
        last = mean(run[-1] for run in runs)
        assert float(rows[method]["final_mean"]) == pytest.approx(last, abs=1e-15)

    browser.open(out / "index.html")
    assert browser.evaluate('document.querySelectorAll("figure > svg").length') == 8
    assert len(browser.evaluate(COLUMN % 0)) == 10
    assert complaints(browser) == []
    assert requests(browser) == [(out / "index.html").as_uri()]


def complaints(browser: Browser) -> list[Any]:
    """Console errors and warnings, and exceptions."""
    found = [e["params"] for e in browser.events if e["method"] == "Runtime.exceptionThrown"]
    found += [e["params"]["entry"] for e in browser.events if e["method"] == "Log.entryAdded"]
    calls = [e["params"] for e in browser.events if e["method"] == "Runtime.consoleAPICalled"]
    return found + [call for call in calls if call["type"] in ("error", "warning", "assert")]


def requests(browser: Browser) -> list[str]:
    """Every address asked for that is not inside the page itself."""
    sent = [e for e in browser.events if e["method"] == "Network.requestWillBeSent"]
    urls = [event["params"]["request"]["url"].partition("#")[0] for event in sent]
    return list(dict.fromkeys(url for url in urls if not url.startswith("data:")))


def test_hostile_recipe_values_stay_text(
    two_methods: list[Path], tmp_path: Path, browser: Browser
) -> None:
    attack = "</script><script>window.hit = 1</script><img src=x onerror='window.hit = 1'>"
    recipe = two_methods[0] / "recipe.yaml"
    text = recipe.read_text().replace("dataset: digits", f"dataset: {json.dumps(attack)}")
    recipe.write_text(text)
    page = build_report(two_methods, tmp_path / "report").page
    browser.open(page)
    assert browser.evaluate("window.hit ?? null") is None
    assert browser.evaluate("document.images.length") == 0
    assert attack in browser.evaluate("document.body.textContent")
    assert complaints(browser) == []
    assert requests(browser) == [page.as_uri()]
