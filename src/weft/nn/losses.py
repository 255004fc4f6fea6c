"""Loss functions, under the names of MLX's ``nn.losses``."""

from __future__ import annotations

from typing import Literal

import weft.core as mx
from weft.checks import one_of
from weft.nn.checks import array_of, axis_of, share_of
from weft.nn.log_probabilities import result_dtype, spread

__all__ = ["binary_cross_entropy", "cross_entropy", "l1_loss", "mse_loss", "nll_loss"]


def __dir__() -> list[str]:
    return __all__


Reduction = Literal["none", "mean", "sum"]

_REDUCTIONS = ("none", "mean", "sum")


def cross_entropy(
    logits: mx.array,
    targets: mx.array,
    weights: mx.array | None = None,
    axis: int = -1,
    label_smoothing: float = 0.0,
    reduction: Reduction = "none",
) -> mx.array:
    """The cross entropy of ``softmax(logits)`` with respect to classes or probabilities.

    Args:
        logits: unnormalised log-probabilities, with the classes along ``axis``.
        targets: integers, the class of each example (the shape of ``logits`` without ``axis``), or probabilities (the
            shape of ``logits``).
        weights: factors of the single losses, of their shape.
        axis: the axis of the classes.
        label_smoothing: the share of the target, at least 0 and below 1, that is spread evenly over all classes.
        reduction: "none", "mean" or "sum".

    Classes count as indices do, negative ones from the end. One that does not exist (the number of classes or more,
    or below minus that number) gives nan, in the loss and in the gradient, for it cannot raise while the targets are
    not computed. To leave examples out, give them any class that exists and the weight 0.

    Returns:
        The losses (the shape of ``logits`` without ``axis``), or their mean or sum.

    Raises:
        ValueError: shapes do not fit or an argument is out of range.

    >>> logits = mx.array([[0.0, 0.0], [-50.0, 50.0]])
    >>> nn.losses.cross_entropy(logits, mx.array([0, 0]))
    array([0.693147, 100], dtype=float32)
    >>> nn.losses.cross_entropy(logits, mx.array([-1, 2]))
    array([0.693147, nan], dtype=float32)
    >>> nn.losses.cross_entropy(logits, mx.array([[0.5, 0.5], [0.25, 0.75]]), reduction="sum")
    array(25.6931, dtype=float32)
    """
    one_of("cross_entropy", "reduction", reduction, _REDUCTIONS)
    label_smoothing = share_of("cross_entropy", "label_smoothing", label_smoothing)
    logits, targets = _arrays("cross_entropy", logits=logits, targets=targets)
    axis = axis_of("cross_entropy", "logits", logits, axis)
    x, largest, log_sum = spread(logits, axis)
    distance, log_sum = x - largest, log_sum.squeeze(axis)
    if targets.ndim == logits.ndim:
        _check_same_shape("cross_entropy", "logits", logits, "targets", targets)
        loss = log_sum * mx.sum(targets, axis=axis) - mx.sum(distance * targets, axis=axis)
    else:
        # Taken from the logits, which are in memory.
        score = _of_class("cross_entropy", "logits", x, targets, axis)
        loss = log_sum - (score - largest.squeeze(axis))
    if label_smoothing > 0:
        loss = (1 - label_smoothing) * loss + label_smoothing * (log_sum - mx.mean(distance, axis=axis))
    loss = loss.astype(result_dtype(logits))
    return _reduce(_weighted("cross_entropy", loss, weights), reduction)


def binary_cross_entropy(
    inputs: mx.array,
    targets: mx.array,
    weights: mx.array | None = None,
    with_logits: bool = True,
    reduction: Reduction = "mean",
) -> mx.array:
    """The binary cross entropy between predictions and targets of the same shape.

    With p the predicted probability and t the target, ``-(t * log(p) + (1 - t) * log(1 - p))``.

    Args:
        inputs: logits, or probabilities with ``with_logits=False``; the logarithms of these are clipped at -100.
        targets: probabilities, or 0 and 1.
        weights: factors of the single losses, of their shape.
        with_logits: whether ``inputs`` are logits, p = sigmoid(inputs).
        reduction: "none", "mean" or "sum".

    Returns:
        The losses, or their mean or sum.

    Raises:
        ValueError: shapes differ.

    >>> logits = mx.array([0.1, 0.5, -2.0])
    >>> nn.losses.binary_cross_entropy(logits, mx.array([0, 1, 1]))
    array(1.11513, dtype=float32)
    """
    one_of("binary_cross_entropy", "reduction", reduction, _REDUCTIONS)
    inputs, targets = _arrays("binary_cross_entropy", inputs=inputs, targets=targets)
    _check_same_shape("binary_cross_entropy", "inputs", inputs, "targets", targets)
    if with_logits:
        loss = _of_logits(inputs, targets)
    else:
        loss = -(targets * _clipped_log(inputs) + (1 - targets) * _clipped_log(1 - inputs))
    return _reduce(_weighted("binary_cross_entropy", loss, weights), reduction)


def nll_loss(inputs: mx.array, targets: mx.array, axis: int = -1, reduction: Reduction = "none") -> mx.array:
    """The negative log-likelihood: minus the input at the class of each example.

    Args:
        inputs: log-probabilities, with the classes along ``axis``.
        targets: integers, the class of each example: the shape of ``inputs`` without ``axis``.
        axis: the axis of the classes.
        reduction: "none", "mean" or "sum".

    Returns:
        The losses (the shape of ``targets``), or their mean or sum; nan for a class that does not exist, as with
        `cross_entropy`.

    Raises:
        ValueError: shapes do not fit.

    >>> nn.losses.nll_loss(mx.array([[-0.5, -1.0], [-2.0, -0.25]]), mx.array([0, 1]))
    array([0.5, 0.25], dtype=float32)
    """
    one_of("nll_loss", "reduction", reduction, _REDUCTIONS)
    inputs, targets = _arrays("nll_loss", inputs=inputs, targets=targets)
    axis = axis_of("nll_loss", "inputs", inputs, axis)
    return _reduce(-_of_class("nll_loss", "inputs", inputs, targets, axis), reduction)


def mse_loss(predictions: mx.array, targets: mx.array, reduction: Reduction = "mean") -> mx.array:
    """The squared differences between predictions and targets of the same shape.

    Args:
        predictions, targets: arrays of the same shape.
        reduction: "none", "mean" or "sum".

    Returns:
        The losses, or their mean or sum.

    Raises:
        ValueError: shapes differ.

    >>> nn.losses.mse_loss(mx.array([1.0, 2.0]), mx.array([1.0, 4.0]))
    array(2, dtype=float32)
    """
    one_of("mse_loss", "reduction", reduction, _REDUCTIONS)
    predictions, targets = _arrays("mse_loss", predictions=predictions, targets=targets)
    _check_same_shape("mse_loss", "predictions", predictions, "targets", targets)
    return _reduce(mx.square(predictions - targets), reduction)


def l1_loss(predictions: mx.array, targets: mx.array, reduction: Reduction = "mean") -> mx.array:
    """The absolute differences between predictions and targets of the same shape.

    Args:
        predictions, targets: arrays of the same shape.
        reduction: "none", "mean" or "sum".

    Returns:
        The losses, or their mean or sum.

    Raises:
        ValueError: shapes differ.

    >>> nn.losses.l1_loss(mx.array([1.0, 2.0]), mx.array([1.0, 4.0]), reduction="none")
    array([0, 2], dtype=float32)
    """
    one_of("l1_loss", "reduction", reduction, _REDUCTIONS)
    predictions, targets = _arrays("l1_loss", predictions=predictions, targets=targets)
    _check_same_shape("l1_loss", "predictions", predictions, "targets", targets)
    return _reduce(mx.abs(predictions - targets), reduction)


def _arrays(function: str, **arguments: mx.array) -> list[mx.array]:
    return [array_of(function, name, value) for name, value in arguments.items()]


def _reduce(loss: mx.array, reduction: Reduction) -> mx.array:
    if reduction == "mean":
        return mx.mean(loss)
    return mx.sum(loss) if reduction == "sum" else loss


def _check_same_shape(function: str, first_name: str, first: mx.array, second_name: str, second: mx.array) -> None:
    if first.shape != second.shape:
        raise ValueError(
            f"[{function}] {second_name} of shape {second.shape} do not match {first_name} of shape {first.shape}."
        )


def _weighted(function: str, loss: mx.array, weights: mx.array | None) -> mx.array:
    if weights is None:
        return loss
    weights = array_of(function, "weights", weights)
    _check_same_shape(function, "losses", loss, "weights", weights)
    return weights * loss


def _of_class(function: str, name: str, scores: mx.array, targets: mx.array, axis: int) -> mx.array:
    """The entry of `scores` along `axis` that `targets` names, for each position of the other axes."""
    expected = scores.shape[:axis] + scores.shape[axis + 1 :]
    if targets.shape != expected:
        raise ValueError(
            f"[{function}] targets of shape {targets.shape} do not match {name} of shape {scores.shape}; "
            f"classes along axis {axis} need the shape {expected}."
        )
    if not mx.issubdtype(targets.dtype, mx.integer):
        raise ValueError(f"[{function}] targets that name classes have to be integers, got {targets.dtype}.")
    score = mx.take_along_axis(scores, mx.expand_dims(targets, axis), axis=axis).squeeze(axis)
    classes = scores.shape[axis]
    known = mx.logical_and(targets >= -classes, targets < classes)
    # A factor instead of `mx.where`, so that the gradient is nan as well.
    return score * mx.where(known, mx.ones_like(score), mx.nan)


def _of_logits(x: mx.array, targets: mx.array) -> mx.array:
    """`log(1 + exp(x)) - x * targets`, as a sum in which no term cancels another for targets from 0 to 1."""
    x = x.astype(result_dtype(x))
    positive = mx.greater(x, 0)
    return mx.logaddexp(0, mx.where(positive, -x, x)) + x * (positive.astype(x.dtype) - targets)


def _clipped_log(probability: mx.array) -> mx.array:
    """The logarithm, not below -100, with a gradient of zero (not nan) in zero."""
    is_zero = probability == 0
    return mx.where(is_zero, -100, mx.maximum(mx.log(mx.where(is_zero, 1, probability)), -100))
