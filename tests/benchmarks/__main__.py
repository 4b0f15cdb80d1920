"""All benchmarks, one after another, with the machine that they ran on.

    python tests/benchmarks            # an hour on two cores
    python tests/benchmarks --quick    # a look: fewer clients, one repeat

Ratios count, not seconds: nothing else should run meanwhile.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import torch
import training

HERE = Path(__file__).parent


def machine() -> str:
    """Describe processor, memory, GPU and versions in a line."""
    described = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(": ", 1)[1] for line in described if line.startswith("model name")]
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    capability = torch.backends.cpu.get_cpu_capability()
    return (
        f"{len(os.sched_getaffinity(0))} cores of {names[0]} ({capability}), {gib:.0f} GiB, {gpu}; "
        f"Python {platform.python_version()}, PyTorch {torch.__version__}, FedML {version('fedml')}"
    )


@click.command(help=__doc__)
@click.option("--quick", is_flag=True)
@click.option("--data", default=training.DATA, type=click.Path(exists=True), show_default=True)
def main(quick: bool, data: str) -> None:
    click.echo(machine())
    _script("start_up.py", "20" if quick else "200")
    _script("report.py")
    _script("aggregation.py", "--rounds", "5" if quick else "15")
    for dataset in ("mnist", "cifar10"):
        training.compare(dataset, 2 if quick else 10, 1 if quick else 3, data)
    _script("ranks.py", "--data", data, "--clients", "10" if quick else "60")


def _script(name: str, *arguments: str) -> None:
    click.echo(f"\n{name}")
    status = subprocess.run([sys.executable, HERE / name, *arguments], check=False).returncode
    if status:
        click.echo(f"{name} ended with status {status}", err=True)


if __name__ == "__main__":
    main()
