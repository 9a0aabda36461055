package launch

import (
	_ "embed" // the launchers
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The launchers that workers run around the program, given to Python with -c.
var (
	//go:embed torchrun.py
	torchrunPy string
	//go:embed xgboost.py
	xgboostPy string
	//go:embed horovod.py
	horovodPy string
)

func (g gang) plan() Process {
	switch g.Framework {
	case Torchrun, DeepSpeed, Accelerate:
		return g.torchrun()
	case TensorFlow:
		return g.tensorFlow()
	case Horovod:
		return g.horovod()
	case MPI:
		return g.mpi()
	case XGBoost:
		return g.xgboost()
	case LightGBM:
		return g.lightGBM()
	default:
		return g.plain()
	}
}

// plain runs the program itself. The variables are those of torch.distributed's
// env:// and of many others.
func (g gang) plain() Process {
	n, i := strconv.Itoa(len(g.roster)), strconv.Itoa(g.index)
	return Process{Argv: g.Command, Env: map[string]string{
		"RANK": i, "WORLD_SIZE": n, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": i, "GROUP_WORLD_SIZE": n,
		"MASTER_ADDR": g.first().host(), "MASTER_PORT": g.first().port(),
	}}
}

// torchrun runs torch.distributed.run on each worker, with ranks by index. It is
// static: who goes on without a worker, or with more, is a new attempt (ADR 16).
// Its flags have underscores, which releases before 2.0 know only. It runs the
// program as it is, not as a script, so that any command will do.
func (g gang) torchrun() Process {
	argv := []string{
		g.Python, "-u", "-c", torchrunPy, "--monitor_interval=0.1", "--nproc_per_node=" + strconv.Itoa(g.processes),
		"--nnodes=" + strconv.Itoa(len(g.roster)), "--node_rank=" + strconv.Itoa(g.index),
		"--master_addr=" + g.first().host(), "--master_port=" + g.first().port(), "--max_restarts=0", "--no_python",
	}
	if r, _, ok := g.Role(g.index); ok {
		argv = append(argv, "--role="+r.Name)
	}
	return Process{Argv: append(argv, g.Command...), Env: map[string]string{"FALAJ_GRACE": strconv.Itoa(g.Grace)}}
}

// tensorFlow has TF_CONFIG for MultiWorkerMirroredStrategy, whose chief is the
// first worker; with roles also for ParameterServerStrategy. Alone there is none:
// MirroredStrategy reads none, and the other is then the same.
func (g gang) tensorFlow() Process {
	p := g.plain()
	if len(g.roster) == 1 {
		return p
	}
	kind, index := "worker", g.index
	if r, i, ok := g.Role(g.index); ok {
		kind, index = r.Name, i
	}
	cluster := map[string][]string{}
	for i, peer := range g.roster {
		of := "worker"
		if r, _, ok := g.Role(i); ok {
			of = r.Name
		}
		if of != evaluator { // it looks on, and is in no cluster
			cluster[of] = append(cluster[of], peer.endpoint())
		}
	}
	type task struct {
		Type  string `json:"type"`
		Index int    `json:"index"`
	}
	config, err := json.Marshal(struct {
		Cluster map[string][]string `json:"cluster"`
		Task    task                `json:"task"`
		Layer   string              `json:"rpc_layer"`
	}{cluster, task{kind, index}, "grpc"})
	if err != nil {
		panic(err) // neither can fail
	}
	p.Env["TF_CONFIG"] = string(config)
	return p
}

// horovod runs the program's processes with what its Gloo controller reads. The
// rendezvous is a key-value store over HTTP, which the first worker serves: no
// worker needs ssh. Elastic horovod (a discovery script on one machine that
// starts the others) does not apply: a resize is a new attempt.
func (g gang) horovod() Process {
	size := len(g.roster) * g.processes
	env := map[string]string{
		"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_SIZE": strconv.Itoa(size),
		"HOROVOD_LOCAL_SIZE": strconv.Itoa(g.processes), "HOROVOD_CROSS_SIZE": strconv.Itoa(len(g.roster)),
		"HOROVOD_CROSS_RANK": strconv.Itoa(g.index), "HOROVOD_HOSTNAME": g.me().host(),
		"HOROVOD_GLOO_RENDEZVOUS_ADDR": g.first().host(), "HOROVOD_GLOO_RENDEZVOUS_PORT": g.first().port(),
		"FALAJ_GRACE": strconv.Itoa(g.Grace),
	}
	if iface := g.common()["GLOO_SOCKET_IFNAME"]; iface != "" {
		env["HOROVOD_GLOO_IFACE"] = iface
	}
	return Process{Argv: slices.Concat([]string{g.Python, "-u", "-c", horovodPy}, g.Command), Env: env}
}

// mpi runs mpirun, of Open MPI or MPICH, on the one worker. The variables let
// Open MPI run where there is no ssh and fewer cores than processes.
func (g gang) mpi() Process {
	return Process{
		Argv: slices.Concat([]string{"/usr/bin/env", "mpirun", "-np", strconv.Itoa(g.processes)}, g.Command),
		Env: map[string]string{
			"OMPI_MCA_plm": "isolated", "OMPI_MCA_rmaps_base_oversubscribe": "1",
			"PRTE_MCA_plm": "ssh", "PRTE_MCA_plm_ssh_agent": ":", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
			"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
			"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
		},
	}
}

// xgboost runs the program, and the tracker beside the first worker's. XGBoost 2.0
// reads DMLC_*; since 2.1 it reads no variables, and the program gives it what
// FALAJ_COLLECTIVE says. Ranks are by task, in the order of text. Workers try ten
// times to reach the tracker, for 90 s: it listens when the first one has loaded
// XGBoost.
func (g gang) xgboost() Process {
	p := g.plain()
	task := fmt.Sprintf("%04d", g.index)
	maps.Copy(p.Env, map[string]string{
		"DMLC_TRACKER_URI": g.first().host(), "DMLC_TRACKER_PORT": g.first().port(), "DMLC_NUM_WORKER": strconv.Itoa(len(g.roster)),
		"DMLC_TASK_ID": task, "DMLC_ROLE": "worker", "FALAJ_GRACE": strconv.Itoa(g.Grace),
		"FALAJ_COLLECTIVE": collective(map[string]any{
			"dmlc_tracker_uri": g.first().host(), "dmlc_tracker_port": json.Number(g.first().port()), "dmlc_task_id": task, "dmlc_retry": 10,
		}),
	})
	p.Argv = slices.Concat([]string{g.Python, "-u", "-c", xgboostPy}, g.Command)
	return p
}

// lightGBM has the machine list. LightGBM reads no variables: the program gives it
// the parameters of FALAJ_COLLECTIVE, or its command line has those of the other
// two. Without a tree_learner it would forget the other machines.
func (g gang) lightGBM() Process {
	p := g.plain()
	machines := make([]string, len(g.roster))
	for i, peer := range g.roster {
		machines[i] = peer.endpoint()
	}
	list := strings.Join(machines, ",")
	p.Env["FALAJ_MACHINES"] = list
	p.Env["FALAJ_MACHINE_PORT"] = g.me().port()
	p.Env["FALAJ_COLLECTIVE"] = collective(map[string]any{
		"machines": list, "local_listen_port": json.Number(g.me().port()), "num_machines": len(machines), "tree_learner": "data",
	})
	return p
}

// collective is what a program gives to its framework, as JSON.
func collective(arguments map[string]any) string {
	b, err := json.Marshal(arguments)
	if err != nil {
		panic(err) // texts and numbers cannot fail
	}
	return string(b)
}
