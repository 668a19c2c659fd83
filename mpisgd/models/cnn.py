"""Convolutional networks without any framework: for MNIST as in Chen et al., small ResNets."""

from mpisgd.data import Dataset
from mpisgd.models import HIDDEN, ModelOptions
from mpisgd.models.classifier import Classifier
from mpisgd.models.convolution import Convolution
from mpisgd.models.layer import Layer
from mpisgd.models.network import Network
from mpisgd.models.normalisation import BatchNormalisation
from mpisgd.models.pooling import MaxPooling, MeanPooling
from mpisgd.models.rectifier import BiasedRectifier, Rectifier
from mpisgd.models.residual import Residual
from mpisgd.models.weight_norm import NormalisedConvolution
from mpisgd.values.errors import UsageError

STAGES = 3  # of a residual network


def build_mnist_cnn(dataset: Dataset, options: ModelOptions) -> Network:
    """Chen et al. 2016, A.1: 3x3 convolutions, each with weight normalisation, a bias, 2x2
    max-pooling and a rectifier; then one fully connected layer. `hidden`: their channels, four of
    them in the paper. An image of one line or column is pooled no further.

    Raises UsageError for data that are no images and for layers without channels.
    """
    widths = HIDDEN["mnist-cnn"] if options.hidden is None else options.hidden
    channels, size = _images("mnist-cnn", dataset)
    _check(widths, "16,16,32,32")
    layers: list[Layer] = []
    inputs = channels
    for number, outputs in enumerate(widths, 1):
        name = f"conv{number}"
        layers.append(NormalisedConvolution(name, inputs, outputs, size, first=number == 1))
        # The largest of four commutes with the bias and the rectifier: they do a quarter there.
        if min(size) > 1:
            layers.append(MaxPooling(f"pool{number}", size))
            size = (size[0] // 2, size[1] // 2)
        layers.append(BiasedRectifier(name, outputs))
        inputs = outputs
    layers.append(Classifier("classifier", inputs, size, dataset.classes))
    return Network("mnist-cnn", channels, (*dataset.train_inputs.shape[2:],), layers)


def build_resnet8(dataset: Dataset, options: ModelOptions) -> Network:
    """6 n + 2 layers with n = 1; see `build_resnet`."""
    return build_resnet("resnet8", 1, dataset, options)


def build_resnet20(dataset: Dataset, options: ModelOptions) -> Network:
    """6 n + 2 layers with n = 3; see `build_resnet`."""
    return build_resnet("resnet20", 3, dataset, options)


def build_resnet(name: str, blocks: int, dataset: Dataset, options: ModelOptions) -> Network:
    """He et al. 2016, section 4.2: a 3x3 convolution, three stages of `blocks` residual blocks with
    width, 2 width and 4 width channels, the second and third of them at half the size; the mean of
    each channel; one fully connected layer. `hidden`: the first width, 16 in the paper.

    Raises UsageError for data that are no images, and for more than one width.
    """
    hidden = HIDDEN[name] if options.hidden is None else options.hidden
    channels, size = _images(name, dataset)
    _check(hidden, "16")
    if len(hidden) > 1:
        raise UsageError("--hidden", _shown(hidden), f"{name} takes one number, its first width")
    width = hidden[0]
    layers: list[Layer] = [
        Convolution("stem.conv", channels, width, size, first=True),
        BatchNormalisation("stem.norm", width),
        Rectifier("stem.rectifier"),
    ]
    inputs = width
    for stage in range(STAGES):
        outputs = width << stage
        for number in range(1, blocks + 1):
            stride = 2 if stage and number == 1 else 1
            block = Residual(f"block{stage + 1}.{number}", inputs, outputs, size, stride)
            layers.append(block)
            inputs, size = outputs, block.size
    layers.append(MeanPooling("mean"))
    layers.append(Classifier("classifier", inputs, (1, 1), dataset.classes))
    return Network(name, channels, (*dataset.train_inputs.shape[2:],), layers)


def _images(model: str, dataset: Dataset) -> tuple[int, tuple[int, int]]:
    """(channels, (height, width)) of the data set."""
    shape = dataset.train_inputs.shape[1:]
    if len(shape) != 3:
        raise UsageError("--data", dataset.name, f"the model {model} needs images")
    if dataset.classes < 2:
        raise UsageError("--data", dataset.name, f"the model {model} needs data with classes")
    return shape[0], (shape[1], shape[2])


def _check(hidden: tuple[int, ...], example: str) -> None:
    if not hidden or min(hidden) < 1:
        raise UsageError("--hidden", _shown(hidden), f"whole numbers >= 1, as in {example}")


def _shown(hidden: tuple[int, ...]) -> str:
    return ",".join(map(str, hidden))
