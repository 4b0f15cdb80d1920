"""Run folders of broken, hostile or no files: one line and status 2, or a fall-back."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fednnnn_plugin.errors import MAX_LINES

from ..support.commands import quick_words

LIMITS = {"memory": 1 << 30, "processor": 100}
CONTENTS = ("cut", "flipped", "nested", "huge")
PLACES = ("folder", "pipe", "nowhere")
CHECKPOINTS, NEWEST = "checkpoint/round-*", "checkpoint/round-000002.*"
KEPT = "clients/*-round-000002*"
REFUSED = ["fingerprint.json"]  # with any damage
ANY = ["recipe.yaml", "metrics.jsonl", "summary.json", NEWEST, *REFUSED, KEPT]
DAMAGED = {"lost": [KEPT]} | {kind: [*ANY] for kind in CONTENTS}
DAMAGED["cut"] = ["metrics.jsonl", NEWEST, KEPT]  # what may be whole up to there
DAMAGED["nested"] = [name for name in ANY if name not in (NEWEST, KEPT)]  # what has brackets
_NAMES = [*ANY, "model.safetensors"]  # one check refuses all that is no regular file
DAMAGED |= {kind: _NAMES[place :: len(PLACES)] for place, kind in enumerate(PLACES)}
DAMAGED["flipped"].append(CHECKPOINTS)
for _kind in ("huge", "pipe"):
    DAMAGED[_kind] += ["fedml.log", ".lock"]


def damage(path: Path, kind: str) -> None:
    """Put something else in a file's place."""
    content = path.read_bytes()
    path.unlink()
    if kind == "nowhere":
        path.symlink_to(kind)
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind != "lost":
        flipped = bytes(b ^ (at % 97 == 0) for at, b in enumerate(content))
        half, nested = content[: len(content) // 2], b"[" * 200_000
        path.write_bytes({"cut": half, "flipped": flipped, "nested": nested}.get(kind, content))
        if kind == "huge":
            os.truncate(path, 10**12)


def check_lines(ended: Any) -> None:
    """Check that it went well, or says what is wrong with the user's input in single lines."""
    assert ended.status in (0, 2), ended
    lines = ended.stderr.splitlines()
    mistakes = [line for line in lines if "warning" not in line]
    assert ended.status == 0 or 1 <= len(mistakes) <= MAX_LINES + 1
    assert all(len(line) < 1_000 and line.isprintable() for line in lines), ended


@pytest.mark.slow
def test_damaged_run_folder_is_resumed_or_refused(commands: Any, tmp_path: Path) -> None:
    """One report of all, within little memory and time; then each is resumed, to the same bytes."""
    (tmp_path / "mine.py").write_text("def half(outputs, targets):\n    return 0.5\n")
    all_files = {"metrics": ["mine:half"], "client_batching": 2, "client_method": "scaffold"}
    for rounds in (2, 3):
        words = quick_words(rounds, "--allow-code", comm_round=rounds, **all_files)
        assert commands.run(*words, folder=tmp_path).status == 0
    for kind, name in [(kind, name) for kind, names in DAMAGED.items() for name in names]:
        place = tmp_path / "runs" / f"{kind} {name.replace('/', ' ')}"
        shutil.copytree(tmp_path / "2", place)
        for path in place.glob(name):
            damage(path, kind)
    check_lines(commands.run("report", "runs", folder=tmp_path, **LIMITS))
    expected = (tmp_path / "3" / "model.safetensors").read_bytes()
    for place in (tmp_path / "runs").iterdir():
        words = quick_words(place, "--resume", "--allow-code", comm_round=3, **all_files)
        ended = commands.run(*words, folder=tmp_path, **LIMITS)
        check_lines(ended)
        kind, name = place.name.split(" ", 1)
        assert ended.status == 2 or not (kind in PLACES or name in REFUSED), ended
        if ended.status == 0:
            first = ended.stdout.splitlines()[0]
            rounds = "2" if "000002" in name else "[23]"  # what is undamaged is kept
            assert re.match(f"round {rounds}/3 ", first), (place, first)
            assert (place / "model.safetensors").read_bytes() == expected
