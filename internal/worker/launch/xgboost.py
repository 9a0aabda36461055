# Runs the program, and on the first worker the tracker beside it, which ends with
# the program. Signals go to the program; its exit code becomes ours.
import inspect
import os
import signal
import subprocess
import sys

tracker = None
if os.environ["FALAJ_WORKER_INDEX"] == "0":
    from xgboost.tracker import RabitTracker

    workers = int(os.environ["DMLC_NUM_WORKER"])
    tracker = RabitTracker(
        host_ip=os.environ["DMLC_TRACKER_URI"], n_workers=workers, port=int(os.environ["DMLC_TRACKER_PORT"])
    )
    if "n_workers" in inspect.signature(tracker.start).parameters:  # before 2.1
        tracker.start(workers)
    else:
        tracker.start()

child = subprocess.Popen(sys.argv[1:])
for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(s, lambda number, _: child.send_signal(number))
code = child.wait()
os._exit(128 - code if code < 0 else code)
