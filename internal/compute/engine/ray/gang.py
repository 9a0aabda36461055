"""Starts one falaj-worker agent in each bundle of a placement group.

Runs as the entrypoint of a Ray job, with the cluster's own Python; launch.json
beside it says what to start. Its last line on standard output is its verdict,
which Ray gives back in the job's message. Standard library and ray only.
"""

import ctypes
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import traceback

PDEATHSIG = 1
VERDICT = "falaj-verdict "
# What Ray says to a task about its accelerators, and where programs are.
KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "TZ", "LD_LIBRARY_PATH")
KEPT_PREFIXES = ("CUDA_VISIBLE", "NVIDIA_", "ROCR_", "HIP_", "TPU_", "NEURON_", "ONEAPI_", "ASCEND_")

# Ray kills the children of a task's process with SIGKILL when that goes. The
# keeper is that child: the agent, one further down, gets SIGTERM then, and has
# its grace to save and report.
KEEPER = """
import ctypes, os, signal, subprocess, sys
def bound():
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
bound()
if os.getppid() != int(sys.argv[1]):
    sys.exit(143)
agent = subprocess.Popen(sys.argv[2:], preexec_fn=bound, start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: agent.send_signal(signal.SIGTERM))
code = agent.wait()
sys.exit(code if code >= 0 else 128 - code)
"""


def verdict(reason, message):
    """Ends the driver. Ray repeats its last ten lines: what it says itself of a node
    that died is more, and comes before the last when it is shut down."""
    line = VERDICT + json.dumps({"reason": reason, "message": message[:2000]})
    print(line, flush=True)
    if "ray" in sys.modules:
        signal.alarm(10)  # which ends us where what it says goodbye to is gone
        sys.modules["ray"].shutdown()
        print(line, flush=True)
    os._exit(0 if reason == "exited" else 1)


def worker_path(launch):
    """The agent's program: on the node, or beside us with its mode restored; None
    when Ray has removed it, as it does on a node that goes."""
    if launch["worker"]:
        return launch["worker"]
    shipped = os.path.abspath("falaj-worker")
    try:
        os.chmod(shipped, os.stat(shipped).st_mode | stat.S_IXUSR)
    except FileNotFoundError:
        return None
    return shipped


def run_agent(launch, index):
    """Runs in a task: one agent, to its end. The code is None when Ray took the
    agent's program away before that."""
    import ray

    context = ray.get_runtime_context()
    node = context.get_node_id()
    names = launch["names"]
    env = {k: v for k, v in os.environ.items() if k in KEPT or k.startswith(KEPT_PREFIXES)}
    if not any(set(b) - {"CPU", "memory"} for b in launch["bundles"]):
        env.pop("CUDA_VISIBLE_DEVICES", None)  # Ray empties it, which is no news where nobody has any
    env.update(launch["agent"])
    env["FALAJ_WORKER_INDEX"] = str(index)
    env["FALAJ_WORKER_NODE"] = names.get(node, node)
    env["FALAJ_WORKER_ADDR"] = ray.util.get_node_ip_address()
    program = worker_path(launch)
    if program is None:
        return node, None, ""
    # Not in the directory of the package: it goes when the job goes.
    command = [sys.executable, "-S", "-E", "-c", KEEPER, str(os.getpid()), program, "agent"]
    done = subprocess.Popen(
        command, env=env, cwd="/", stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGTERM),
    )
    last = b""

    def listen():  # passes on to Ray's own log of the task what it says
        nonlocal last
        while piece := os.read(done.stderr.fileno(), 4096):
            os.write(2, piece)
            last = (last + piece)[-1000:]

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    code = done.wait()
    listener.join(2)  # another process may hold the pipe
    if code and worker_path(launch) is None:
        code = None
    return node, code, "".join(c if c.isprintable() else " " for c in last.decode(errors="replace")).strip()


def main():
    with open("launch.json", encoding="utf-8") as f:
        launch = json.load(f)
    import ray
    from ray import exceptions
    from ray.util import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    ray.init(logging_level="ERROR", log_to_driver=True)
    launch["names"] = {n["NodeID"]: n.get("NodeName") or n["NodeID"] for n in ray.nodes() if n["Alive"]}
    doubled = [n for n in launch["names"].values() if list(launch["names"].values()).count(n) > 1]
    launch["names"] = {i: i if n in doubled else n for i, n in launch["names"].items()}

    options = {"name": launch["id"], "strategy": launch["strategy"]}
    selectors = launch["selectors"]
    if launch["nodes"]:
        ids = {n: i for i, n in launch["names"].items()}
        absent = [n for n in launch["nodes"] if n not in ids]
        if absent:
            verdict("node_failed", "Ray has no node " + ", ".join(sorted(set(absent))))
        selectors = [dict(s, **{"ray.io/node-id": ids[n]}) for s, n in zip(selectors, launch["nodes"])]
    elif launch["exclude"]:
        away = [i for i, n in launch["names"].items() if n in launch["exclude"]]
        if away:
            selectors = [dict(s, **{"ray.io/node-id": f"!in({','.join(away)})"}) for s in selectors]
    if any(selectors):
        options["bundle_label_selector"] = selectors
    group = placement_group(launch["bundles"], **options)

    task = ray.remote(max_retries=0, max_calls=1)(run_agent)
    ray.get(group.ready())
    running = {}
    for index, bundle in enumerate(launch["bundles"]):
        bundle = dict(bundle)
        wanted = {"num_cpus": bundle.pop("CPU", 0), "num_gpus": bundle.pop("GPU", 0), "resources": bundle}
        if "memory" in bundle:
            wanted["memory"] = bundle.pop("memory")
        strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)
        running[task.options(scheduling_strategy=strategy, name=f"{launch['id']}[{index}]", **wanted).remote(launch, index)] = index

    reason, message = "exited", ""
    while running:
        done, _ = ray.wait(list(running), num_returns=1)
        index = running.pop(done[0])
        try:
            node, code, said = ray.get(done[0])
            name = launch["names"].get(node, node)
            if code is None:
                reason, message = "node_failed", f"worker {index}: Ray removed the agent from {name}, whose raylet was restarted or is going: {said[-500:]}"
            elif code:
                reason, message = "killed" if code > 128 else "agent_failed", f"the agent of worker {index} on {name} ended with {code}: {said[-500:]}"
        except exceptions.OutOfMemoryError as e:
            reason, message = "out_of_memory", f"worker {index}: Ray's memory monitor ended it, because its node had no memory left: {first(e)}"
        except exceptions.RuntimeEnvSetupError as e:
            reason, message = "not_started", f"worker {index}: Ray could not unpack the agent on the node: {first(e)}"
        except exceptions.NodeDiedError as e:
            reason, message = "node_failed", f"worker {index}: Ray lost {lost(launch, e)}"
        except exceptions.WorkerCrashedError as e:
            reason, message = crashed(launch, index, e)
        except exceptions.RayError as e:
            reason, message = "node_failed", f"worker {index}: {first(e)}"
        except OSError as e:  # from the task itself
            reason, message = "not_started", f"worker {index}: {first(e)}"
        if reason != "exited":
            break  # the others go with this job
    remove_placement_group(group)
    verdict(reason, message)


def lost(launch, error):
    """The nodes that an error names, else those that Ray has no more."""
    import ray

    names = launch["names"]
    gone = [name for node, name in names.items() if node in str(error)]
    if not gone:
        alive = {n["NodeID"] for n in ray.nodes() if n["Alive"]}
        gone = [name for node, name in names.items() if node not in alive]
    return ", ".join(sorted(gone))


def crashed(launch, index, error):
    """A task's process that died: with its node, or alone."""
    gone = lost(launch, error)
    if gone:
        return "node_failed", f"worker {index}: Ray lost {gone}"
    return "killed", f"worker {index}: the process that Ray ran it in was killed: {first(error)}"


def first(error):
    """The first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


if __name__ == "__main__":
    try:
        main()
    except ImportError:  # there is no ray, which is known by these words
        raise
    except Exception as e:
        traceback.print_exc()
        verdict("node_failed", f"the job's driver on Ray failed: {type(e).__name__}: {first(e)}")
