"""The exponential moving average that "EMA loss" means everywhere here."""

from __future__ import annotations

import numpy as np

EMA_SPAN = 50  # steps


def ema(loss: np.ndarray, span: float = EMA_SPAN) -> np.ndarray:
    """Bias-corrected exponential moving average, alpha = 2 / (span + 1).

    A NaN in the loss makes this and every later value NaN: an average that skipped
    it would show a recovery that never took place.

    Args:
        loss: nats per token, shape (n,), one value a step.
        span: in steps, at least 1.

    Returns:
        float64, shape (n,), in the unit of ``loss``; the first value is the loss.

    Raises:
        ValueError: the span is below 1.

    Reference:
        Kingma and Ba (2015), "Adam", section 3, for the bias correction.
    """
    if not span >= 1:
        raise ValueError(f"span: expected at least 1 step, found {span}")
    running = RunningEma(span)
    values = np.asarray(loss, np.float64).tolist()
    return np.array([running.update(value) for value in values], np.float64)


class RunningEma:
    """The same average, one value at a time."""

    def __init__(self, span: float = EMA_SPAN) -> None:
        self._keep = 1 - 2 / (span + 1)
        self._mean, self._weight = 0.0, 1.0

    def update(self, value: float) -> float:
        """Take the next value; the average up to and with it."""
        self._mean = self._keep * self._mean + (1 - self._keep) * value
        self._weight *= self._keep
        return self._mean / (1 - self._weight)
