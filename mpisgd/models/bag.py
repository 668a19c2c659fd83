"""A bag of words: the mean of their rows in an embedding, then softmax regression.

The classifier of fastText (Joulin et al. 2017, arXiv 1607.01759), without n-grams.
"""

import math

import numpy as np

from mpisgd.data import Dataset
from mpisgd.models import HIDDEN, ModelOptions, Progress, Ready, Sums
from mpisgd.models.layers import Meter, cross_entropy, evaluated, mean_loss, multiply
from mpisgd.training.parameters import Parameters
from mpisgd.values.errors import UsageError

EVALUATION_ROWS = 256
MOST_WORDS = 1 << 24  # numbers that float32 tells apart


class Bag:
    """h = mean over a document's words w of E_w; logits = h W + b; softmax cross-entropy.

    Inputs: (rows, longest), numbers of words, negative ones for none. `embedding` and `rows`: see
    mpisgd.models.
    """

    name, embedding = "bag", "embedding.weight"

    def __init__(self, words: int, width: int, classes: int):
        self.width, self.classes = width, classes
        self.shapes: dict[str, tuple[int, ...]] = {
            self.embedding: (words, width),
            "classifier.weight": (width, classes),
            "classifier.bias": (classes,),
        }

    def initialise(self, parameters: Parameters, generator: np.random.Generator) -> None:
        """Rows of the embedding and columns of the weight of length 1 on average, biases zero."""
        for name in (self.embedding, "classifier.weight"):
            drawn = generator.standard_normal(self.shapes[name])
            parameters[name][...] = drawn / math.sqrt(self.width)
        parameters["classifier.bias"][...] = 0

    def rows(self, inputs: np.ndarray) -> np.ndarray:
        """The numbers of a batch's words, (count,) int64, ascending."""
        words = np.unique(inputs).astype(np.int64)
        return words[words >= 0]

    def gradient(
        self,
        parameters: Parameters,
        inputs: np.ndarray,
        targets: np.ndarray,
        gradient: Parameters,
        progress: Progress,
        ready: Ready | None = None,
        needs: Ready | None = None,
    ) -> float:
        """See Model.gradient."""
        ready, needs = ready or _nobody, needs or _nobody
        if len(targets) == 0:
            gradient.flat[:] = 0
            progress(1.0)
            ready(0)
            return 0.0
        rows, longest = inputs.shape
        meter = Meter(progress, rows * self.width * (2 * longest + 3 * self.classes))
        edge = gradient[self.embedding].size
        with np.errstate(over="ignore", invalid="ignore"):
            needs(edge)
            words, shares = _words(inputs, parameters.dtype)
            hidden = self._hidden(parameters, words, shares)
            meter.advance(rows * self.width * longest)
            needs(parameters.size)
            slope = self._logits(parameters, hidden, meter)
            losses, positions = cross_entropy(slope, targets, parameters.memory)
            slope.reshape(-1)[positions] -= 1
            slope /= rows
            gradient["classifier.bias"][...] = slope.sum(axis=0)
            multiply(hidden.T, slope, gradient["classifier.weight"], meter)
            ready(edge)
            multiply(slope, parameters["classifier.weight"].T, hidden, meter)
            _spread(hidden, words, shares, gradient[self.embedding])
            meter.advance(rows * self.width * longest)
            ready(0)
        return mean_loss(losses, rows, parameters.memory)

    def evaluate(self, parameters: Parameters, inputs: np.ndarray, targets: np.ndarray) -> Sums:
        """See Model.evaluate."""

        def logits(part: slice) -> np.ndarray:
            hidden = self._hidden(parameters, *_words(inputs[part], parameters.dtype))
            return self._logits(parameters, hidden, Meter(None, 1))

        return evaluated(logits, targets, EVALUATION_ROWS)

    def _hidden(self, parameters: Parameters, words: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """The means of the words' rows: (rows, width)."""
        return np.matmul(shares[:, None, :], parameters[self.embedding][words])[:, 0]

    def _logits(self, parameters: Parameters, hidden: np.ndarray, meter: Meter) -> np.ndarray:
        logits = np.empty((len(hidden), self.classes), hidden.dtype)
        multiply(hidden, parameters["classifier.weight"], logits, meter)
        logits += parameters["classifier.bias"]
        return logits


def _words(inputs: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """(numbers of words, what each counts in its document's mean): (rows, longest). Where there is
    none: any word, which counts nothing."""
    words = inputs.astype(np.int64)
    real = words >= 0
    counts = np.maximum(real.sum(axis=1, keepdims=True), 1)
    return words, (real / counts).astype(dtype)


def _spread(slope: np.ndarray, words: np.ndarray, shares: np.ndarray, out: np.ndarray) -> None:
    """The derivative by the embedding, from that by the means (rows, width): zero but for `words`,
    whose parts are added in order of documents."""
    out[...] = 0
    documents, places = np.nonzero(words >= 0)
    found = words[documents, places]
    if found.size:
        order = np.argsort(found, kind="stable")
        documents, places, found = documents[order], places[order], found[order]
        parts = slope[documents] * shares[documents, places][:, None]
        first = np.flatnonzero(np.diff(found, prepend=-1))
        out[found[first]] = np.add.reduceat(parts, first, axis=0)


def _nobody(element: int) -> None:
    """Who listens where nobody does."""


def build_bag(dataset: Dataset, options: ModelOptions) -> Bag:
    """An embedding of `hidden` numbers a word, for all words up to the largest number in the data.
    Raises UsageError for more than one width, and for data that are no documents."""
    widths = HIDDEN["bag"] if options.hidden is None else options.hidden
    if len(widths) != 1 or widths[0] < 1:
        shown = ",".join(map(str, widths))
        raise UsageError("--hidden", shown, "bag takes one number, the width of its embedding")
    arrays = dataset.train_inputs, dataset.test_inputs
    most = int(max(inputs.max() for inputs in arrays)) if all(map(_are_words, arrays)) else -1
    if not 0 <= most < MOST_WORDS or dataset.classes < 2:
        allowed = (
            "the model bag needs documents with classes: numbers of words, -1 behind the last, as "
            "float32 (samples, longest); --data documents has them"
        )
        raise UsageError("--data", dataset.name, allowed)
    return Bag(most + 1, widths[0], dataset.classes)


def _are_words(inputs: np.ndarray) -> bool:
    if inputs.ndim != 2 or inputs.dtype != np.float32:
        return False
    return bool((inputs >= -1).all() and (inputs == np.floor(inputs)).all())
