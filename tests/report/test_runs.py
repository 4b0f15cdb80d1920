import json
import os
from pathlib import Path

import pytest

from fednnnn_plugin.report.runs import read_runs
from fednnnn_plugin.report.settings import MAX_SETTINGS_BYTES


def test_a_run_folder(make_run) -> None:
    folder = make_run("PaperFedAvg", seed=7, rounds=12)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (run,), warnings = read_runs([folder])
    assert warnings == []
    assert run.name == folder.name
    assert run.method == "FedAvg"
    assert run.seed == 7
    assert run.planned_rounds == run.last_round == 12
    assert run.finished
    assert run.setting("dataset") == "digits"
    assert run.column("mean_client_norm").tolist() == [line["mean_client_norm"] for line in lines]
    best = max(lines, key=lambda line: line["test_acc"])
    assert run.best() == (best["test_acc"], best["round"])
    assert run.final() == (lines[-1]["test_acc"], 12)


@pytest.mark.parametrize(
    ("optimizer", "method"),
    [
        ("PaperFedAvg", "FedAvg"),
        ("PaperFedProx", "FedProx"),
        ("NormNorm", "Norm-Norm"),
        ("Momentum", "Momentum"),
        ("FedNNNN", "FedNNNN"),
    ],
)
def test_methods_are_named_as_in_the_paper(make_run, optimizer: str, method: str) -> None:
    assert read_runs([make_run(optimizer)])[0][0].method == method


def test_a_folder_of_runs(two_methods: list[Path]) -> None:
    runs, warnings = read_runs([two_methods[0].parent])
    assert [run.name for run in runs] == sorted(folder.name for folder in two_methods)
    assert warnings == []


def test_an_unfinished_run(make_run) -> None:
    folder = make_run("FedNNNN", rounds=30, done=11, finished=False)
    (run,), warnings = read_runs([folder])
    assert warnings == []
    assert not run.finished
    assert (run.last_round, run.planned_rounds) == (11, 30)


def test_best_is_the_first_of_equals_and_final_the_last_tested(make_run) -> None:
    folder = make_run("FedNNNN", rounds=4)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line, accuracy in zip(lines, [0.5, 0.75, 0.75, None], strict=True):
        line["test_acc"] = accuracy
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (folder / "summary.json").unlink()
    (run,), _ = read_runs([folder])
    assert run.best() == (0.75, 2)
    assert run.final() == (0.75, 3)


def test_what_is_no_run_is_said_and_the_rest_read(make_run, tmp_path: Path) -> None:
    good = make_run("FedNNNN")
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / ".hidden").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    runs, warnings = read_runs(
        [tmp_path / name for name in ("runs", "empty", "file", "missing")] + [good]
    )
    assert [run.folder for run in runs] == [good]
    assert warnings == [
        f"{tmp_path}/runs/notes: no run (it has neither metrics.jsonl nor recipe.yaml)",
        f"{tmp_path}/empty: no run (it has neither metrics.jsonl nor recipe.yaml)",
        f"{tmp_path}/file: not a folder",
        f"{tmp_path}/missing: not found",
        f"{good}: given twice; read once",
    ]


def test_two_runs_of_one_name_keep_both(make_run) -> None:
    first = make_run("FedNNNN", name="same", under="a")
    second = make_run("PaperFedAvg", name="same", under="b")
    other = make_run("Momentum", name="other", under="b")
    runs, warnings = read_runs([first, second, other])
    assert [run.name for run in runs] == ["a/same", "b/same", "other"]
    assert warnings == [f"2 runs named same ({first}, {second}); each is named by its folder"]


def test_a_truncated_last_line(make_run) -> None:
    folder = make_run("FedNNNN", rounds=5, finished=False)
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text[:-40])
    (run,), warnings = read_runs([folder])
    assert run.last_round == 4
    assert warnings == [f"{folder}/metrics.jsonl: line 5: the last line is cut off; left out"]


def test_many_problems_of_one_file_are_summed_up(make_run) -> None:
    folder = make_run("FedNNNN", rounds=3)
    (folder / "metrics.jsonl").write_text("no\n" * 10)
    _, warnings = read_runs([folder])
    assert warnings == [
        f"{folder}/metrics.jsonl: line 1: no JSON object",
        f"{folder}/metrics.jsonl: line 2: no JSON object",
        f"{folder}/metrics.jsonl: line 3: no JSON object",
        f"{folder}/metrics.jsonl: and 7 more problems",
    ]


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (b"a: [", "not valid YAML; not used"),
        (b"- 1", "must be a mapping; not used"),
        (b"!!python/object/apply:os.system [echo]", "not valid YAML; not used"),
        (b"[" * 50_000, "not valid YAML; not used"),
        (b"a: \xff", "not valid YAML; not used"),
        (b"#" * (MAX_SETTINGS_BYTES + 1), f"larger than {MAX_SETTINGS_BYTES} bytes; not read"),
        (b"a: {b: &c 1, d: *c}", "not valid YAML; not used"),
    ],
)
def test_a_recipe_that_cannot_be_used(make_run, recipe: bytes, said: str) -> None:
    folder = make_run("FedNNNN", rounds=3)
    (folder / "recipe.yaml").write_bytes(recipe)
    (run,), warnings = read_runs([folder])
    assert warnings == [f"{folder}/recipe.yaml: {said}"]
    assert run.settings == {}
    assert run.last_round == 3
    assert run.method == folder.name


def test_odd_settings_become_short_text(make_run) -> None:
    folder = make_run("FedNNNN", rounds=3)
    (folder / "recipe.yaml").write_text(
        "a: {b: {j: 1}, c: [1, 2], d: [[1]], e: 1.5, f: null, g: "
        + "9" * 30
        + ", h: 2020-01-01, i: "
        + "x" * 500
        + "}\n"
    )
    (run,), warnings = read_runs([folder])
    assert warnings == []
    assert {key: run.setting(key) for key in "bcdefgh"} == {
        "b": "...",
        "c": "1, 2",
        "d": "...",
        "e": 1.5,
        "f": None,
        "g": "a huge integer",
        "h": "2020-01-01",
    }
    assert run.setting("i") == "x" * 199 + "…"


def test_control_characters_never_reach_a_terminal(make_run) -> None:
    folder = make_run("FedNNNN", name="evil\x1b[31m", rounds=3)
    (folder / "metrics.jsonl").write_text("no")
    (run,), warnings = read_runs([folder])
    assert run.name == "evil?[31m"
    assert all(line.isprintable() for line in warnings)


def test_summary_that_contradicts_the_rounds_is_said(make_run) -> None:
    folder = make_run("FedNNNN", rounds=3)
    summary = json.loads((folder / "summary.json").read_text())
    best = summary["best_test_acc"]
    (folder / "summary.json").write_text(json.dumps(summary | {"best_test_acc": 0.999}))
    (run,), warnings = read_runs([folder])
    assert run.best() is not None
    assert warnings == [f"{folder}/summary.json: best_test_acc 0.999 is not metrics.jsonl's {best}"]


def test_files_that_would_block_are_not_opened(make_run) -> None:
    folder = make_run("FedNNNN", rounds=3)
    for name in ("metrics.jsonl", "summary.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    (run,), warnings = read_runs([folder])
    assert run.last_round == 0
    assert warnings == [
        f"{folder}/metrics.jsonl: not a plain file",
        f"{folder}/summary.json: not a plain file",
    ]


def test_a_run_that_has_just_begun(make_run) -> None:
    folder = make_run("FedNNNN", done=0, finished=False)
    (run,), warnings = read_runs([folder])
    assert (run.last_round, run.best(), run.final()) == (0, None, None)
    assert warnings == [f"{folder}/metrics.jsonl: no round recorded yet"]
