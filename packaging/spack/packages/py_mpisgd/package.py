# Copyright the mpisgd authors. SPDX-License-Identifier: BSD-3-Clause

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyMpisgd(PythonPackage):
    """A benchmark suite for distributed SGD on MPI: delayed averaging, local SGD, backup workers."""

    pypi = "mpisgd/mpisgd-0.1.0.tar.gz"

    license("BSD-3-Clause")

    # The digest is that of the released sdist: see CONTRIBUTING.md, Release.
    version("0.1.0", sha256="0000000000000000000000000000000000000000000000000000000000000000")

    variant("plot", default=True, description="Figures and HTML pages")
    variant("frames", default=False, description="Result files as data frames")
    variant("torch", default=False, description="Networks with PyTorch")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@64:", type="build")

    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-mpi4py@4:", type=("build", "run"))
    depends_on("py-h5py@3.10: ~mpi", type=("build", "run"))
    depends_on("py-tqdm@4.60:", type=("build", "run"))

    with when("+plot"):
        depends_on("py-matplotlib@3.8:", type=("build", "run"))
        depends_on("py-jinja2@3.1:", type=("build", "run"))
    with when("+frames"):
        depends_on("py-pandas@2:", type=("build", "run"))
        depends_on("py-xarray@2023.6:", type=("build", "run"))
        depends_on("py-h5netcdf@1.2:", type=("build", "run"))
    depends_on("py-torch@2.1:", when="+torch", type=("build", "run"))

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_schedules(self):
        """Every all-reduce schedule is proved for a few numbers of ranks; needs no MPI ranks."""
        python("-m", "mpisgd", "verify", "--ranks", "1:9")
