"""Recipes: the YAML files that describe a run."""

from fednnnn_plugin.recipe.library import find_recipe, list_recipes
from fednnnn_plugin.recipe.load import differences, dump_recipe, load_recipe
from fednnnn_plugin.recipe.namespace import recipe_from_args
from fednnnn_plugin.recipe.schema import SECTIONS, Recipe

__all__ = [
    "SECTIONS",
    "Recipe",
    "differences",
    "dump_recipe",
    "find_recipe",
    "list_recipes",
    "load_recipe",
    "recipe_from_args",
]
