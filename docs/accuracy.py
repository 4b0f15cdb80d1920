"""README's figure, light and dark: ``python docs/accuracy.py RUN...`` writes it to this folder."""

import re
import sys
from io import StringIO
from pathlib import Path

import matplotlib as mpl

import fednnnn_plugin as fp
from fednnnn_plugin.report import style

HERE = Path(__file__).parent
PAGE = Path(style.__file__).with_name("page.html")


def main() -> None:
    """Draw the accuracy of the runs that the command line names."""
    figure = fp.figures.accuracy(fp.read_runs(*sys.argv[1:])).figure
    written = StringIO()
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "fednnnn"}):
        figure.savefig(written, format="svg", metadata={"Date": None})
    light = dark = written.getvalue()
    # The report's page has two values of each colour that a figure may have.
    for color, name in style.THEME.items():
        (value,) = re.findall(rf"--{name}: light-dark\(#\w+, (#\w+)\)", PAGE.read_text())
        dark = dark.replace(color, value)
    (HERE / "accuracy-light.svg").write_text(light)
    (HERE / "accuracy-dark.svg").write_text(dark)


if __name__ == "__main__":
    main()
