"""ReFrame tests of mpisgd: figures of merit with units and references. See docs/harnesses.md."""

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import (
    parameter,
    performance_function,
    run_before,
    sanity_function,
    variable,
)


class Mpisgd(rfm.RunOnlyRegressionTest):
    """What all have in common: any system, any environment whose launcher starts ranks."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "mpisgd"
    ranks = variable(int, value=2)
    maintainers = ["the mpisgd authors"]
    tags = {"mpisgd"}

    @run_before("run")
    def place(self):
        """A core a rank, a BLAS thread a core."""
        self.num_tasks = self.ranks
        self.env_vars["OPENBLAS_NUM_THREADS"] = "1"


@rfm.simple_test
class Verify(Mpisgd):
    """Every schedule is right, for 1 to 17 ranks; one process."""

    executable_opts = ["verify", "--ranks", "1:17", "--algorithms", "all"]
    ranks = 1
    tags = {"mpisgd", "sanity"}

    @sanity_function
    def none_is_wrong(self):
        """The last line says so."""
        return sn.assert_found(r"schedules verified, 0 wrong", self.stderr)


@rfm.simple_test
class Allreduce(Mpisgd):
    """Seconds of an all-reduce of one size, ours and the library's."""

    algorithm = parameter(["butterfly", "ring", "mpi"])
    size = parameter(["4K", "1M"])
    tags = {"mpisgd", "bench"}

    @run_before("run")
    def words(self):
        """Of `mpisgd bench`, then of the figures from its file, by one process."""
        self.executable_opts = [
            "bench", "allreduce", "--algorithms", self.algorithm, "--sizes", self.size,
            "--output", "bench.h5",
        ]  # fmt: skip
        self.postrun_cmds = ["mpisgd report bench.h5 --format fom"]

    @sanity_function
    def is_measured_and_right(self):
        """Results are compared with the sum that must come out: exit code 1, and no FOM, if not."""
        return sn.assert_found(self._figure(), self.stdout)

    @performance_function("us")
    def latency(self):
        """The median of the slowest rank's time."""
        return 1e6 * sn.extractsingle(self._figure(), self.stdout, 1, float)

    def _figure(self):
        return rf"^FOM name=bench\.bench\.{self.algorithm}\.\S+\.median_s value=(\S+) unit=s"


@rfm.simple_test
class Train(Mpisgd):
    """Steps a second and accuracy of an algorithm on the digits in the package."""

    algorithm = parameter(["minibatch", "local", "dasgd"])
    tags = {"mpisgd", "train"}

    @run_before("run")
    def words(self):
        """20 epochs take a second or two."""
        self.executable_opts = [
            "train", "--algorithm", self.algorithm, "--epochs", "20", "--format", "csv",
        ]  # fmt: skip

    @sanity_function
    def has_learned(self):
        """Digits are told apart by whoever averages rightly."""
        return sn.assert_ge(self._cell("accuracy"), 0.93)

    @performance_function("steps/s")
    def rate(self):
        """On the slowest rank, evaluation left out."""
        return self._cell("steps_per_s")

    @performance_function("1")
    def accuracy(self):
        """Of the test set: 360 images."""
        return self._cell("accuracy")

    @sn.deferrable
    def _cell(self, name):
        head, row = (line.split(",") for line in sn.evaluate(self._table())[-2:])
        return float(row[head.index(name)])

    @sn.deferrable
    def _table(self):
        with open(sn.evaluate(self.stdout)) as told:
            return [line.strip() for line in told if "," in line]
