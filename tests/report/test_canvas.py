import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from fednnnn_plugin.report.canvas import (
    FORMATS,
    Area,
    Canvas,
    Line,
    Text,
    drawable,
    fitted,
    text_width,
)

RED = (214, 39, 40)


def drawing() -> Canvas:
    """White paper, a red square at the bottom left, a text at the top."""
    sheet = np.array([[0, 0], [100, 0], [100, 50], [0, 50]], dtype=np.float64)
    square = np.array([[10, 10], [20, 10], [20, 20], [10, 20]], dtype=np.float64)
    items = [Area([sheet], "#ffffff"), Area([square], "#d62728"), Text(50, 40, "N/E ± 1", size=6)]
    line = Line(np.array([[0.0, 5.0], [100.0, 5.0]]), "#0072b2", 1.0, (2.0, 1.0))
    return Canvas(100, 50, [*items, line])


def test_png_has_the_square_where_it_was_put(tmp_path: Path) -> None:
    drawing().save(tmp_path / "a.png")
    image = Image.open(tmp_path / "a.png").convert("RGB")
    assert image.size == (200, 100)
    assert image.getpixel((30, 100 - 30)) == RED
    assert image.getpixel((50, 100 - 50)) == (255, 255, 255)
    top = np.asarray(image.convert("L"))[:30]
    assert (top < 128).any()  # the text


def test_svg_needs_no_font_and_pdf_carries_truetype(tmp_path: Path) -> None:
    drawing().save(tmp_path / "a.svg")
    drawing().save(tmp_path / "a.pdf")
    svg = (tmp_path / "a.svg").read_text()
    assert "<text" not in svg
    assert "fill: #d62728" in svg
    assert "stroke-dasharray: 2,1" in svg
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


@pytest.mark.parametrize("kind", FORMATS)
def test_same_drawing_same_bytes(tmp_path: Path, kind: str) -> None:
    first, second = tmp_path / f"a.{kind}", tmp_path / f"b.{kind}"
    drawing().save(first)
    with mpl.rc_context({"savefig.bbox": "tight", "svg.fonttype": "none", "pdf.fonttype": 3}):
        drawing().save(second)
    assert first.read_bytes() == second.read_bytes()


def test_text_that_the_font_lacks_becomes_a_question_mark(tmp_path: Path) -> None:
    assert drawable("β 0.6 → 日本") == "β 0.6 ? ??"
    canvas = Canvas(100, 50, [Text(1, 1, "日本 $x$ & <b>")])
    for kind in FORMATS:
        canvas.save(tmp_path / f"a.{kind}")  # no warning of a missing glyph, no mathematics
    assert not re.search(r"<b>", (tmp_path / "a.svg").read_text())


def test_texts_are_cut_to_their_room() -> None:
    assert fitted("FedNNNN", 100.0) == "FedNNNN"
    short = fitted("FedNNNN (β 0.6, γ 0.7, epochs 5)", 60.0)
    assert short.endswith("…")
    assert short.startswith("FedNNNN")
    assert text_width(short) <= 60.0
