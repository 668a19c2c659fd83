"""One BLAS thread, whoever imports this before NumPy: the count changes bits and costs."""

import os

from mpisgd.values.processes import BLAS_VARIABLES

for variable in BLAS_VARIABLES:
    os.environ[variable] = "1"
