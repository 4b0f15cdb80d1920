"""The packaged recipes: found by path and by name."""

from pathlib import Path

import pytest

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import find_recipe, load_recipe

NAME = "mnist_noniid_b_fednnnn"


@pytest.mark.parametrize("text", [NAME, f"{NAME}.yaml", f"recipes/{NAME}.yaml"])
def test_recipe_name_is_found_unless_a_file_has_it(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe(find_recipe(text)).name == NAME
    mine = tmp_path / text
    mine.mkdir(parents=True)  # as a run folder may be named
    assert load_recipe(find_recipe(text)).name == NAME
    mine.rmdir()
    mine.write_text("mine")
    assert find_recipe(text).resolve() == mine
    assert find_recipe(str(mine)) == mine


@pytest.mark.parametrize(
    "text", [NAME[:-1], f"other/{NAME}.yaml", "recipes/mnist_noniid_fednnnn.yaml"]
)
def test_recipe_name_that_is_wrong_names_the_nearest(text: str) -> None:
    with pytest.raises(UserError, match=rf"^{text}: no such file and no recipe .*{NAME}.*$"):
        find_recipe(text)


@pytest.mark.parametrize("text", ["", "\0", "n" * 5000, "a\nb", "/", ".."])
def test_recipe_name_that_is_odd_is_one_line(text: str) -> None:
    with pytest.raises(UserError) as refused:
        load_recipe(find_recipe(text))
    assert str(refused.value).isprintable()
