"""Who uses which tags of the run's communicator: one table, so that no two messages meet.

MPI promises tags up to 32,767. The low ones belong to plans: number n has the 256 from 256 n on
(allreduce.lowering). Those of a run are numbered from 0, in the order in which they are named.
"""

# Plans, by number.
OF_THE_SITE = 100  # which are never in flight together
DELAY_PROBE = 118  # and 119: what `--delay auto` measures, before the run
TEXTS = 120  # what ranks tell each other as text
# allreduce.measure has 125 and 126 (from 32,000 on), and never beside a run.

# Messages. A message of a server or worker is cut in chunks, a tag each.
CHUNKS = 200
PUSHES, REPLIES, NOTICES = 31000, 31200, 31400
SNAPSHOTS, SNAPSHOTS_COUNT = 31500, 400  # shards to be evaluated, a tag a server
VERDICTS = 31950  # of server 0, where reads are consistent
ROUNDS, ROUNDS_COUNT = 31960, 2  # that a partial round begins; that a rank has come to it
ROWS = 32000  # of /steps, to rank 0
UPDATES = 32001  # of /updates, to rank 0
STATES, WORKERS_STATES = 32002, 32003  # of checkpoints; the second where a rank is a server as well
BACK = 2  # from the tag of a state that is handed in to that of the answer
