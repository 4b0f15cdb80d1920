"""Print pip constraints: the lowest version that pyproject.toml allows of each dependency."""

import re
import sys
from pathlib import Path

text = Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8")
dependencies = text.partition("\ndependencies = [")[2].partition("\n]")[0]
for name, version in re.findall(r'"([\w-]+)>=([\d.]+)"', dependencies):
    sys.stdout.write(f"{name}=={version}\n")
