"""Metrics of a test by name: scikit-learn's scorers. Importing it takes seconds."""

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import (
    get_scorer,
    get_scorer_names,
    log_loss,
    r2_score,
    top_k_accuracy_score,
)
from torch import Tensor

from fednnnn_plugin.client.loss import CROSS_ENTROPY, Loss, is_one_hot
from fednnnn_plugin.data.images import IGNORED
from fednnnn_plugin.errors import UserError, did_you_mean, reason

#: What takes the classes by name, of which a test may lack some.
_OF_ALL_CLASSES = {
    "neg_log_loss": lambda *given, **classes: -log_loss(*given, **classes),
    "top_k_accuracy": top_k_accuracy_score,
}


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
    logits of yes and no where all targets are 0 or 1: those of ``[n, C]`` are several labels of a
    sample, and of more dimensions each place counts.

    They are probabilities, not logits, where the ``loss`` is not on logits: yes is from 0.5 on.
    Where a user's loss does not say it, they are if all are in [0, 1]; those of classes if they are
    in [0, 1] and their sum is 1.
    """

    def __init__(self, name: str, loss: Loss = CROSS_ENTROPY) -> None:
        self.name, self._loss = name, loss
        function = getattr(get_scorer(name), "_score_func", None)
        self._is_of_numbers = getattr(function, "__module__", "") == r2_score.__module__

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        """Return the score; the larger, the better."""
        given = outputs, targets
        if outputs.shape == (*targets.shape, 1):
            outputs = outputs.squeeze(-1)
        if outputs.shape == targets.shape and targets.shape[1:] == (1,):
            outputs, targets = outputs.squeeze(-1), targets.squeeze(-1)
        estimator: Any
        lacking: list[int] = []
        if self._loss == CROSS_ENTROPY and is_one_hot(targets) and outputs.shape == targets.shape:
            targets = targets.argmax(1)
        numbers = targets.is_floating_point() and not _is_yes_or_no(targets)
        if numbers or (self._is_of_numbers and outputs.shape == targets.shape):
            estimator = _Numbers()
        elif outputs.ndim == targets.ndim + 1:
            scores, labels = outputs.movedim(1, -1).flatten(0, -2), targets.flatten()
            outputs, targets = scores[labels != IGNORED], labels[labels != IGNORED]
            estimator = _Classes(outputs.shape[1], _are_shares(outputs))
            lacking = sorted({*range(outputs.shape[1])} - {*targets.unique().tolist()})
        else:
            on_logits = self._loss.is_on_logits(*given)
            probabilities = _are_probabilities(outputs) if on_logits is None else not on_logits
            if targets.ndim > 2:  # of the places of an image
                outputs, targets = outputs.flatten(), targets.flatten()
            estimator = _YesOrNo(outputs.shape[1] if outputs.ndim > 1 else 1, probabilities)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of classes that no sample has
                if lacking and self.name in _OF_ALL_CLASSES:
                    shares = estimator.predict_proba(outputs.numpy())
                    score = _OF_ALL_CLASSES[self.name]
                    return float(score(targets.numpy(), shares, labels=estimator.classes_))
                return float(get_scorer(self.name)(estimator, outputs.numpy(), targets.numpy()))
        except (ValueError, AttributeError) as error:  # it is not one of such outputs
            why = f" (the test has no sample of class {lacking[0]})" if lacking else ""
            of_classes = isinstance(error, AttributeError)  # and numbers have no probabilities
            what = "takes classes, or targets 0 and 1" if of_classes else reason(error)
            problem = f"{self.name}: {what}{why}"
            raise UserError("validation_args.metrics", problem) from None


def _is_yes_or_no(targets: Tensor) -> bool:
    return bool(((targets == 0) | (targets == 1)).all())


def _are_probabilities(outputs: Tensor) -> bool:
    return bool(((outputs >= 0) & (outputs <= 1)).all())


def _are_shares(outputs: Tensor) -> bool:
    """Tell whether the classes' outputs are the softmax of logits: their sum is 1."""
    sums = outputs.double().sum(1)
    return _are_probabilities(outputs) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)


class _Fitted(BaseEstimator):  # type: ignore[misc]
    """A model whose inputs are already its outputs."""

    def __sklearn_is_fitted__(self) -> bool:
        return True


class _Numbers(RegressorMixin, _Fitted):  # type: ignore[misc]
    def predict(self, outputs: Any) -> Any:
        return outputs


class _Classes(ClassifierMixin, _Fitted):  # type: ignore[misc]
    """Takes logits of classes, or their probabilities."""

    def __init__(self, count: int, are_probabilities: bool) -> None:
        self.are_probabilities = are_probabilities
        self.classes_: NDArray[np.int64] = np.arange(count)

    def predict(self, outputs: Any) -> Any:
        return outputs.argmax(1)

    def predict_proba(self, outputs: Any) -> Any:
        scores = torch.from_numpy(outputs).double()
        shares = scores / scores.sum(1, keepdim=True)
        return (shares if self.are_probabilities else scores.softmax(1)).numpy()


class _YesOrNo(_Classes):
    """Takes logits of yes and no, or probabilities of yes, of one label or several."""

    def __init__(self, labels: int, are_probabilities: bool) -> None:
        super().__init__(2, are_probabilities)
        if labels > 1:  # as scikit-learn knows several labels
            self.classes_ = np.eye(labels, dtype=np.int64)

    def predict(self, outputs: Any) -> Any:
        yes = outputs >= 0.5 if self.are_probabilities else outputs > 0
        return yes.astype(np.int64)

    def predict_proba(self, outputs: Any) -> Any:
        scores = torch.from_numpy(outputs).double()
        yes = (scores.clamp(0, 1) if self.are_probabilities else scores.sigmoid()).numpy()
        return yes if yes.ndim > 1 else np.stack([1 - yes, yes], 1)
