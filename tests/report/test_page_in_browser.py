"""The page in headless Chromium: a script beside it asks what the browser made of it."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fednnnn_plugin.report.build import build_report

from ..support.processes import WATCHDOG

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
    assert chromium is not None
    asked = page.with_name("asked.html")
    text = page.read_text(encoding="utf-8").replace("</body>", ASK + "</body>")
    asked.write_text(text.replace("style-src", "script-src 'unsafe-inline'; style-src"))
    profile = f"--user-data-dir={page.parent.parent / 'profile'}"
    command = [chromium, *FLAGS, profile, *flags, asked.as_uri()]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WATCHDOG)
    (answer,) = re.findall(r'<pre id="answer">(.*?)</pre>', ended.stdout)
    found: dict[str, Any] = json.loads(answer)
    return found


@pytest.mark.chromium
@pytest.mark.slow
def test_page_in_a_browser(make_run, study: Path, tmp_path: Path) -> None:
    for method in ("PaperFedAvg", "FedNNNN"):
        folder = make_run(method)
    page = build_report([folder.parent, study], tmp_path / "out").page
    light = ask(page, "--window-size=1280,900")
    assert len(light["drawings"]) == 11
    assert all(all(checks) for checks in light["drawings"])
    assert light["wide"] <= 0
    assert (light["inverted"], light["paper"]) == (False, "rgb(255, 255, 255)")

    dark = ask(page, "--blink-settings=preferredColorScheme=0", "--window-size=500,900")
    assert (dark["inverted"], dark["paper"]) == (True, "rgb(23, 27, 33)")
    assert dark["wide"] <= 0
