"""Learning-rate schedules: functions of the step, for the `learning_rate` of an optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import weft.core as mx
from weft.checks import shown
from weft.errors import ArgumentTypeError
from weft.optimizers.settings import check_number, check_single, listed, scalar_setting

__all__ = ["cosine_decay", "exponential_decay", "join_schedules", "linear_schedule", "step_decay"]

StepNumber = int | mx.array
Schedule = Callable[[StepNumber], mx.array]


def exponential_decay(init: float, decay_rate: float) -> Schedule:
    """``init * decay_rate**step``.

    Args:
        init: the value at the start.
        decay_rate: the factor of each step.

    >>> optim.exponential_decay(0.5, 0.5)(mx.array(2))
    array(0.125, dtype=float32)
    """

    _check_numbers("exponential_decay", init=init, decay_rate=decay_rate)

    def schedule(step: StepNumber) -> mx.array:
        return _decayed("exponential_decay", init, decay_rate, step)

    return schedule


def _decayed(function: str, init: float, decay_rate: float, exponent: StepNumber) -> mx.array:
    """``init * decay_rate**exponent``, also of integers as floating numbers."""
    start, rate = scalar_setting(function, "init", init), scalar_setting(function, "decay_rate", decay_rate)
    return start * mx.power(rate, mx.array(exponent))


def step_decay(init: float, decay_rate: float, step_size: int) -> Schedule:
    """``init * decay_rate**(step // step_size)``.

    Args:
        init: the value at the start.
        decay_rate: the factor of each stage.
        step_size: the number of steps of a stage, at least 1; else ``ValueError``.

    >>> optim.step_decay(0.5, 0.5, step_size=10)(mx.array(25))
    array(0.125, dtype=float32)
    """
    _check_numbers("step_decay", init=init, decay_rate=decay_rate)
    _check_positive("step_decay", "step_size", step_size)

    def schedule(step: StepNumber) -> mx.array:
        return _decayed("step_decay", init, decay_rate, step // step_size)

    return schedule


def cosine_decay(init: float, decay_steps: int, end: float = 0.0) -> Schedule:
    """From ``init`` to ``end`` along half a period of the cosine; later the value is ``end``.

    Loshchilov, Hutter, arXiv:1608.03983.

    Args:
        init: the value at the start.
        decay_steps: the number of steps until ``end`` is reached, at least 1; else ``ValueError``.
        end: the value at the end.

    >>> optim.cosine_decay(0.5, decay_steps=10)(mx.array(5))
    array(0.25, dtype=float32)
    """
    _check_numbers("cosine_decay", init=init, end=end)
    _check_positive("cosine_decay", "decay_steps", decay_steps)

    def schedule(step: StepNumber) -> mx.array:
        angle = mx.minimum(step, decay_steps) * (math.pi / decay_steps)
        return end + (init - end) * (0.5 * (1.0 + mx.cos(angle)))

    return schedule


def linear_schedule(init: float, end: float, steps: int) -> Schedule:
    """From ``init`` to ``end`` in a straight line; later the value is ``end``.

    Args:
        init: the value at the start.
        end: the value at the end.
        steps: the number of steps until ``end`` is reached, at least 1; else ``ValueError``.

    >>> optim.linear_schedule(0.0, 0.5, steps=4)(mx.array(2))
    array(0.25, dtype=float32)
    """
    _check_numbers("linear_schedule", init=init, end=end)
    _check_positive("linear_schedule", "steps", steps)

    def schedule(step: StepNumber) -> mx.array:
        return mx.minimum(step, steps) * ((end - init) / steps) + init

    return schedule


def join_schedules(schedules: Sequence[Callable[..., mx.array]], boundaries: Sequence[int]) -> Schedule:
    """One schedule after the other; each counts its own steps from zero.

    Args:
        schedules: at least one; else ``ValueError``.
        boundaries: the steps at which the second, third, ... schedule begins: one fewer than schedules; else
            ``ValueError``.

    >>> warmup, decay = optim.linear_schedule(0.0, 0.5, steps=4), optim.cosine_decay(0.5, 10)
    >>> schedule = optim.join_schedules([warmup, decay], [4])
    >>> schedule(mx.array(2)), schedule(mx.array(4))
    (array(0.25, dtype=float32), array(0.5, dtype=float32))
    """
    schedules = listed("join_schedules", "schedules", schedules)
    boundaries = listed("join_schedules", "boundaries", boundaries)
    for one in schedules:
        if not callable(one):
            raise ArgumentTypeError(f"[join_schedules] schedules must be functions of the step; got {shown(one)}.")
    for boundary in boundaries:
        check_number("join_schedules", "each of boundaries", boundary)
    if not schedules:
        raise ValueError("[join_schedules] at least one schedule is needed.")
    if len(boundaries) != len(schedules) - 1:
        raise ValueError(
            f"[join_schedules] {len(schedules)} schedules need {len(schedules) - 1} boundaries; got {len(boundaries)}."
        )

    def schedule(step: StepNumber) -> mx.array:
        value = schedules[0](step)
        for boundary, later in zip(boundaries, schedules[1:], strict=True):
            # The step is unsigned: it must not be below the boundary when the difference is computed.
            begun = mx.maximum(step, boundary) - boundary
            value = mx.where(mx.array(step) < boundary, value, later(begun))
        return value

    return schedule


def _check_numbers(function: str, **values: Any) -> None:
    for argument, value in values.items():
        check_number(function, argument, value)


def _check_positive(function: str, argument: str, value: int) -> None:
    check_number(function, argument, value)
    check_single(function, argument, value)
    if value <= 0:
        raise ValueError(f"[{function}] {argument} must be at least 1; got {value}.")
