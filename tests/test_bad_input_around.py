"""What is wrong around a run rather than in its words: other runs, the environment, help."""

import os

import pytest
from test_bad_input import RUN
from test_cli import outcome


def test_two_runs_that_write_one_file_are_told_of_each_other(tmp_path):
    """The second one is refused; where both began in the same moment, the first one stops."""
    from test_store import writer

    from mpisgd.store.writer import StoreError
    from mpisgd.values.errors import UsageError

    path = tmp_path / "run.h5"
    with writer(path) as first:
        with pytest.raises(UsageError, match="a run that still goes on or did not complete"):
            writer(path)
        with writer(path, overwrite=True) as second:
            first.steps(0, 1, {"loss": [1.0]})
            with pytest.raises(StoreError, match=r"replaced while .* is another run"):
                first.flush()
            second.complete({})
    assert [left.name for left in tmp_path.iterdir()] == ["run.h5"]


def test_a_run_that_has_saved_itself_is_told_to_go_on(tmp_path):
    """Only --overwrite was named before: it removes the checkpoint."""
    from mpisgd.store.target import check_target
    from mpisgd.values.errors import UsageError

    path = tmp_path / "run.h5"
    (tmp_path / "run.h5.partial").touch()
    with pytest.raises(UsageError, match="complete; pass --overwrite or choose another name"):
        check_target(path)
    (tmp_path / "run.h5.checkpoint.previous").touch()
    with pytest.raises(UsageError, match="complete; --resume auto goes on, else pass --overwrite"):
        check_target(path)


def test_the_help_of_train_is_in_groups(capsys):
    from mpisgd.experiment.arguments import GROUPS

    assert outcome(["train", "--help-all"]) == 0
    text = capsys.readouterr().out
    titles = [line[:-1] for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert titles[:7] == ["options", *GROUPS]
    assert "--tau N               local steps between averages [4] (local, dasgd," in text
    assert "true or false" not in text


NONSENSE = ("", "abc", "-1", "0", "1.5", "٣", "99999999999999999999x", "\n", "'; rm -rf /")
VARIABLES = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMIX_SIZE",
             "SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID",
             "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "OMPI_MCA_btl", "UCX_NET_DEVICES",
             "UCX_TLS")  # fmt: skip


@pytest.mark.parametrize("turn", range(3))
def test_nonsense_in_the_environment_is_as_if_it_were_not_there(
    turn, monkeypatch, capsys, tmp_path
):
    """A run without a launcher, whatever its variables hold; they are recorded as they are."""
    from mpisgd.store.reader import read

    for place, variable in enumerate(VARIABLES):
        value = NONSENSE[(3 * place + turn) % len(NONSENSE)]
        monkeypatch.setenv(variable, value)
    output = tmp_path / "run.h5"
    assert outcome([*RUN.split(), "--output", str(output)]) == 0
    assert all(line.startswith("mpisgd: note: ") for line in capsys.readouterr().err.splitlines())
    with read(output) as run:
        assert run.environment["variables"]["UCX_TLS"] == value


@pytest.mark.parametrize(
    ("variables", "tasks"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 4),
        ({"PMI_SIZE": "3", "OMPI_COMM_WORLD_SIZE": "x"}, 3),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "8"}, 8),
        ({"SLURM_NTASKS": "8"}, 1),  # in a batch script, which is one process
    ],
)
def test_a_launcher_that_started_several_tasks_is_believed(variables, tasks, monkeypatch, capsys):
    from mpisgd.mpi import announced, session

    told: list[str] = []
    monkeypatch.setattr(session, "refuse_together", told.append)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code = outcome(RUN.split())
    assert announced.announced_tasks(os.environ) == tasks
    assert code == (2 if tasks > 1 else 0)
    assert bool(told) == (tasks > 1)
    if told:
        assert f"a launcher started {tasks}; start it without" in told[0]
