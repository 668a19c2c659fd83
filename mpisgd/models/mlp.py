"""Fully connected networks with ReLU, and softmax regression: one without hidden layers."""

import math

import numpy as np

from mpisgd.data import Dataset
from mpisgd.models import HIDDEN, ModelOptions, Progress, Ready, Sums
from mpisgd.models.layers import Meter, Scratch, cross_entropy, evaluated, mean_loss, multiply
from mpisgd.training.parameters import Parameters
from mpisgd.values.errors import UsageError

# Samples that are evaluated at once: bounds the scratch that evaluation needs.
EVALUATION_ROWS = 256


class MLP:
    """a_0 = inputs; a_i = max(0, a_{i-1} W_i + b_i), without the max in the last layer; softmax
    cross-entropy. 6 * rows * sum(inputs_i * outputs_i) floating-point operations a step, less the
    first layer's third product, which nobody needs.
    """

    def __init__(self, name: str, features: int, hidden: tuple[int, ...], classes: int):
        self.name = name
        self.widths = (features, *hidden, classes)
        self.layers = range(1, len(self.widths))
        self.shapes: dict[str, tuple[int, ...]] = {}
        for i in self.layers:
            self.shapes[f"layer{i}.weight"] = (self.widths[i - 1], self.widths[i])
            self.shapes[f"layer{i}.bias"] = (self.widths[i],)
        # Outputs of every layer, then the derivatives by the outputs of the hidden ones.
        self._scratch = Scratch((*self.widths[1:], *hidden))

    def initialise(self, parameters: Parameters, generator: np.random.Generator) -> None:
        """Weights normal with variance 2 / inputs (He et al. 2015), biases zero."""
        for i in self.layers:
            weight = parameters[f"layer{i}.weight"]
            weight[:] = generator.standard_normal(weight.shape) * math.sqrt(2 / len(weight))
            parameters[f"layer{i}.bias"][:] = 0

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
        """See Model.gradient. inputs: (rows, ...), flattened to (rows, features)."""
        rows = len(targets)
        if rows == 0:
            gradient.flat[:] = 0
            progress(1.0)
            if ready is not None:
                ready(0)
            return 0.0
        products = [self.widths[i - 1] * self.widths[i] for i in self.layers]
        meter = Meter(progress, rows * (3 * sum(products) - products[0]))
        with np.errstate(over="ignore", invalid="ignore"):
            outputs = self._forward(parameters, inputs, meter, needs)
            losses, positions = cross_entropy(outputs[-1], targets, parameters.memory)
            derivative = outputs[-1]
            derivative.reshape(-1)[positions] -= 1
            derivative /= rows
            self._backward(parameters, outputs, gradient, meter, ready)
        return mean_loss(losses, rows, parameters.memory)

    def evaluate(self, parameters: Parameters, inputs: np.ndarray, targets: np.ndarray) -> Sums:
        """See Model.evaluate. A row is correct when the largest output is its target's."""
        silent = Meter(None, 1)
        return evaluated(
            lambda part: self._forward(parameters, inputs[part], silent)[-1],
            targets, EVALUATION_ROWS, parameters.memory,
        )  # fmt: skip

    def _forward(
        self,
        parameters: Parameters,
        inputs: np.ndarray,
        meter: Meter,
        needs: Ready | None = None,
    ) -> list[np.ndarray]:
        """[inputs as a matrix, the outputs of each layer]; the last are the logits."""
        rows = len(inputs)
        memory = parameters.memory
        xp, matrices = memory.module, self._scratch.matrices(rows, parameters.dtype, memory)
        outputs = [inputs.reshape(rows, -1).astype(parameters.dtype, copy=False)]
        high = 0
        for i in self.layers:
            high += (self.widths[i - 1] + 1) * self.widths[i]
            if needs is not None:
                needs(high)
            output = matrices[i - 1]
            multiply(outputs[-1], parameters[f"layer{i}.weight"], output, meter, xp.matmul)
            output += parameters[f"layer{i}.bias"]
            if i < len(self.layers):
                xp.maximum(output, 0, out=output)
            outputs.append(output)
        return outputs

    def _backward(
        self,
        parameters: Parameters,
        outputs: list[np.ndarray],
        gradient: Parameters,
        meter: Meter,
        ready: Ready | None,
    ) -> None:
        """Fills `gradient`; outputs[-1] holds the derivative by the logits."""
        derivative = outputs[-1]
        memory = parameters.memory
        matrices = self._scratch.matrices(len(derivative), parameters.dtype, memory)
        matmul, low = memory.module.matmul, gradient.size
        for i in reversed(self.layers):
            before = outputs[i - 1]
            memory.sum(derivative, axis=0, out=gradient[f"layer{i}.bias"])
            multiply(before.T, derivative, gradient[f"layer{i}.weight"], meter, matmul)
            low -= (self.widths[i - 1] + 1) * self.widths[i]
            if ready is not None:
                ready(low)
            if i > 1:
                after, derivative = derivative, matrices[len(self.layers) + i - 2]
                multiply(after, parameters[f"layer{i}.weight"].T, derivative, meter, matmul)
                derivative *= before > 0


def build_softmax(dataset: Dataset, options: ModelOptions) -> MLP:
    """Softmax regression: convex, no hidden layer."""
    return MLP("softmax", dataset.features, (), _classes("softmax", dataset))


def build_mlp(dataset: Dataset, options: ModelOptions) -> MLP:
    """An MLP with `hidden` layers. Raises UsageError for a layer without units."""
    hidden = HIDDEN["mlp"] if options.hidden is None else options.hidden
    if not hidden or min(hidden) < 1:
        shown = ",".join(map(str, hidden))
        raise UsageError(
            "--hidden", shown, "whole numbers >= 1, as in 64,32 (no hidden layer: --model softmax)"
        )
    return MLP("mlp", dataset.features, hidden, _classes("mlp", dataset))


def _classes(model: str, dataset: Dataset) -> int:
    if dataset.classes < 2:
        raise UsageError("--data", dataset.name, f"the model {model} needs data with classes")
    return dataset.classes
