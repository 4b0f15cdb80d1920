"""``fedml run RECIPE.yaml`` beside FedML's own subcommands."""

import subprocess
import sys
from pathlib import Path

import click
import click.testing
import pytest
from fedml.cli.cli import cli
from fedml.cli.modules import run

import fednnnn_plugin as fp
import fednnnn_plugin.cli

fp.register()


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


@pytest.mark.parametrize(
    "words",
    [
        ("a.yaml", "--set", "train_args.beta=5e-4", "--set", "train_args.gamma=0.5"),
        ("--set", "train_args.beta=5e-4", "--set", "train_args.gamma=0.5", "a.yaml"),
        ("--set", "train_args.beta=5e-4", "a.yaml", "--set", "train_args.gamma=0.5"),
    ],
)
def test_options_may_stand_on_either_side_of_the_recipe(recipes_run, words) -> None:
    assert fedml_command(*words).exit_code == 0
    [call] = recipes_run
    assert call["recipe"] == "a.yaml"
    assert call["overrides"] == ("train_args.beta=5e-4", "train_args.gamma=0.5")


@pytest.mark.parametrize("name", ["a.yaml", "folder/a.yml", "./list.yaml"])
def test_what_ends_like_a_recipe_is_one(recipes_run, name: str) -> None:
    assert fedml_command(name, "--backend", "sp", "--output", "list", "--overwrite").exit_code == 0
    assert recipes_run[0]["recipe"] == name
    assert recipes_run[0]["overwrite"]


@pytest.mark.parametrize(
    "words",
    [
        ("digits_noniid_b_fednnnn",),
        ("--set", "train_args.beta=0.5", "mnist_iid_b_fedavg"),
        ("mnist_iid_b_fedavg", "--overwrite"),
    ],
)
def test_the_name_of_a_recipe_of_ours_is_one(recipes_run, words) -> None:
    assert fedml_command(*words).exit_code == 0
    [call] = recipes_run
    assert call["recipe"] in words


def test_another_word_stays_fedmls_to_refuse(recipes_run) -> None:
    result = fedml_command("digits")
    assert result.exit_code == 2
    assert "No such command" in result.output
    assert recipes_run == []


def test_the_group_alone_takes_a_recipe_too(recipes_run) -> None:
    assert click.testing.CliRunner().invoke(run.fedml_run, ["a.yaml"]).exit_code == 0
    assert len(recipes_run) == 1


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


def test_an_option_that_neither_knows_is_an_error_of_the_recipe_command(recipes_run) -> None:
    result = fedml_command("a.yaml", "--api_key", "key")
    assert result.exit_code == 2
    assert "No such option" in result.output
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
    assert run.fedml_run is before
    assert cli.commands["run"] is before


def test_the_command_itself_says_nothing_but_the_run(tmp_path: Path) -> None:
    short = ["--set", "train_args.comm_round=1", "--set", "train_args.epochs=1"]
    process = subprocess.run(
        [Path(sys.executable).with_name("fedml"), "run", "digits_noniid_b_fednnnn.yaml", *short],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert process.returncode == 0
    assert process.stdout.splitlines()[-1].startswith("runs/digits_noniid_b_fednnnn-seed0: ")
    warned = [line for line in process.stderr.splitlines() if "no GPU is visible" not in line]
    assert not warned
