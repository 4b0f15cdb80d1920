"""All benchmarks, one after another, with the machine that they ran on.

    python benchmarks            # an hour on two cores
    python benchmarks --quick    # a look: fewer clients, one repeat

Ratios count, not seconds: nothing else should run meanwhile.
"""

import os
import subprocess
import sys
from pathlib import Path

import click
import torch
from harness import data_option

from fednnnn_plugin.files import MEMORY
from fednnnn_plugin.processes.devices import device_facts, device_name, visible_gpus
from fednnnn_plugin.run_folder.provenance import versions

# Script -> what it is given, and what for a look.
SCRIPTS = {
    "start_up.py": ("--pairs 200", "--pairs 20"),
    "report.py": ("--repeats 5", "--repeats 1"),
    "aggregation.py": ("--repeats 15", "--repeats 5"),
    "training.py mnist": ("--clients 10", "--clients 2 --repeats 1"),
    "training.py cifar10": ("--clients 10", "--clients 2 --repeats 1"),
    "training.py resnet18": ("--clients 4", "--clients 1 --repeats 1"),
    "ranks.py": ("--clients 60", "--clients 10"),
}


def machine() -> str:
    """Describe processor, memory, GPU and versions in a line."""
    cpu = device_facts(torch.device("cpu"))
    gpu = device_name(torch.device("cuda")) if visible_gpus() else "no GPU"
    packages = ", ".join(f"{package} {number}" for package, number in versions().items())
    return f"{cpu['name']}, {cpu['instructions']}, {MEMORY / 2**30:.0f} GiB, {gpu}; {packages}"


@click.command(help=__doc__)
@click.option("--quick", is_flag=True)
@data_option
def main(quick: bool, data: Path) -> None:
    click.echo(machine())
    for script, options in SCRIPTS.items():
        click.echo(f"\n{script}")
        name, *words = f"{script} {options[quick]}".split()
        given = [sys.executable, Path(__file__).with_name(name), *words]
        status = subprocess.run(
            given, check=False, env=os.environ | {"FEDNNNN_DATA": str(data)}
        ).returncode
        if status:
            click.echo(f"{name} ended with status {status}", err=True)


if __name__ == "__main__":
    main()
