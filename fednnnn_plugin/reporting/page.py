"""The report from Python."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fednnnn_plugin.errors import in_python
from fednnnn_plugin.reporting.arguments import OUT, checked_path, run_paths
from fednnnn_plugin.reporting.build import build_report

_log = logging.getLogger(__name__)


@in_python
def report(
    *runs: Path | str | Iterable[Path | str],
    out: Path | str = "report",
    layers: str | Sequence[str] = (),
    target: float | str | None = None,
    formats: str | Sequence[str] = (),
    hue: str | Sequence[str] = (),
    overwrite: bool = False,
) -> Path:
    """Make tables, figures and a page from runs and studies, like ``fednnnn report``.

    What was left out is logged as a warning.

    Args:
        runs: run folders, study folders, or folders of them, as for
            :func:`~fednnnn_plugin.read_runs`.
        out: where tables, figures and ``index.html`` go.
        layers: a module or modules whose norms to show, such as ``"fc3"``; by default the last one
            named ``fc…`` and the last one named ``conv…``.
        target: an accuracy in (0, 1], or a value of the runs' first metric; or a text such as
            ``"worst_10=0.6"``, of ``accuracy``, ``loss``, a first metric, or ``worst_10``, the
            accuracy of the worst tenth of the clients. A table says which
            round reaches it first: the median over seeds, and how many got there.
        formats: ``"pdf"``, ``"png"`` or both: further files of each figure, beside its SVG.
        hue: the column or columns of :func:`~fednnnn_plugin.read_runs` whose values tell lines
            apart; by default the method, and the settings that differ.
        overwrite: replace an earlier report in ``out``.

    Returns:
        The path of the page.

    Raises:
        UserError: no run was found, a bad argument, or ``out`` has a report and ``overwrite`` is
            not set, or has files of such names that are of no report.
    """
    paths, folder = run_paths(runs), checked_path(OUT, out)
    how: Any = {"layers": layers, "target": target, "formats": formats, "hue": hue}
    built = build_report(paths, folder, **how, overwrite=overwrite)
    for warning in built.warnings:
        _log.warning("%s", warning)
    return built.page
