import csv
import re

from hypothesis import given
from hypothesis import strategies as st

from fednnnn_plugin.report.tables import Cell, Table, csv_text


def table(*rows: tuple[str, ...], **options) -> Table:
    cells = tuple(tuple(Cell(text) for text in row) for row in rows)
    return Table("A title", ("set", "method", "best"), cells, numeric=frozenset({2}), **options)


SMALL = table(("digits", "FedAvg", "9.5"), ("digits", "FedNNNN", "10.25"), ("mnist", "x", "1"))
GROUPED = Table(SMALL.title, SMALL.columns, SMALL.rows, SMALL.numeric, groups=1, notes=("A note.",))


def test_text() -> None:
    assert GROUPED.text() == (
        "A title\n"
        "\n"
        "set     method    best\n"
        "──────  ───────  ─────\n"
        "digits  FedAvg     9.5\n"
        "        FedNNNN  10.25\n"
        "\n"
        "mnist   x            1\n"
        "\n"
        "A note.\n"
    )


def test_markdown() -> None:
    assert GROUPED.markdown() == (
        "**A title**\n"
        "\n"
        "| set | method | best |\n"
        "| --- | --- | ---: |\n"
        "| digits | FedAvg | 9.5 |\n"
        "| digits | FedNNNN | 10.25 |\n"
        "| mnist | x | 1 |\n"
        "\n"
        "A note.\n"
    )


def test_latex() -> None:
    strong = (Cell("a_b"), Cell("50 %"), Cell("1 ± 2", strong=True))
    assert Table("T", ("x", "y", "z"), (strong,), frozenset({2})).latex() == (
        "% Needs \\usepackage{booktabs}.\n"
        "\\begin{table}[t]\n"
        "\\caption{T}\n"
        "\\centering\n"
        "\\begin{tabular}{llr}\n"
        "\\toprule\n"
        "x & y & z \\\\\n"
        "\\midrule\n"
        "a\\_b & 50 \\% & \\textbf{1 $\\pm$ 2} \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\\end{table}\n"
    )


def test_rules_part_the_groups_in_latex() -> None:
    assert GROUPED.latex().count("\\midrule") == 2


@given(st.text(max_size=30))
def test_no_cell_breaks_out_of_its_table(text: str) -> None:
    hostile = table((text, "b", "1"))
    # Every line of Markdown's table has the same number of unescaped bars.
    *_, line = hostile.markdown().rstrip("\n").split("\n")
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 4
    assert len(hostile.text().split("\n")) == 6
    row = hostile.latex().split("\n")[8]
    assert row.endswith(" & b & 1 \\\\")
    cell = row.removesuffix(" & b & 1 \\\\")
    plain = re.sub(r"\\[a-z]+\{\}|\$\\[a-z]+\$|\$[-<>]\$|\\[&%$#_{}]", "", cell)
    assert not set(plain) & set("\\&%$#_{}~^")


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_csv_keeps_every_bit(values: list[float]) -> None:
    text = csv_text(["value"], [[value] for value in values])
    header, *rows = csv.reader(text.splitlines())
    assert header == ["value"]
    assert [float(row[0]) for row in rows] == values
