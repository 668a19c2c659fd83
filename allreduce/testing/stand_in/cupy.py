"""With this folder on PYTHONPATH, `import cupy` finds the double of a device."""

import sys

from allreduce.testing import device

sys.modules["cupy"], sys.modules["cupy.cuda"] = device, device.cuda
