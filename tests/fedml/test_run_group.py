"""``fedml run RECIPE.yaml`` beside FedML's own subcommands."""

import click
import click.testing
import pytest
from fedml.cli.cli import cli
from fedml.cli.modules import run

import fednnnn_plugin as fp
import fednnnn_plugin.cli

fp.register()

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
def test_a_file_or_a_name_of_ours_is_a_recipe_with_options_on_either_side(
    recipes_run, name: str
) -> None:
    after = ("--backend", "sp", "--output", "list", "--overwrite")
    for words in ((name, *SET, *SET), (*SET, *SET, name), (*SET, name, *SET, *after)):
        assert fedml_command(*words).exit_code == 0
        assert recipes_run[-1]["recipe"] == name
        assert recipes_run[-1]["overrides"] == (SET[1],) * 2
    assert recipes_run[-1]["overwrite"]
    assert click.testing.CliRunner().invoke(run.fedml_run, [name]).exit_code == 0  # the group alone
    assert len(recipes_run) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("digits",), "No such command"),  # stays FedML's to refuse
        (("a.yaml", "--api_key", "key"), "No such option"),
    ],
)
def test_another_word_or_option_is_refused(recipes_run, words, said) -> None:
    result = fedml_command(*words)
    assert result.exit_code == 2
    assert said in result.output
    assert recipes_run == []


def test_usage_names_the_command_as_it_was_typed() -> None:
    shown = fedml_command("a.yaml", "--help")
    assert shown.exit_code == 0
    assert shown.output.startswith("Usage: fedml run [OPTIONS] RECIPE.yaml\n")


@pytest.mark.parametrize(
    "words", [("list", "x.yaml"), ("status", "-r", "x.yaml"), ("-k", "key", "stop", "x.yaml")]
)
def test_a_subcommand_stays_one_whatever_follows(recipes_run, monkeypatch, words) -> None:
    command = next(word for word in words if word in run.fedml_run.commands)
    seen: list[list[str]] = []

    def parse(ctx: click.Context, args: list[str]) -> list[str]:
        seen.append(list(args))
        ctx.exit(0)

    monkeypatch.setattr(run.fedml_run.commands[command], "parse_args", parse)
    assert fedml_command(*words).exit_code == 0
    assert seen == [list(words[words.index(command) + 1 :])]
    assert recipes_run == []


def test_a_mistake_in_the_recipe_is_one_line_and_status_2(tmp_path) -> None:
    recipe = tmp_path / "a.yaml"
    recipe.write_text("no_such_section: {}\n")
    result = fedml_command(str(recipe))
    assert result.exit_code == 2
    assert "no_such_section: unknown section" in result.output
    assert "Traceback" not in result.output


def test_registering_again_keeps_the_group() -> None:
    before = run.fedml_run
    fp.register()
    assert run.fedml_run is cli.commands["run"] is before
