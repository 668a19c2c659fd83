"""`python -m mpisgd`: the command line where the `mpisgd` script is not on the PATH."""

import os
import sys

if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):
    # `-m` looks for modules first where the user stands: a random.py there is not ours to run, nor
    # is a folder called mpisgd this package.
    sys.path[0:1] = []
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.modules.pop("mpisgd", None)

from mpisgd.cli import main

sys.exit(main())
