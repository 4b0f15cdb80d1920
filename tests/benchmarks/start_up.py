"""What the plugin adds to the start of Python, and ``fedml run`` to ``import fedml``.

    python tests/benchmarks/start_up.py [PAIRS]

The hook: bare interpreters with and without its .pth file in turn, compared in pairs; exit status 1
if the median difference is over 1 ms. The command: a run of one round, less the seconds that the
round itself took, beside ``python -c 'import fedml'``; the goal is half a second.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import fednnnn_plugin.fedml

LIMIT_MS = 1.0
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
PTH = Path(fednnnn_plugin.fedml.__file__).with_name("fednnnn_plugin.pth")


def make_interpreter(folder: Path, *, hooked: bool) -> Path:
    """Make a virtual environment with nothing, or nothing but the hook, in its site-packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    if hooked:
        [site_packages] = folder.glob("lib/python*/site-packages")
        shutil.copy(PTH, site_packages)
    return folder / "bin" / "python"


def milliseconds(interpreter: Path) -> float:
    """Time one start of an interpreter that does nothing."""
    started = time.perf_counter()
    subprocess.run([interpreter, "-c", "pass"], check=True)
    return 1e3 * (time.perf_counter() - started)


def run_over_import(repeats: int) -> list[tuple[float, float]]:
    """Return the seconds of ``import fedml``, and of a run of a round without the round."""
    commands = Path(sys.executable).parent
    recipe = ("digits_noniid_b_fednnnn", "--set", "train_args.comm_round=1")
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([commands / "fednnnn", "recipes", "copy", folder], check=True, **QUIET)
        for number in range(repeats):
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", "import fedml"], check=True, **QUIET)
            imported = time.perf_counter()
            run = Path(folder, str(number))
            name, *options = recipe
            subprocess.run(
                [commands / "fedml", "run", f"{folder}/{name}.yaml", *options, "--output", run],
                check=True,
                **QUIET,
            )
            ended = time.perf_counter()
            record = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8"))
            pairs.append((imported - started, ended - imported - sum(record["seconds"].values())))
    return pairs


def main(pairs: int) -> int:
    """Print the medians; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        plain = make_interpreter(Path(folder, "plain"), hooked=False)
        hooked = make_interpreter(Path(folder, "hooked"), hooked=True)
        times = [(milliseconds(plain), milliseconds(hooked)) for _ in range(pairs)]
    without, with_hook = (statistics.median(column) for column in zip(*times, strict=True))
    cost = statistics.median(b - a for a, b in times)
    sys.stdout.write(
        f"start-up, median of {pairs} pairs: {without:.2f} ms without the hook, {with_hook:.2f} ms "
        f"with it; the hook costs {cost:.2f} ms (limit {LIMIT_MS:.0f} ms)\n"
    )
    times = run_over_import(min(7, pairs))
    imported, run = (statistics.median(column) for column in zip(*times, strict=True))
    added = statistics.median(b - a for a, b in times)
    sys.stdout.write(
        f"import fedml {imported:.2f} s, fedml run without its round {run:.2f} s: it adds "
        f"{added:.2f} s, median of {len(times)} pairs (goal 0.5 s)\n"
    )
    return int(cost > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
