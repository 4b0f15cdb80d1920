"""``fedml run RECIPE.yaml``, beside FedML's ``list``, ``logs``, ``status`` and ``stop``."""

from types import ModuleType
from typing import Any

import click

from fednnnn_plugin.fedml import hook
from fednnnn_plugin.packaged_recipes import list_recipes


class RecipeGroup(click.Group):
    """FedML's ``run`` group, which becomes the recipe command where a recipe is named.

    That is: an argument ends in .yaml or .yml, or is the name of a recipe that comes with the
    package, and what follows the group's own options is none of its subcommands.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the recipe command's context instead of the group's where a recipe is named."""
        if not self._names_recipe(info_name, args):
            return super().make_context(info_name, args, parent, **extra)
        if (reason := hook.why_unusable()) is not None:
            click.echo(reason, err=True)
            raise click.exceptions.Exit(2)
        from fednnnn_plugin.cli import run_command
        from fednnnn_plugin.fedml.processes import Mlops

        return run_command.make_context(info_name, args, parent, obj=Mlops, **extra)

    def _names_recipe(self, info_name: str | None, args: list[str]) -> bool:
        with click.Context(self, info_name=info_name) as scratch:
            scratch.allow_interspersed_args = False
            try:
                _, rest, _ = self.make_parser(scratch).parse_args(list(args))
            except click.UsageError:  # an option that the group does not have, so the recipe's
                rest = []
        words = [arg for arg in args if not arg.startswith("-")]
        if not words or (rest and rest[0] in self.commands):
            return False
        if any(word.endswith((".yaml", ".yml")) for word in words):
            return True
        return not {path.stem for path in list_recipes()}.isdisjoint(words)


def apply(run: ModuleType) -> None:
    """Have ``fedml_run``, with its commands, options and help, take recipes as well."""
    group = getattr(run, "fedml_run", None)
    if isinstance(group, click.Group):
        group.__class__ = RecipeGroup
        if hook.why_unusable() is None:
            group.epilog = "RECIPE.yaml [OPTIONS] runs a recipe: see fedml run RECIPE.yaml --help."
