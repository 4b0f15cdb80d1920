"""``fedml run RECIPE.yaml`` beside FedML's own subcommands."""

import click.testing
import pytest
from fedml.cli.cli import cli
from fedml.cli.modules import run

import fednnnn_plugin as fp

SET = ("--set", "train_args.beta=5e-4")
MISSING = "a.yaml: no such file"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("a.yaml", *SET, *SET), 2, MISSING),
        ((*SET, *SET, "folder/a.yml"), 2, "folder/a.yml: no such file"),
        ((*SET, "a.yaml", *SET, "--backend", "sp", "--output", "list", "--resume"), 2, MISSING),
        (("./list.yaml",), 2, "./list.yaml: no such file"),
        (("mnist_iid_b_fedavg", "--set", "train_args.beat=1"), 2, "train_args.beat: "),
        (("a.yaml", "--api_key", "key"), 2, "No such option"),
        (("a.yaml", "--help"), 0, "Usage: fedml run [OPTIONS] RECIPE.yaml\n"),
        # What follows stays FedML's to answer.
        (("digits",), 2, "No such command"),
        (("--help",), 0, "fedml run RECIPE.yaml --help"),
        (("list", "a.yaml"), 2, "Usage: fedml run list "),
        (("status", "--name", "a.yaml"), 2, "Usage: fedml run status "),
        (("-k", "key", "stop", "a.yaml"), 2, "Usage: fedml run stop "),
    ],
)
def test_run_takes_recipes_beside_fedmls_words(words, status, said) -> None:
    fp.register()  # again
    assert run.fedml_run is cli.commands["run"]
    result = click.testing.CliRunner().invoke(cli, ["run", *words], prog_name="fedml")
    assert (result.exit_code, said in result.output) == (status, True), result.output
