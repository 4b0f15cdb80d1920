"""From a recipe, or a program's objects, to a run."""
