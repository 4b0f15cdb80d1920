"""Mutated recipes end in a recipe or in `UserError`, one line a problem: never in anything else."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fednnnn_plugin.errors import UserError
from fednnnn_plugin.recipe import dump_recipe, list_recipes, load_recipe
from fednnnn_plugin.recipe.validation import known_keys

TEXTS = [path.read_text() for path in list_recipes()]
KEYS = [f"{section}.{key}" for key, section in known_keys().items()]

ODD = st.sampled_from(
    [
        *("", "~", "null", "true", "off", "[]", "{}", "[[1], {a: b}]", "{a: {b: c}}"),
        *("-0", "1e999", "5e-4", "-.inf", "0x10", "1:30:00", "2024-13-45", "9" * 5000),
        *("&a x", "*a", "<<", "=", "|\n  x", ">-\n  x", "'", '"', "@", "`", "? a", "- a", "a: b"),
        *("!!int x", "!!binary z", "!!timestamp x", "!!python/object/apply:os.x []"),
        *('"\\ud800"', '"\\UFFFFFFFF"', "%YAML 9.9", "---", "...", "\t", "# x"),
        *("\0", "\x85", "\u2028", "\ufeff", "é" * 300, "../../etc/passwd", "~nobody/x"),
    ]
)
NUMBERS = st.one_of(st.integers(), st.floats())
JUNK = st.one_of(ODD, st.text(max_size=30), NUMBERS.map(str), st.sampled_from(KEYS))


@st.composite
def mutated_lines(draw: st.DrawFn) -> bytes:
    """A recipe with lines replaced, dropped, doubled or moved."""
    lines = draw(st.sampled_from(TEXTS)).splitlines()
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        key, other = lines[at].partition(":")[0], draw(st.sampled_from(lines))
        junk = draw(JUNK)
        changed = [junk, f"{key}: {junk}", "", lines[at].strip(), other, f"{lines[at]}\n{other}"]
        lines[at] = draw(st.sampled_from(changed))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def check_lines(error: UserError, starts: tuple[str, ...]) -> None:
    lines = str(error).split("\n")
    assert all(line.isprintable() and line.startswith(starts) for line in lines), lines
    assert max(map(len, lines)) < 1000


@pytest.mark.slow
@settings(
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    content=mutated_lines() | st.sampled_from(TEXTS).map(str.encode),
    overrides=st.lists(
        JUNK | st.tuples(st.sampled_from(KEYS) | JUNK, JUNK).map("=".join), max_size=2
    ),
)
def test_recipe_mutated_loads_or_is_refused(
    tmp_path: Path, content: bytes, overrides: list[str]
) -> None:
    path = tmp_path / "fuzzed.yaml"
    path.write_bytes(content)
    try:
        recipe = load_recipe(path, overrides)
    except UserError as error:
        check_lines(error, (f"{path}: ", "--set ", "... and "))
        return
    path.write_text(dump_recipe(recipe), encoding="utf-8")
    assert dump_recipe(load_recipe(path)) == dump_recipe(recipe)
