"""`python -m mpisgd`: the command line where the `mpisgd` script is not on the PATH."""

import sys

from mpisgd.cli import main

sys.exit(main())
