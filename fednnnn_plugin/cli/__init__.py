"""The ``fednnnn`` command; ``fedml run RECIPE.yaml`` is its ``run``.

Exit status: 0 done, 2 a mistake of the user's (one line each), 1 a run that cannot continue,
130 and 143 interrupted by SIGINT and SIGTERM.
"""

import click

from fednnnn_plugin import __version__
from fednnnn_plugin.cli.look import partition_command, recipes_command, report_command
from fednnnn_plugin.cli.run import check_command
from fednnnn_plugin.cli.run import run_command as run_command
from fednnnn_plugin.cli.tune import tune_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """FedNNNN, norm-normalised federated learning: run, check, tune and report experiments."""


for _command in (
    *(run_command, check_command, tune_command),
    *(report_command, partition_command, recipes_command),
):
    main.add_command(_command)
