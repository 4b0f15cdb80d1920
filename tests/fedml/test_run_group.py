"""``fedml run RECIPE.yaml`` beside FedML's own subcommands."""

import click
import click.testing
import pytest
from fedml.cli.cli import cli
from fedml.cli.modules import run

import fednnnn_plugin as fp
import fednnnn_plugin.cli

SET = ("--set", "train_args.beta=5e-4")


def fedml_command(*words: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(cli, ["run", *words], prog_name="fedml")


@pytest.fixture
def begun(monkeypatch) -> list:
    """What the recipe command and FedML's subcommands are given; here they do nothing."""
    calls: list = []
    ours = fednnnn_plugin.cli.run_command
    dummy = click.Command(ours.name, params=ours.params, callback=lambda **o: calls.append(o))
    monkeypatch.setattr(fednnnn_plugin.cli, "run_command", dummy)
    for command in run.fedml_run.commands.values():

        def parse(ctx: click.Context, args: list[str]) -> None:
            calls.append((ctx.info_name, *args))
            ctx.exit(0)

        monkeypatch.setattr(command, "parse_args", parse)
    return calls


@pytest.mark.parametrize("name", ["a.yaml", "folder/a.yml", "./list.yaml", "mnist_iid_b_fedavg"])
def test_run_takes_a_recipe_by_file_or_name(begun, name: str) -> None:
    after = ("--backend", "sp", "--output", "list", "--overwrite")
    for words in ((name, *SET, *SET), (*SET, *SET, name), (*SET, name, *SET, *after)):
        assert fedml_command(*words).exit_code == 0
        assert (begun[-1]["recipe"], begun[-1]["overrides"]) == (name, (SET[1],) * 2)
    assert begun[-1]["overwrite"]
    fp.register()
    assert click.testing.CliRunner().invoke(run.fedml_run, [name]).exit_code == 0  # the group alone
    assert len(begun) == 4


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("digits",), 2, "No such command"),  # stays FedML's to refuse
        (("a.yaml", "--api_key", "key"), 2, "No such option"),
        (("a.yaml",), 2, "a.yaml: no such file"),
        (("a.yaml", "--help"), 0, "Usage: fedml run [OPTIONS] RECIPE.yaml\n"),
    ],
)
def test_run_answers_other_words(words, status, said) -> None:
    result = fedml_command(*words)
    assert (result.exit_code, said in result.output) == (status, True), result.output


def test_run_keeps_fedmls_subcommands(begun) -> None:
    for words in (("list", "x.yaml"), ("status", "-r", "x.yaml")):
        assert fedml_command(*words).exit_code == 0
        assert begun[-1] == words
    assert fedml_command("-k", "key", "stop", "x.yaml").exit_code == 0
    assert begun[-1] == ("stop", "x.yaml")
