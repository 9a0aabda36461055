"""A parameter server: it keeps every n-th weight, and adds what trainers push."""

import json
import os
import socketserver
import threading

peers = os.environ["FALAJ_PEERS_PS"].split(",")
index = int(os.environ["FALAJ_ROLE_INDEX"])
weights = [0.0] * len(range(index, 9, len(peers)))
lock = threading.Lock()


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            with lock:
                for i, change in enumerate(json.loads(line)):
                    weights[i] += change
                answer = json.dumps(weights)
            self.wfile.write(answer.encode() + b"\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


host, port = peers[index].rsplit(":", 1)
print(f"server {index} of {len(peers)} keeps {len(weights)} weights", flush=True)
with Server((host, int(port)), Handler) as server:
    server.serve_forever()  # until it is stopped
