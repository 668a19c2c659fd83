"""Made-up data of any size, drawn from a seed."""

import numpy as np

from mpisgd.data import DataOptions, Dataset

SAMPLES, FEATURES, CLASSES, HELD_BACK = 10_000, 32, 10, 0.1
# Distance of a class's centre from the origin, in standard deviations of its samples along one
# axis: at 4, 98 % of the samples of the default size lie nearest to their own centre.
SEPARATION = 4.0
# Documents: words there are, the first of them that all classes use alike, how many times as often
# as others a class uses its own, and how long documents are.
WORDS, COMMON, PREFERENCE = 20_000, 100, 5.0
SHORTEST, LONGEST = 10, 60
NO_WORD = -1  # behind a document's last one
# Streams of one seed that must not be those of starting points or permutations.
BLOBS, NOISE, DOCUMENTS = 0x626C_6F62, 0x6E6F_6973, 0x646F_6373


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


def load_documents(name: str, options: DataOptions) -> Dataset:
    """Texts by Zipf's law: inputs (samples, LONGEST) float32, numbers of words from 0, the most
    frequent, and NO_WORD behind the last. `features`: how many words there are.

    Word w is drawn with a chance as 1 / (w + 1). Each word beyond the first COMMON belongs to a
    class, in whose documents its chance is PREFERENCE times that. Lengths are uniform.
    """
    options.refuse(name, "path")
    samples, total, _ = _sizes(options)
    words = WORDS if options.features is None else options.features
    classes = CLASSES if options.classes is None else options.classes
    generator = np.random.default_rng((options.seed, DOCUMENTS))
    owners, targets = (generator.integers(0, classes, count) for count in (words, total))
    owners[: min(COMMON, words // 10)] = classes  # nobody's
    lengths = generator.integers(SHORTEST, LONGEST + 1, total)
    inputs = generator.random((total, LONGEST), np.float32)
    for own in range(classes):
        chances = np.where(owners == own, PREFERENCE, 1.0) / np.arange(1, words + 1)
        edges = np.cumsum(chances)
        chosen = targets == own
        inputs[chosen] = np.searchsorted(edges / edges[-1], inputs[chosen], "right")
    inputs[np.arange(LONGEST) >= lengths[:, None]] = NO_WORD
    return _dataset(name, inputs, targets, samples, classes)


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
