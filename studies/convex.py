"""The rate study's problem: softmax regression on labels drawn from a softmax. Convex and noisy.

F(x) = mean over the training samples of the cross-entropy; x holds weights (features, classes),
then biases (classes). No classifier separates the labels, so that a least F exists and gradients
of single samples stay noisy there.
"""

import numpy as np

from mpisgd.data import Dataset

SAMPLES, FEATURES, CLASSES = 4096, 16, 4
SMALLEST_SCALE = 0.1  # of an input's standard deviation; the largest is 1: directions of all slopes
SEED = 7  # of the problem: runs differ in starting point and order of samples, not in it
NEWTON_STEPS, TOLERANCE = 50, 1e-12


def problem() -> Dataset:
    """The same samples in every run; the test set is one sample that nobody looks at."""
    generator = np.random.default_rng(SEED)
    scales = np.geomspace(1, SMALLEST_SCALE, FEATURES)
    inputs = generator.standard_normal((SAMPLES, FEATURES)) * scales
    logits = inputs @ generator.standard_normal((FEATURES, CLASSES))
    noise = generator.gumbel(size=logits.shape)  # argmax of logits + Gumbel noise ~ their softmax
    targets = np.argmax(logits + noise, axis=1)
    return Dataset(
        name="softmax labels", train_inputs=inputs.astype(np.float32), train_targets=targets,
        test_inputs=inputs[:1].astype(np.float32), test_targets=targets[:1], classes=CLASSES,
        attribution="made up, drawn from a seed", split="one sample, not used",
    )  # fmt: skip


class Objective:
    """F, its gradient and its least value, in float64."""

    def __init__(self, dataset: Dataset):
        ones = np.ones((dataset.samples, 1))
        self.inputs = np.hstack([dataset.train_inputs.astype(np.float64), ones])
        self.hot = np.eye(dataset.classes)[dataset.train_targets]
        self.shape = self.inputs.shape[1], dataset.classes

    def value(self, flat: np.ndarray) -> float:
        """F(flat)."""
        logits = self.inputs @ flat.reshape(self.shape)
        return float((_log_sum(logits) - (logits * self.hot).sum(axis=1)).mean())

    def gradient(self, flat: np.ndarray) -> np.ndarray:
        """(features + 1) * classes derivatives."""
        return (self.inputs.T @ (self._shares(flat) - self.hot)).ravel() / len(self.inputs)

    def least(self) -> np.ndarray:
        """Where F is least, by Newton's method; of the many (F ignores a shift of all logits of a
        sample) the one of least norm."""
        flat = np.zeros(self.shape[0] * self.shape[1])
        for _ in range(NEWTON_STEPS):
            slope = self.gradient(flat)
            if np.abs(slope).max() < TOLERANCE:
                return flat
            flat = flat - np.linalg.pinv(self._hessian(flat), rcond=1e-10) @ slope
        raise ArithmeticError(f"Newton's method did not converge in {NEWTON_STEPS} steps")

    def _shares(self, flat: np.ndarray) -> np.ndarray:
        logits = self.inputs @ flat.reshape(self.shape)
        return np.exp(logits - _log_sum(logits)[:, None])

    def _hessian(self, flat: np.ndarray) -> np.ndarray:
        shares = self._shares(flat)
        curvature = np.einsum("ni,ij->nij", shares, np.eye(self.shape[1]))
        curvature -= shares[:, :, None] * shares[:, None, :]
        blocks = np.einsum("na,nb,nij->aibj", self.inputs, self.inputs, curvature, optimize=True)
        size = self.shape[0] * self.shape[1]
        return blocks.reshape(size, size) / len(self.inputs)


def _log_sum(logits: np.ndarray) -> np.ndarray:
    """log of the sum of exp over the last axis, stable."""
    top = logits.max(axis=1)
    return top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
