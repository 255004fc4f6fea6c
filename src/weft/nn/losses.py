"""Loss functions, under the names of MLX's ``nn.losses``."""

from __future__ import annotations

import math
from typing import Literal

import weft.core as mx
from weft.checks import one_of
from weft.nn.checks import array_of, axis_of, number_of, positive_number_of, share_of
from weft.nn.log_probabilities import result_dtype, spread

__all__ = [
    "binary_cross_entropy",
    "cosine_similarity_loss",
    "cross_entropy",
    "gaussian_nll_loss",
    "hinge_loss",
    "huber_loss",
    "kl_div_loss",
    "l1_loss",
    "log_cosh_loss",
    "margin_ranking_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
    "triplet_loss",
]


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
        weights: factors of the individual losses, of their shape.
        axis: the axis of the classes.
        label_smoothing: the share of the target, at least 0 and below 1, that is spread evenly over all classes.
        reduction: "none", "mean" or "sum".

    Classes are indices: negative ones count from the end. A class out of range gives NaN in the loss and in the
    gradient, because its value is not known when the loss is called, so that no error can be raised. To leave examples
    out, give them a valid class and the weight 0.

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
        # Taken from the logits because these are in memory anyway.
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

    For a predicted probability p and a target t it is ``-(t * log(p) + (1 - t) * log(1 - p))``.

    Args:
        inputs: logits; or probabilities, with ``with_logits=False``. Logarithms of probabilities are at least -100.
        targets: probabilities, or 0 and 1.
        weights: factors of the individual losses, of their shape.
        with_logits: whether ``inputs`` are logits, with p = sigmoid(inputs).
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
        The losses (the shape of ``targets``), or their mean or sum; NaN for a class out of range, as in
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
    first, second = _pair("mse_loss", reduction, predictions=predictions, targets=targets)
    return _reduce(mx.square(first - second), reduction)


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
    first, second = _pair("l1_loss", reduction, predictions=predictions, targets=targets)
    return _reduce(mx.abs(first - second), reduction)


def smooth_l1_loss(
    predictions: mx.array, targets: mx.array, beta: float = 1.0, reduction: Reduction = "mean"
) -> mx.array:
    """`l1_loss` that is quadratic near zero: for a difference d, ``0.5 * d**2 / beta`` where ``abs(d) < beta``, else
    ``abs(d) - 0.5 * beta``.

    Girshick, arXiv:1504.08083.

    Args:
        predictions, targets: arrays of the same shape.
        beta: the absolute difference at which the formula changes.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: shapes differ.

    >>> nn.losses.smooth_l1_loss(mx.array([0.5, 3.0]), mx.array([0.0, 0.0]), reduction="none")
    array([0.125, 2.5], dtype=float32)
    """
    first, second = _pair("smooth_l1_loss", reduction, predictions=predictions, targets=targets)
    beta = number_of("smooth_l1_loss", "beta", beta)
    size = mx.abs(first - second)
    return _reduce(mx.where(size < beta, 0.5 * mx.square(size) / beta, size - 0.5 * beta), reduction)


def huber_loss(inputs: mx.array, targets: mx.array, delta: float = 1.0, reduction: Reduction = "none") -> mx.array:
    """For a difference d, ``0.5 * d**2`` where ``abs(d) <= delta``, else ``delta * (abs(d) - 0.5 * delta)``.

    Huber, Robust estimation of a location parameter, 1964.

    Args:
        inputs, targets: arrays of the same shape.
        delta: the absolute difference at which the formula changes.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: shapes differ.

    >>> nn.losses.huber_loss(mx.array([0.5, 3.0]), mx.array([0.0, 0.0]), delta=2.0)
    array([0.125, 4], dtype=float32)
    """
    first, second = _pair("huber_loss", reduction, inputs=inputs, targets=targets)
    delta = number_of("huber_loss", "delta", delta)
    size = mx.abs(first - second)
    # The square in the branch that is not used would overflow, and make the gradient NaN.
    near = mx.minimum(size, delta)
    return _reduce(0.5 * mx.square(near) + delta * (size - near), reduction)


def log_cosh_loss(inputs: mx.array, targets: mx.array, reduction: Reduction = "none") -> mx.array:
    """``log(cosh(d))`` of differences d, which is about ``d**2 / 2`` near zero, and ``abs(d) - log(2)`` far from it.

    Args:
        inputs, targets: arrays of the same shape.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: shapes differ.

    >>> nn.losses.log_cosh_loss(mx.array([1.0, 1000.0]), mx.array([0.0, 0.0]))
    array([0.433781, 999.307], dtype=float32)
    """
    first, second = _pair("log_cosh_loss", reduction, inputs=inputs, targets=targets)
    error = first - second
    return _reduce(mx.logaddexp(error, -error) - math.log(2), reduction)


def hinge_loss(inputs: mx.array, targets: mx.array, reduction: Reduction = "none") -> mx.array:
    """``max(0, 1 - inputs * targets)``.

    Args:
        inputs: predictions.
        targets: -1 or 1 for each prediction.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: shapes differ.

    >>> nn.losses.hinge_loss(mx.array([0.5, 2.0]), mx.array([1.0, -1.0]))
    array([0.5, 3], dtype=float32)
    """
    first, second = _pair("hinge_loss", reduction, inputs=inputs, targets=targets)
    return _reduce(mx.maximum(1 - first * second, 0), reduction)


def margin_ranking_loss(
    inputs1: mx.array,
    inputs2: mx.array,
    targets: mx.array,
    margin: float = 0.0,
    reduction: Reduction = "none",
) -> mx.array:
    """``max(0, -targets * (inputs1 - inputs2) + margin)``, which is small where scores are in the right order.

    Args:
        inputs1, inputs2: scores, of the same shape.
        targets: 1 where the first score should be higher, -1 where the second one should.
        margin: the difference that scores should have.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: shapes differ.

    >>> nn.losses.margin_ranking_loss(mx.array([3.0, 3.0]), mx.array([1.0, 1.0]), mx.array([1.0, -1.0]))
    array([0, 2], dtype=float32)
    """
    first, second = _pair("margin_ranking_loss", reduction, inputs1=inputs1, inputs2=inputs2)
    wanted = array_of("margin_ranking_loss", "targets", targets)
    _check_same_shape("margin_ranking_loss", "inputs1", first, "targets", wanted)
    margin = number_of("margin_ranking_loss", "margin", margin)
    return _reduce(mx.maximum(-wanted * (first - second) + margin, 0), reduction)


def kl_div_loss(inputs: mx.array, targets: mx.array, axis: int = -1, reduction: Reduction = "none") -> mx.array:
    """The Kullback-Leibler divergence, ``sum(exp(targets) * (targets - inputs))`` along an axis.

    Args:
        inputs: logarithms of the predicted probabilities.
        targets: logarithms of the true probabilities, of the same shape.
        axis: the axis of the distribution.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: shapes differ.

    >>> nn.losses.kl_div_loss(mx.log(mx.array([0.5, 0.5])), mx.log(mx.array([0.25, 0.75])))
    array(0.130812, dtype=float32)
    """
    first, second = _pair("kl_div_loss", reduction, inputs=inputs, targets=targets)
    axis = axis_of("kl_div_loss", "inputs", first, axis)
    return _reduce(mx.sum(mx.exp(second) * (second - first), axis=axis), reduction)


def gaussian_nll_loss(
    inputs: mx.array,
    targets: mx.array,
    vars: mx.array,
    full: bool = False,
    eps: float = 1e-6,
    reduction: Reduction = "mean",
) -> mx.array:
    """The negative log-likelihood of normal distributions, ``0.5 * (log(vars) + (targets - inputs)**2 / vars)``.

    Nix, Weigend, Estimating the mean and variance of the target probability distribution, 1994.

    Args:
        inputs: predicted means.
        targets: observed values, of the same shape.
        vars: predicted variances, of the same shape; variances below ``eps`` are replaced by it.
        full: whether to add the constant ``0.5 * log(2 * pi)``.
        eps: the smallest variance.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: shapes differ.

    >>> nn.losses.gaussian_nll_loss(mx.array([0.0]), mx.array([2.0]), mx.array([1.0]))
    array(2, dtype=float32)
    """
    first, second = _pair("gaussian_nll_loss", reduction, inputs=inputs, targets=targets)
    variances = array_of("gaussian_nll_loss", "vars", vars)
    _check_same_shape("gaussian_nll_loss", "inputs", first, "vars", variances)
    variances = mx.maximum(variances, number_of("gaussian_nll_loss", "eps", eps))
    loss = 0.5 * (mx.log(variances) + mx.square(second - first) / variances)
    return _reduce(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def cosine_similarity_loss(
    x1: mx.array, x2: mx.array, axis: int = 1, eps: float = 1e-8, reduction: Reduction = "none"
) -> mx.array:
    """The cosine of the angle between vectors, ``sum(x1 * x2) / max(norm(x1) * norm(x2), eps)``.

    Args:
        x1, x2: arrays of the same shape.
        axis: the axis of the vectors.
        eps: the smallest divisor.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: shapes differ.

    >>> nn.losses.cosine_similarity_loss(mx.array([[3.0, 0.0]]), mx.array([[1.0, 1.0]]))
    array([0.707107], dtype=float32)
    """
    first, second = _pair("cosine_similarity_loss", reduction, x1=x1, x2=x2)
    axis = axis_of("cosine_similarity_loss", "x1", first, axis)
    sizes = mx.linalg.norm(first, axis=axis) * mx.linalg.norm(second, axis=axis)
    least = number_of("cosine_similarity_loss", "eps", eps)
    return _reduce(mx.sum(first * second, axis=axis) / mx.maximum(sizes, least), reduction)


def triplet_loss(
    anchors: mx.array,
    positives: mx.array,
    negatives: mx.array,
    axis: int = -1,
    p: int = 2,
    margin: float = 1.0,
    eps: float = 1e-6,
    reduction: Reduction = "none",
) -> mx.array:
    """``max(0, distance(anchors, positives) - distance(anchors, negatives) + margin)``, with the distance
    ``(sum(abs(a - b)**p) + eps)**(1 / p)``.

    Schroff, Kalenichenko, Philbin, arXiv:1503.03832.

    Args:
        anchors, positives, negatives: arrays of the same shape.
        axis: the axis of the vectors.
        p: the degree of the norm, above 0; else ``ValueError``.
        margin: by how much the negatives should be farther away.
        eps: added to the sums, so that the root has a gradient at zero.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: shapes differ.

    >>> nn.losses.triplet_loss(mx.array([[0.0]]), mx.array([[1.0]]), mx.array([[1.5]]))
    array([0.5], dtype=float32)
    """
    first, second = _pair("triplet_loss", reduction, anchors=anchors, positives=positives)
    others = array_of("triplet_loss", "negatives", negatives)
    _check_same_shape("triplet_loss", "anchors", first, "negatives", others)
    axis = axis_of("triplet_loss", "anchors", first, axis)
    margin, eps = number_of("triplet_loss", "margin", margin), number_of("triplet_loss", "eps", eps)
    degree = positive_number_of("triplet_loss", "p", p)

    def distance(to: mx.array) -> mx.array:
        return mx.power(mx.sum(mx.power(mx.abs(first - to), degree), axis=axis) + eps, 1 / degree)

    return _reduce(mx.maximum(distance(second) - distance(others) + margin, 0), reduction)


def _pair(function: str, reduction: Reduction, **arguments: mx.array) -> list[mx.array]:
    """Two arguments, checked to have the same shape."""
    one_of(function, "reduction", reduction, _REDUCTIONS)
    (first_name, second_name), (first, second) = arguments, _arrays(function, **arguments)
    _check_same_shape(function, first_name, first, second_name, second)
    return [first, second]


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
    """For each position of the other axes, the entry of ``scores`` along ``axis`` at the index in ``targets``."""
    expected = scores.shape[:axis] + scores.shape[axis + 1 :]
    if targets.shape != expected:
        raise ValueError(
            f"[{function}] targets of shape {targets.shape} do not match {name} of shape {scores.shape}; "
            f"classes along axis {axis} need the shape {expected}."
        )
    if not mx.issubdtype(targets.dtype, mx.integer):
        raise ValueError(f"[{function}] targets that name classes must be integers; got {targets.dtype}.")
    score = mx.take_along_axis(scores, mx.expand_dims(targets, axis), axis=axis).squeeze(axis)
    classes = scores.shape[axis]
    known = mx.logical_and(targets >= -classes, targets < classes)
    # A factor instead of `mx.where`, so that the gradient is NaN as well.
    return score * mx.where(known, mx.ones_like(score), mx.nan)


def _of_logits(x: mx.array, targets: mx.array) -> mx.array:
    """``log(1 + exp(x)) - x * targets``, computed without cancellation for targets from 0 to 1."""
    x = x.astype(result_dtype(x))
    positive = mx.greater(x, 0)
    return mx.logaddexp(0, mx.where(positive, -x, x)) + x * (positive.astype(x.dtype) - targets)


def _clipped_log(probability: mx.array) -> mx.array:
    """The logarithm, but at least -100; at zero its gradient is zero, not NaN."""
    is_zero = probability == 0
    return mx.where(is_zero, -100, mx.maximum(mx.log(mx.where(is_zero, 1, probability)), -100))
