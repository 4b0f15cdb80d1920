"""``fedml run RECIPE.yaml`` beside FedML's own subcommands."""

import click
import click.testing
import pytest
from fedml.cli.cli import cli
from fedml.cli.modules import run

import fednnnn_plugin as fp
import fednnnn_plugin.cli

SET = ("--set", "train_args.beta=5e-4")


@pytest.fixture
def recipes_run(monkeypatch) -> list[dict]:
    """The calls of the recipe command, which here has the real one's options and does nothing."""
    calls: list[dict] = []
    real = fednnnn_plugin.cli.run_command
    dummy = click.Command(
        real.name, params=real.params, callback=lambda **options: calls.append(options)
    )
    monkeypatch.setattr(fednnnn_plugin.cli, "run_command", dummy)
    return calls


def fedml_command(*words: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(cli, ["run", *words], prog_name="fedml")


@pytest.mark.parametrize("name", ["a.yaml", "folder/a.yml", "./list.yaml", "mnist_iid_b_fedavg"])
def test_run_takes_a_recipe_by_file_or_name(recipes_run, name: str) -> None:
    after = ("--backend", "sp", "--output", "list", "--overwrite")
    for words in ((name, *SET, *SET), (*SET, *SET, name), (*SET, name, *SET, *after)):
        assert fedml_command(*words).exit_code == 0
        assert recipes_run[-1]["recipe"] == name
        assert recipes_run[-1]["overrides"] == (SET[1],) * 2
    assert recipes_run[-1]["overwrite"]
    assert click.testing.CliRunner().invoke(run.fedml_run, [name]).exit_code == 0  # the group alone
    assert len(recipes_run) == 4


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
    assert (result.exit_code, "Traceback" in result.output) == (status, False)
    assert said in result.output


@pytest.mark.parametrize(
    "words", [("list", "x.yaml"), ("status", "-r", "x.yaml"), ("-k", "key", "stop", "x.yaml")]
)
def test_run_keeps_fedmls_subcommands(recipes_run, monkeypatch, words) -> None:
    command = next(word for word in words if word in run.fedml_run.commands)
    seen: list[list[str]] = []

    def parse(ctx: click.Context, args: list[str]) -> list[str]:
        seen.append(list(args))
        ctx.exit(0)

    monkeypatch.setattr(run.fedml_run.commands[command], "parse_args", parse)
    assert fedml_command(*words).exit_code == 0
    assert seen == [list(words[words.index(command) + 1 :])]
    assert recipes_run == []


def test_run_group_outlives_another_registration() -> None:
    before = run.fedml_run
    fp.register()
    assert run.fedml_run is cli.commands["run"] is before
