package console

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/falaj-ml/falaj/internal/training"
	"github.com/falaj-ml/falaj/internal/training/profile"
	"github.com/falaj-ml/falaj/internal/worker/profiler"
	"github.com/falaj-ml/falaj/test/live"
)

// looks are the made-up profiles of every job.
type looks struct {
	mu  sync.Mutex
	all []training.Profile // oldest first
}

func (l *looks) list() []training.Profile {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

// look is what is seen when somebody asks: worker 3 has no torch.
func (l *looks) look(w http.ResponseWriter, r *http.Request) {
	var ask profile.Look
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if ask.Tool == profiler.Torch {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotImplemented)
		_, _ = w.Write([]byte(`{"status":501,"kind":"unsupported","detail":"the program does not poll for profiles","hint":"Call falaj.step() after each training step; or use the tool py-spy."}`))
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := profiles()[0]
	p.ID, p.At, p.Worker, p.Seconds, p.Tool = training.ProfileID("prf_new"+strconv.Itoa(len(l.all))), ago(0, 0), ask.Worker, ask.Seconds, ask.Tool
	l.all = append(l.all, p)
	_ = json.NewEncoder(w).Encode(p)
}

func profiles() []training.Profile {
	spy := func(i, worker int, s profile.Summary) training.Profile {
		id := "prf_" + strconv.Itoa(i)
		return training.Profile{
			ID: training.ProfileID(id), Job: "job_4", Project: "nyc", Attempt: "att_1", Number: 1, Pool: "gpu-dubai",
			Seen: profile.Seen{Worker: worker, Tool: profiler.PySpy, Version: "py-spy 0.4.1", Seconds: 10, Summary: s}, Run: "run_4", Artifacts: []string{"profiles/" + id + "/all.folded", "profiles/" + id + "/running.folded"}, By: training.Actor{ID: "usr_1", Name: "layla"}, At: ago(0, i-9),
		}
	}
	trains := profile.Summary{
		Compute: 0.61, Memory: 0.09, Communication: 0.24, Idle: 0.06, Basis: 498, Processes: 1,
		Top: []profile.Function{
			{Name: "conv2d", Where: "torch/nn/modules/conv.py:459", Kind: profile.Compute, Share: 0.31},
			{Name: "all_reduce", Where: "torch/distributed/distributed_c10d.py:1534", Kind: profile.Communication, Share: 0.24, Waiting: 0.21},
			{Name: "linear", Where: "torch/nn/modules/linear.py:114", Kind: profile.Compute, Share: 0.16},
			{Name: "_single_tensor_adamw", Where: "torch/optim/adamw.py:379", Kind: profile.Compute, Share: 0.09},
			{Name: "_try_get_data", Where: "torch/utils/data/dataloader.py:990", Kind: profile.Memory, Share: 0.08, Waiting: 0.07},
			{Name: "wait", Where: "threading.py:320", Kind: profile.Idle, Share: 0.06, Waiting: 0.06},
			{Name: "layer_norm_of_a_function_whose_name_is_longer_than_there_is_room_for_in_a_table", Where: "torch/nn/functional.py:2486", Kind: profile.Compute, Share: 0.05},
			{Name: "decode", Where: "PIL/JpegImagePlugin.py:401", Kind: profile.Memory, Share: 0.01},
		},
	}
	loads := trains
	loads.Compute, loads.Memory, loads.Communication, loads.Idle = 0.22, 0.64, 0.05, 0.09
	traced := spy(3, 0, profile.Summary{
		Compute: 0.78, Memory: 0.05, Communication: 0.11, Idle: 0.06, Basis: 2_000_000, Processes: 1,
		Top: []profile.Function{{Name: "sm90_xmma_gemm_bf16bf16", Kind: profile.Compute, Share: 0.49}, {Name: "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", Kind: profile.Communication, Share: 0.11, Waiting: 0.11}, {Name: "Memcpy HtoD (Pinned -> Device)", Kind: profile.Memory, Share: 0.05}},
	})
	traced.Tool, traced.Version, traced.Seconds, traced.Artifacts = profiler.Torch, "2.8.0", 2, []string{"profiles/prf_3/trace-0.json.gz"}
	return []training.Profile{spy(1, 0, loads), spy(2, 1, trains), traced}
}

// stacks are what py-spy wrote of each.
const stacks = `process 7:"python train.py";thread (7): MainThread;<module> (train.py:80);main (train.py:71);step (train.py:42);forward (model.py:18);conv2d (torch/nn/modules/conv.py:459) 155
process 7:"python train.py";thread (7): MainThread;<module> (train.py:80);main (train.py:71);step (train.py:42);forward (model.py:21);linear (torch/nn/modules/linear.py:114) 80
process 7:"python train.py";thread (7): MainThread;<module> (train.py:80);main (train.py:71);step (train.py:44);backward (torch/_tensor.py:525);all_reduce (torch/distributed/distributed_c10d.py:1534) 120
process 7:"python train.py";thread (7): MainThread;<module> (train.py:80);main (train.py:72);step (train.py:45);adamw (torch/optim/adamw.py:379) 45
process 7:"python train.py";thread (7): MainThread;<module> (train.py:80);main (train.py:68);__next__ (torch/utils/data/dataloader.py:631);_try_get_data (torch/utils/data/dataloader.py:990) 40
process 7:"python train.py";thread (7): MainThread;<module> (train.py:80);log (train.py:12);wait (threading.py:320) 30
process 7:"python train.py";thread (9): pin_memory;run (threading.py:975);loop (torch/utils/data/_utils/pin_memory.py:50) 500
`

// TestProfiles: what was seen of a job's workers is there to be looked at, and a
// button looks again.
func TestProfiles(t *testing.T) {
	b := open(t, pretend(t).URL)
	b.login(token)
	b.see("Needs attention")
	b.do(chromedp.Navigate(b.base + "/console/p/nyc/jobs/job_4"))
	b.see("Profiles", "78 %", "ncclDevKernel_AllReduce", "Operation")
	b.do(chromedp.ScrollIntoView(`.profiles`))
	b.accessible("a trace")
	b.picture("profile-torch")
	b.do(chromedp.Click(`.profiles tbody tr:nth-child(2) button`))
	b.see("Where worker 1 spent its time", "all_reduce", "one process, by layla", "Call stacks")
	b.until(`document.querySelectorAll('.flame button').length === 14`) // not of the thread that pins memory
	b.accessible("profiles")
	b.picture("profile")
	b.do(chromedp.ScrollIntoView(`.flame`))
	b.picture("profile-calls")

	// The arrow keys go through the calls; one that is clicked is as wide as it gets.
	at := func(words string) {
		t.Helper()
		b.until(`document.activeElement.ariaLabel === ` + strconv.Quote(words))
	}
	b.do(chromedp.Focus(`.flame button`))
	at("all, 100.0 %")
	b.press(kb.ArrowDown, kb.ArrowDown, kb.ArrowDown)
	at("step (train.py), 85.1 %")
	b.press(kb.ArrowRight)
	at("__next__ (torch/utils/data/dataloader.py), 8.5 %")
	b.press(kb.Enter)
	b.until(`document.querySelectorAll('.flame button').length === 5`)
	b.picture("profile-closer")
	b.do(chromedp.Click(`.flame button`))
	b.until(`document.querySelectorAll('.flame button').length === 14`)

	b.do(chromedp.SetValue(`select[aria-label=Worker]`, "3"), chromedp.Click(`form button[type=submit]`))
	b.see("Where worker 3 spent its time")
	b.do(chromedp.SetValue(`select[aria-label=Tool]`, "torch"), chromedp.Click(`form button[type=submit]`))
	b.see("the program does not poll for profiles", "Call falaj.step()")
	b.accessible("a profile that was refused")
	b.picture("profile-refused")

	b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}))
	b.until(`document.documentElement.dataset.mantineColorScheme === 'dark'`)
	b.accessible("profiles, dark")
	b.picture("profile-dark")
	b.do(emulation.SetDeviceMetricsOverride(390, 844, 2, true))
	if wide := b.text(`document.documentElement.scrollWidth > innerWidth`); wide != "false" {
		t.Error("it is wider than a telephone")
	}
	b.until(`document.querySelector('.profiles').offsetWidth < 390`)
	b.do(chromedp.ScrollIntoView(`.profiles`))
	b.picture("profile-narrow")
}

// TestProfileNow: the button has the real py-spy look into a job that runs.
func TestProfileNow(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "spied")
	p.Apply(live.Spied)
	var job struct{ ID string }
	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": "turns", "spec": map[string]any{
		"environment": "spied", "script": live.Turning, "resources": map[string]any{"cpu": "500m", "memory": "256MiB"},
	}}, &job))
	b := open(t, s.URL)
	b.login(s.Token)
	b.see("spied")
	b.do(chromedp.Navigate(b.base + "/console/p/spied/jobs/" + job.ID))
	b.see("running", "No profiles", "turns\n")
	b.do(chromedp.SetValue(`select[aria-label="For how long"]`, "2"), chromedp.Click(`form button[type=submit]`))
	b.see("Where worker 0 spent its time", "turn_0")
	b.until(`[...document.querySelectorAll('.flame button')].some((f) => f.ariaLabel.startsWith('turn_0 ('))`)
	b.picture("real-profile")
	p.Run(0, "job", "cancel", job.ID)
	b.see("cancelled")
	b.until(`document.querySelector('select[aria-label="For how long"]') === null`)
}
