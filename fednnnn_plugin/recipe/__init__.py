"""Recipes: the YAML files that describe a run."""

from fednnnn_plugin.packaged_recipes import find_recipe as find_recipe
from fednnnn_plugin.packaged_recipes import list_recipes as list_recipes
from fednnnn_plugin.recipe.load import differences as differences
from fednnnn_plugin.recipe.load import dump_recipe as dump_recipe
from fednnnn_plugin.recipe.load import load_recipe as load_recipe
from fednnnn_plugin.recipe.load import overridden_keys as overridden_keys
from fednnnn_plugin.recipe.load import resolved as resolved
from fednnnn_plugin.recipe.schema import Recipe as Recipe
