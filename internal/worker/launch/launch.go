// Package launch says what each worker of a gang runs: how frameworks learn who
// else is there. It is pure and standard library only, since the agent on a node
// and the supervisor inside a local sandbox use it alike.
package launch

// Framework says how processes of a job find each other.
type Framework string

// The frameworks.
const (
	Plain      Framework = "plain"      // FALAJ_WORKER_*, and MASTER_ADDR and friends, for whoever reads them
	Torchrun   Framework = "torchrun"   // torch.distributed.run on each worker
	TensorFlow Framework = "tensorflow" // TF_CONFIG
	Horovod    Framework = "horovod"    // horovodrun on the first worker's address list
	MPI        Framework = "mpi"        // mpirun, or the engine's own launcher
	XGBoost    Framework = "xgboost"    // a tracker on the first worker
	LightGBM   Framework = "lightgbm"   // machine list
	DeepSpeed  Framework = "deepspeed"
	Accelerate Framework = "accelerate"
)

// Spec is what a gang runs.
type Spec struct {
	Framework Framework `json:"framework,omitempty"` // empty is plain
	// Processes on each worker; 0 is one.
	Processes int `json:"processes,omitempty"`
	// Elastic lets torchrun and horovod go on with fewer workers: the least.
	Elastic int `json:"elastic,omitempty"`
	// Command is the user's program and arguments, with an absolute program.
	Command []string `json:"command,omitempty"`
	// Python is the interpreter of the environment, for launchers that are
	// modules; empty when there is none.
	Python string `json:"python,omitempty"`
	// Run names the attempt: one rendezvous each.
	Run string `json:"run,omitempty"`
}

// Peer is one worker as the others see it.
type Peer struct {
	Index   int    `json:"index"`
	Node    string `json:"node"`
	Address string `json:"address"` // that the others can reach
	Port    int    `json:"port"`    // free there when it was asked
	Slots   int    `json:"slots,omitempty"`
}

// Process is what one worker runs.
type Process struct {
	Argv []string          `json:"argv"`
	Env  map[string]string `json:"env"` // added to the worker's own
}
