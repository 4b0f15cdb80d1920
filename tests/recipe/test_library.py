"""The packaged recipes: found by path and by name, listed."""

from pathlib import Path

import pytest

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import find_recipe, list_recipes, load_recipe
from fednnnn_plugin.recipe.library import catalogue

NAME = "mnist_noniid_b_fednnnn"


@pytest.mark.parametrize("text", [NAME, f"{NAME}.yaml", f"recipes/{NAME}.yaml"])
def test_a_packaged_recipe_is_found_from_anywhere_unless_there_is_such_a_file(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe(find_recipe(text)).name == NAME
    mine = tmp_path / text
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    assert find_recipe(text).resolve() == mine
    assert find_recipe(str(mine)) == mine


@pytest.mark.parametrize(
    "text", [NAME[:-1], f"other/{NAME}.yaml", "recipes/mnist_noniid_fednnnn.yaml"]
)
def test_a_wrong_name_names_the_nearest(text: str) -> None:
    with pytest.raises(UserError, match=NAME) as caught:
        find_recipe(text)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{text}: no such file and no recipe of that name; the nearest are ")


@pytest.mark.parametrize("text", ["", "\0", "n" * 5000, "a\nb", "/", ".."])
def test_odd_names_end_in_one_line(text: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(find_recipe(text))
    assert str(caught.value).isprintable()


def test_the_catalogue_has_a_line_for_each_and_says_whose_data_is_there() -> None:
    rows = {line.split()[-1]: line for line in catalogue().splitlines() if line}
    assert rows.keys() >= {path.stem for path in list_recipes()}
    row = rows["digits_noniid_ub_fednnnn"].split()
    assert row[:3] + row[6:-1] == ["digits", "2", "a", "FedNNNN", "20", "30", "present"]
