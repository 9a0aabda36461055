# torch.distributed.run, except that the program's exit code becomes ours and
# that it has the whole grace period after SIGTERM. torchrun itself ends with 1
# for each failure, so that 75 ("saved, run me again") would look like an error,
# and waits five minutes after one for the other workers to end by themselves.
import os
import sys

from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, WorkerState
from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

grace = int(os.environ.get("FALAJ_GRACE", "30"))
codes = []
close = api.SubprocessContext._close
barrier = SimpleElasticAgent._exit_barrier


def _close(self, death_sig, timeout=30):
    close(self, death_sig, max(timeout, grace))
    codes[:] = [h.proc.returncode for h in self.subprocess_handlers.values()]


def _exit_barrier(self):
    if self._worker_group.state == WorkerState.SUCCEEDED:
        barrier(self)


def leave(code):
    sys.stdout.flush()
    sys.exit(128 - code if code < 0 else code)


api.SubprocessContext._close = _close
SimpleElasticAgent._exit_barrier = _exit_barrier
if api.Std.from_str("0") is None:  # torch before 2.0 under Python 3.11, which does not list flags of value 0
    api.Std.from_str = classmethod(lambda _, value: api.Std(int(value)))
try:
    main(sys.argv[1:])
except ChildFailedError as e:
    leave(e.get_first_failure()[1].exitcode)
except api.SignalException as e:
    if codes and all(c in (0, 75) for c in codes):
        leave(max(codes))
    leave(next((c for c in codes if c not in (0, 75)), -int(e.sigval)))
