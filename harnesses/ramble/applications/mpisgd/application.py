"""mpisgd for Ramble: two workloads, their figures of merit, what counts as success."""

from ramble.appkit import *


class Mpisgd(ExecutableApplication):
    """A benchmark suite for distributed SGD on MPI."""

    name = "mpisgd"
    maintainers("the-mpisgd-authors")
    tags("mpi", "allreduce", "machine-learning")

    software_spec("mpisgd", pkg_spec="py-mpisgd")

    executable(
        "allreduce",
        "mpisgd bench allreduce --algorithms {algorithm} --sizes {size} --output bench.h5 --overwrite",
        use_mpi=True,
    )
    executable("figures", "mpisgd report bench.h5 --format fom", use_mpi=False)
    executable(
        "learn",
        "mpisgd train --algorithm {algorithm} --epochs {epochs} --output train.h5 --overwrite",
        use_mpi=True,
    )
    executable("outcome", "mpisgd report train.h5 --format fom", use_mpi=False)

    workload("bench", executables=["allreduce", "figures"])
    workload("train", executables=["learn", "outcome"])

    workload_variable(
        "algorithm", default="ring", description="Who is measured", workloads=["bench"]
    )
    workload_variable("size", default="1M", description="Bytes of a vector", workloads=["bench"])
    workload_variable("algorithm", default="dasgd", description="Who learns", workloads=["train"])
    workload_variable("epochs", default="20", description="Passes", workloads=["train"])

    figure_of_merit(
        "{name}",
        fom_regex=r"FOM name=(?P<name>\S+) value=(?P<value>\S+) unit=(?P<unit>\S+)",
        group_name="value",
        units="{unit}",
    )
    success_criteria("figures", mode="string", match=r"FOM name=.* value=.*")
