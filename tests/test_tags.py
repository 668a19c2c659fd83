"""No two kinds of messages of a run share a tag."""

from itertools import combinations

from allreduce.lowering import TAGS_PER_PLAN
from mpisgd.mpi import tags


def test_no_two_messages_share_a_tag():
    plans = [tags.OF_THE_SITE, tags.DELAY_PROBE, tags.DELAY_PROBE + 1, tags.TEXTS]
    used = [range(number * TAGS_PER_PLAN, (number + 1) * TAGS_PER_PLAN) for number in plans]
    used += [range(first, first + tags.CHUNKS) for first in (tags.PUSHES, tags.REPLIES)]
    used.append(range(tags.SNAPSHOTS, tags.SNAPSHOTS + tags.SNAPSHOTS_COUNT))
    used.append(range(tags.ROUNDS, tags.ROUNDS + tags.ROUNDS_COUNT))
    single = [tags.NOTICES, tags.VERDICTS, tags.ROWS, tags.UPDATES]
    single += [tag + back for tag in (tags.STATES, tags.WORKERS_STATES) for back in (0, tags.BACK)]
    used += [range(tag, tag + 1) for tag in single]
    assert all(not set(one) & set(other) for one, other in combinations(used, 2))
    assert max(map(max, used)) <= 32767
