"""``fedml run RECIPE.yaml``, beside FedML's ``list``, ``logs``, ``status`` and ``stop``."""

from types import ModuleType
from typing import Any

import click

from fednnnn_plugin.fedml import hook
from fednnnn_plugin.packaged_recipes import list_recipes


class RecipeGroup(click.Group):
    """FedML's ``run`` group, which becomes the recipe command where a recipe is named.

    That is: before any of its subcommands an argument ends in .yaml or .yml, or is the name of a
    recipe that comes with the package.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the recipe command's context instead of the group's where a recipe is named."""
        if not self._names_recipe(args):
            return super().make_context(info_name, args, parent, **extra)
        if (reason := hook.why_unusable()) is not None:
            click.echo(reason, err=True)
            raise click.exceptions.Exit(2)
        from fednnnn_plugin.cli import run_command
        from fednnnn_plugin.fedml.processes import Mlops

        return run_command.make_context(info_name, args, parent, obj=Mlops, **extra)

    def _names_recipe(self, words: list[str]) -> bool:
        packaged = {path.stem for path in list_recipes()}
        for word in words:
            if word in self.commands:
                return False
            if word in packaged or (word.endswith((".yaml", ".yml")) and word[0] != "-"):
                return True
        return False


def apply(run: ModuleType) -> None:
    """Have ``fedml_run``, with its commands, options and help, take recipes as well."""
    group = getattr(run, "fedml_run", None)
    if isinstance(group, click.Group):
        group.__class__ = RecipeGroup
        if hook.why_unusable() is None:
            group.epilog = "RECIPE.yaml [OPTIONS] runs a recipe: see fedml run RECIPE.yaml --help."
