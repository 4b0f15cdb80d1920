"""What the import hook costs an interpreter that never imports FedML.

    python tests/benchmarks/start_up.py [PAIRS]

Starts bare interpreters with and without the hook's .pth file in turn and compares them in pairs.
Exit status 1 if the median difference is over 1 ms.
"""

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
    return int(cost > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
