"""What may judge the trials of a search; the command offers these names without pandas."""

from typing import Literal

Metric = Literal[
    "best_accuracy", "final_accuracy", "final_loss", "best_metric", "final_metric", "worst_10"
]
