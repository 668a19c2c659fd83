"""Made-up data of any size, drawn from a seed."""

import numpy as np

from mpisgd.data import DataOptions, Dataset

SAMPLES, FEATURES, CLASSES, HELD_BACK = 10_000, 32, 10, 0.1
# Distance of a class's centre from the origin, in standard deviations of its samples along one
# axis: at 4, 98 % of the samples of the default size lie nearest to their own centre.
SEPARATION = 4.0
# Streams of one seed that must not be those of starting points or permutations.
BLOBS, NOISE = 0x626C_6F62, 0x6E6F_6973


def load_blobs(name: str, options: DataOptions) -> Dataset:
    """Gaussian blobs: one random centre per class, unit normal samples around it, float32."""
    options.refuse(name, "path")
    samples, total, features = _sizes(options)
    classes = CLASSES if options.classes is None else options.classes
    generator = np.random.default_rng((options.seed, BLOBS))
    centres = generator.standard_normal((classes, features), np.float32)
    centres *= SEPARATION / np.linalg.norm(centres, axis=1, keepdims=True)
    targets = generator.integers(0, classes, total)
    inputs = generator.standard_normal((total, features), np.float32)
    inputs += centres[targets]
    return _dataset(name, inputs, targets, samples, classes)


def load_noise(name: str, options: DataOptions) -> Dataset:
    """Unit normal inputs and nothing to classify: the gradient noise of the model quadratic."""
    options.refuse(name, "path", "classes")
    samples, total, features = _sizes(options)
    generator = np.random.default_rng((options.seed, NOISE))
    inputs = generator.standard_normal((total, features), np.float32)
    return _dataset(name, inputs, np.zeros(total, np.int64), samples, 0)


def _sizes(options: DataOptions) -> tuple[int, int, int]:
    """(training samples, training and test samples, features)."""
    samples = SAMPLES if options.samples is None else options.samples
    share = HELD_BACK if options.held_back is None else options.held_back
    features = FEATURES if options.features is None else options.features
    return samples, samples + max(1, round(samples * share / (1 - share))), features


def _dataset(
    name: str, inputs: np.ndarray, targets: np.ndarray, samples: int, classes: int
) -> Dataset:
    return Dataset(
        name=name,
        train_inputs=inputs[:samples],
        train_targets=targets[:samples],
        test_inputs=inputs[samples:],
        test_targets=targets[samples:],
        classes=classes,
        attribution="made up, drawn from a seed",
        split=f"{len(targets) - samples} more draws",
    )
