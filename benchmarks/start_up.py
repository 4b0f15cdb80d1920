"""What the plugin adds to the start of Python, and ``fedml run`` to ``import fedml``.

    python benchmarks/start_up.py

The hook: bare interpreters with and without its .pth file in turn, compared in pairs; the goal is
1 ms. The command: a run of one round, less the seconds that the round itself took, beside
``python -c 'import fedml'``; the goal is half a second.
"""

import shutil
import statistics
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

import click
from harness import BIN, command, in_turn, run_of, spread, timed

import fednnnn_plugin.fedml

PTH = Path(fednnnn_plugin.fedml.__file__).with_name("fednnnn_plugin.pth")


def make_interpreter(folder: Path) -> Path:
    """Make a virtual environment without packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


def fedml_run() -> float:
    """Return the seconds of a run of a round, without the round."""
    recipe = (BIN / "fedml", "run", "digits_noniid_b_fednnnn.yaml")
    wall, rounds = run_of(*recipe, **{"train_args.comm_round": 1})
    return wall - sum(rounds)


def added(without: Sequence[float], more: Sequence[float]) -> float:
    """Return the median difference of pairs."""
    return statistics.median(b - a for a, b in zip(without, more, strict=True))


@click.command(help=__doc__)
@click.option("--pairs", default=200, show_default=True, help="Of the command 7 at most.")
def main(pairs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain, hooked = (make_interpreter(Path(folder, name)) for name in ("plain", "hooked"))
        [site_packages] = Path(folder, "hooked").glob("lib/python*/site-packages")
        shutil.copy(PTH, site_packages)
        starts = {str(python): timed(command, python, "-c", "pass") for python in (plain, hooked)}
        without, more = (
            [1e3 * start for start in seconds] for seconds in in_turn(starts, pairs).values()
        )
    click.echo(f"start-up {spread(without)} ms, with the hook {spread(more)} ms, {pairs} pairs:")
    click.echo(f"it costs {added(without, more):.2f} ms; goal 1 ms")
    fedml = {"import": timed(command, sys.executable, "-c", "import fedml"), "run": fedml_run}
    imported, run = in_turn(fedml, min(7, pairs)).values()
    click.echo(f"import fedml {spread(imported)} s, fedml run without its round {spread(run)} s:")
    click.echo(f"it adds {added(imported, run):.2f} s; goal 0.5 s")


if __name__ == "__main__":
    main()
