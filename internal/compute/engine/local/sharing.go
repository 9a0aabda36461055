package local

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/machine"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/sandbox"
)

// Shares of a GPU, by NVIDIA's Multi-Process Service (docs/adr/0019). A pool says
// into how many parts each of its GPUs is cut; the operator runs the control
// daemon with limits for every client, and puts the GPUs into the compute mode in
// which it cannot be bypassed. Where it does not answer, or its part of the threads
// is too large, no share is given; its limit of memory is not asked for.
//
// Shares are advisory among users who trust each other: jobs run as the daemon's
// user, reach its pipe, and can tell it another limit, or to quit. They keep
// programs from being in each other's way by accident, not on purpose.

// Options of a pool with shared GPUs.
const (
	optionSharing = "sharing"      // mps
	optionShares  = "shares"       // into how many parts each GPU is cut: 2 to 48
	optionPipe    = "mps_pipe"     // the daemon's CUDA_MPS_PIPE_DIRECTORY
	optionAcross  = "share_across" // projects: one GPU may serve several at a time
)

// maxShares is how many clients an MPS server takes (of Volta and later, in
// NVIDIA's Multi-Process Service guide).
const maxShares = 48

// sharing is what a pool's options say; the zero value shares nothing.
type sharing struct {
	shares int
	pipe   string
	across bool
}

func sharingOf(options map[string]string) (s sharing, err error) {
	if options[optionSharing] == "" {
		for _, name := range []string{optionShares, optionPipe, optionAcross} {
			if options[name] != "" {
				return s, fault.New(fault.Invalid, "option %s needs sharing: mps", name)
			}
		}
		return s, nil
	}
	s.shares, err = strconv.Atoi(options[optionShares])
	if err != nil || s.shares < 2 || s.shares > maxShares {
		return s, fault.New(fault.Invalid, "option shares is %.20q", options[optionShares]).
			WithHint("Set the number of equal parts of each GPU: 2 to %d.", maxShares)
	}
	s.pipe = options[optionPipe]
	if s.pipe == "" {
		s.pipe = "/tmp/nvidia-mps" // NVIDIA's default
	}
	if filepath.Clean(s.pipe) != s.pipe || !filepath.IsAbs(s.pipe) {
		return s, fault.New(fault.Invalid, "option mps_pipe is %.80q, which is not a clean absolute path", s.pipe)
	}
	s.across = options[optionAcross] == "projects"
	return s, nil
}

// checkSharing refuses a pool with shares that this machine cannot enforce.
func (d *Driver) checkSharing(options map[string]string) error {
	s, err := sharingOf(options)
	if err != nil || s.shares == 0 {
		return err
	}
	return d.enforced(s, d.c.Level)
}

// pipes is the daemon's directory for a workload that has a share: clients make
// their own files there.
func pipes(spec engine.Spec) []sandbox.Mount {
	s, err := sharingOf(spec.Options)
	if err != nil || s.shares == 0 || spec.Total().Accelerators[machine.ResourceShared] == 0 {
		return nil
	}
	return []sandbox.Mount{{Path: s.pipe, Writable: true}}
}

// enforced says what is missing for shares to be kept.
func (d *Driver) enforced(s sharing, level sandbox.Level) error {
	if level >= sandbox.Sandbox {
		// Its clients need the daemon's /dev/shm and IPC, and one user for all.
		return fault.New(fault.Unsupported, "isolation %s does not allow shares of a GPU: MPS clients share memory", level).
			WithHint("Partition the GPU with MIG, which the hardware isolates, or set isolation: process in the configuration of a server whose users trust each other.")
	}
	all, err := d.c.Accelerators.List()
	if err != nil {
		return fault.Wrap(err, "detecting accelerators")
	}
	if !slices.ContainsFunc(all, func(a machine.Accelerator) bool { return a.Resource == machine.ResourceGPU && a.Exclusive }) {
		return fault.New(fault.Unsupported, "this machine has no NVIDIA GPU in compute mode exclusive process, in which no program can bypass MPS").
			WithHint("Set it with nvidia-smi -i N -c EXCLUSIVE_PROCESS.")
	}
	ask := d.askMPS
	if ask == nil {
		ask = askMPS
	}
	answer, err := ask(s.pipe, "get_default_active_thread_percentage")
	if err != nil {
		return fault.New(fault.Unsupported, "no MPS control daemon responds at %s: %w", s.pipe, err).
			WithHint("Start it with CUDA_MPS_PIPE_DIRECTORY=%s nvidia-cuda-mps-control -d, as the server's user.", s.pipe)
	}
	percent, err := strconv.ParseFloat(answer, 64)
	if err != nil || percent > s.percent()+1 {
		return fault.New(fault.Unsupported, "the MPS daemon at %s gives each client %.20s %% of a GPU's threads, and a share is %.0f %%: a limit that a client sets for itself is not enforced", s.pipe, answer, s.percent()).
			WithHint("Send it set_default_active_thread_percentage %.0f and set_default_device_pinned_mem_limit, before its first client.", s.percent())
	}
	return nil
}

// percent is a share of a GPU's threads.
func (s sharing) percent() float64 { return float64(100 / s.shares) }

// askMPS asks the control daemon. A directory with sockets in it proves nothing:
// they stay when it has died.
func askMPS(pipe, command string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nvidia-cuda-mps-control")
	cmd.Env, cmd.Stdin, cmd.WaitDelay = []string{"CUDA_MPS_PIPE_DIRECTORY=" + pipe}, strings.NewReader(command+"\n"), time.Second
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// share picks a GPU for each worker that asks for a share of one; none is not
// known when no worker does.
func (d *Driver) share(spec engine.Spec, level sandbox.Level) (each [][]machine.Accelerator, s sharing, err error) {
	if spec.Total().Accelerators[machine.ResourceShared] == 0 {
		return nil, s, nil
	}
	if s, err = sharingOf(spec.Options); err != nil {
		return nil, s, err
	}
	if s.shares == 0 {
		return nil, s, fault.New(fault.Unsupported, "nothing enforces a share of a GPU here: the pool has no option sharing").
			WithHint("Set its options sharing: mps and shares, or ask for a whole GPU or a MIG slice.")
	}
	if slices.ContainsFunc(spec.Parts(), func(r engine.Role) bool {
		n := r.Resources.Accelerators[machine.ResourceShared]
		return n > 1 || n < int64(len(r.Resources.Accelerators))
	}) {
		return nil, s, fault.New(fault.Invalid, "a worker has one share of a GPU, and no other accelerator with it").
			WithHint("Shares are equal; for a larger part ask for a MIG slice or a whole GPU.")
	}
	if err := d.enforced(s, level); err != nil {
		return nil, s, err
	}
	all, err := d.c.Accelerators.List()
	if err != nil {
		return nil, s, fault.Wrap(err, "detecting accelerators")
	}
	used, foreign := map[string]int{}, map[string]bool{}
	for _, w := range d.live() {
		for _, uuids := range w.extras.Devices {
			for _, uuid := range uuids {
				used[uuid]++
				foreign[uuid] = foreign[uuid] || !w.extras.Shared || w.extras.Project != spec.Project && !s.across
			}
		}
	}
	for worker := range spec.Size() {
		if len(spec.Of(worker).Accelerators) == 0 {
			each = append(each, nil)
			continue
		}
		i := slices.IndexFunc(all, func(a machine.Accelerator) bool {
			return a.Resource == machine.ResourceGPU && a.Exclusive && used[a.UUID] < s.shares && !foreign[a.UUID]
		})
		if i < 0 {
			return nil, s, fault.New(fault.Unavailable, "no share of a GPU is free for project %s: GPUs with free shares serve another project, and a fault of one client ends all clients of a GPU", spec.Project).
				WithHint("Wait, or set the pool's option share_across: projects.")
		}
		used[all[i].UUID]++
		each = append(each, all[i:i+1])
	}
	return each, s, nil
}

// limits are the variables that make a worker a client with one share. The daemon enforces its
// own configured limits; the variables tell libraries the same values.
func (s sharing) limits(a machine.Accelerator) map[string]string {
	return map[string]string{
		"CUDA_MPS_PIPE_DIRECTORY":           s.pipe,
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": strconv.FormatFloat(s.percent(), 'f', -1, 64),
		"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT":  "0=" + strconv.FormatInt(int64(a.Memory/resource.MiB)/int64(s.shares), 10) + "M",
	}
}
