# Runs the worker's processes with their Horovod ranks, and on the first worker
# the store in which Gloo's processes find each other: values by path, waited for
# by asking again (404). One process failing ends the others; signals go to all;
# the first failure's exit code becomes ours.
import http.server
import os
import signal
import subprocess
import sys
import threading
import time

env = os.environ
local, node = int(env["HOROVOD_LOCAL_SIZE"]), int(env["HOROVOD_CROSS_RANK"])

if node == 0:
    values, lock = {}, threading.Lock()

    class Store(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status, body=b""):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            with lock:
                value = values.get(self.path)
            self.answer(404 if value is None else 200, value or b"")

        def do_PUT(self):
            value = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 1 << 20))
            with lock:
                values[self.path] = value
            self.answer(200)

        def do_DELETE(self):
            self.answer(200)

        def log_message(self, *_):
            pass

    address = (env["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(env["HOROVOD_GLOO_RENDEZVOUS_PORT"]))
    server = http.server.ThreadingHTTPServer(address, Store)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()

children = []
for i in range(local):
    rank = str(node * local + i)
    children.append(
        subprocess.Popen(sys.argv[1:], env={**env, "HOROVOD_RANK": rank, "HOROVOD_LOCAL_RANK": str(i), "RANK": rank, "LOCAL_RANK": str(i)})
    )


def tell(number):
    for c in children:
        if c.poll() is None:
            c.send_signal(number)


stop = threading.Event()
for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(s, lambda number, _: (tell(number), stop.set()))

first, deadline = 0, None
while any([c.poll() is None for c in children]):  # a list, so that each is asked
    failed = [c.returncode for c in children if c.returncode]
    if failed and not first:
        first = failed[0]
        tell(signal.SIGTERM)
    if (first or stop.is_set()) and deadline is None:
        deadline = time.monotonic() + int(env["FALAJ_GRACE"])
    if deadline is not None and time.monotonic() > deadline:
        tell(signal.SIGKILL)
    time.sleep(0.05)
first = first or next((c.returncode for c in children if c.returncode), 0)
sys.stdout.flush()
os._exit(128 - first if first < 0 else first)
