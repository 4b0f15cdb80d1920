"""Metrics of a test by name: scikit-learn's scorers. Importing it takes seconds."""

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import get_scorer, get_scorer_names, r2_score
from torch import Tensor

from fednnnn_plugin.data.images import IGNORED
from fednnnn_plugin.errors import UserError, did_you_mean, reason


def unknown_metric(name: str) -> str:
    """Say why there is no such metric, as it follows the name; empty where there is one."""
    names = get_scorer_names()
    if name in names:
        return ""
    hint = did_you_mean(name, names)
    return f"must be a scorer of scikit-learn's, such as f1_macro, or MODULE:FUNCTION{hint}"


class Scorer:
    """A scorer of scikit-learn's on outputs: of classes by their logits, else on numbers.

    Integer targets are classes. Outputs with a dimension more than the targets have the logits of
    the classes along dimension 1, each label of a sequence or an image counts, and -100 is left
    out. Outputs of the targets' shape are numbers to a scorer of regression; to the others they are
    logits of yes and no, several a sample its labels, where all targets are 0 or 1.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        function = getattr(get_scorer(name), "_score_func", None)
        self._is_of_numbers = getattr(function, "__module__", "") == r2_score.__module__

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the score; the larger, the better."""
        if outputs.shape == (*targets.shape, 1):
            outputs = outputs.squeeze(-1)
        estimator: Any
        numbers = targets.is_floating_point() and not _is_yes_or_no(targets)
        if numbers or (self._is_of_numbers and outputs.shape == targets.shape):
            estimator = _Numbers()
        elif outputs.ndim == targets.ndim + 1:
            logits, labels = outputs.movedim(1, -1).flatten(0, -2), targets.flatten()
            outputs, targets = logits[labels != IGNORED], labels[labels != IGNORED]
            estimator = _Classes(np.arange(outputs.shape[1]))
        else:
            estimator = _YesOrNo(np.arange(2))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of classes that no sample has
                return float(get_scorer(self.name)(estimator, outputs.numpy(), targets.numpy()))
        except (ValueError, AttributeError) as error:  # it is not one of such outputs
            problem = f"validation_args.metrics: {self.name}: {reason(error)}"
            raise UserError(problem) from None


def _is_yes_or_no(targets: Tensor) -> bool:
    return bool(((targets == 0) | (targets == 1)).all())


class _Fitted(BaseEstimator):  # type: ignore[misc]
    """Stands for a model whose outputs are given in the place of its inputs."""

    def __sklearn_is_fitted__(self) -> bool:
        return True


class _Numbers(RegressorMixin, _Fitted):  # type: ignore[misc]
    def predict(self, outputs: Any) -> Any:
        return outputs


class _Classes(ClassifierMixin, _Fitted):  # type: ignore[misc]
    def __init__(self, classes: Any) -> None:
        self.classes_ = classes

    def predict(self, outputs: Any) -> Any:
        return outputs.argmax(1)

    def predict_proba(self, outputs: Any) -> Any:
        return torch.from_numpy(outputs).double().softmax(1).numpy()


class _YesOrNo(_Classes):
    def predict(self, outputs: Any) -> Any:
        return (outputs > 0).astype(np.int64)

    def predict_proba(self, outputs: Any) -> Any:
        yes = torch.from_numpy(outputs).double().sigmoid().numpy()
        return yes if yes.ndim > 1 else np.stack([1 - yes, yes], 1)
