"""README's figure, light and dark: ``python docs/accuracy.py RUN...`` writes it to this folder."""

import sys
from io import StringIO
from pathlib import Path

import matplotlib as mpl

import fednnnn_plugin as fp

HERE = Path(__file__).parent


def main() -> None:
    """Draw the accuracy of the runs that the command line names."""
    figure = fp.figures.accuracy(fp.read_runs(*sys.argv[1:])).figure
    written = StringIO()
    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "fednnnn"}):
        figure.savefig(written, format="svg", metadata={"Date": None})
    light = written.getvalue()
    dark = light.replace("<svg ", '<svg style="filter: invert(0.9) hue-rotate(180deg)" ', 1)
    (HERE / "accuracy-light.svg").write_text(light)
    (HERE / "accuracy-dark.svg").write_text(dark)


if __name__ == "__main__":
    main()
