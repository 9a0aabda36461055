# Runs the program with XGBoost's tracker beside it on the first worker: signals go
# to the program, and its exit code becomes ours. The others load XGBoost too, so
# that the tracker is there when their program asks for it, and become the program.
import inspect
import os
import signal
import subprocess
import sys
import threading

from xgboost.tracker import RabitTracker

if os.environ["FALAJ_WORKER_INDEX"] != "0":
    for s in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(s, signal.SIG_DFL)
    os.execvp(sys.argv[1], sys.argv[1:])

workers = int(os.environ["DMLC_NUM_WORKER"])
tracker = RabitTracker(
    host_ip=os.environ["DMLC_TRACKER_URI"], n_workers=workers, port=int(os.environ["DMLC_TRACKER_PORT"]), sortby="task"
)
if "n_workers" in inspect.signature(tracker.start).parameters:  # before 2.1
    tracker.start(workers)
else:
    tracker.start()

child = subprocess.Popen(sys.argv[1:])
for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(s, lambda number, _: child.send_signal(number))
code = child.wait()

# The others leave at the same time as the first, and the tracker ends with the
# last: it must not go before. When it stays, not all of them came.
if code == 0 and workers > 1:
    for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(s, lambda *_: os._exit(0))
    served = getattr(tracker, "thread", None)  # before 2.1
    if served is None:
        served = threading.Thread(target=tracker.wait_for, daemon=True)
        served.start()
    served.join(10)
    if served.is_alive():
        print(
            f"falaj: the program ended, but not all of {workers} workers joined xgboost's tracker and left it again. Who"
            " does not join trains alone, on its own rows: train in `with falaj.collective():`, or in"
            " `with xgboost.collective.CommunicatorContext(**json.loads(os.environ['FALAJ_COLLECTIVE'])):`.",
            file=sys.stderr, flush=True,
        )
os._exit(128 - code if code < 0 else code)
