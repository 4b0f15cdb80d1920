"""The report from Python."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from fednnnn_plugin.errors import in_python, in_words
from fednnnn_plugin.reporting.arguments import checked_path, run_paths
from fednnnn_plugin.reporting.build import build_report

_log = logging.getLogger(__name__)
_WORDS = {"--out": "out", "--layer": "layers", "--target": "target", "--format": "formats"}


def report(
    *runs: Path | str | Iterable[Path | str],
    out: Path | str = "report",
    layers: str | Sequence[str] = (),
    target: float | None = None,
    formats: str | Sequence[str] = (),
) -> Path:
    """Make tables, figures and a page from runs and studies, like ``fednnnn report``.

    What was left out is logged as a warning.

    Args:
        runs: run folders, study folders, or folders of them, as for
            :func:`~fednnnn_plugin.read_runs`.
        out: where tables, figures and ``index.html`` go; an earlier report there is replaced.
        layers: a module or modules whose norms to show, such as ``"fc3"``; by default the last one
            named ``fc…`` and the last one named ``conv…``.
        target: an accuracy in (0, 1], or a value of the runs' first metric: a table says which
            round reaches it first.
        formats: ``"pdf"``, ``"png"`` or both: further files of each figure, beside its SVG.

    Returns:
        The path of the page.

    Raises:
        UserError: no run was found, a bad argument, or a file in ``out`` that is of no report and
            has the name of one that this one writes.
    """
    with in_words(_WORDS):
        paths, folder = run_paths(runs), checked_path("--out", out)
        built = build_report(paths, folder, layers=layers, target=target, formats=formats)
    for warning in built.warnings:
        _log.warning("%s", in_python(warning, _WORDS))
    return built.page
