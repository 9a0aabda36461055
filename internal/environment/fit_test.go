package environment

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/compute"
	"github.com/falaj-ml/falaj/internal/machine"
)

func nodeOf(name string, gpus int64, labels ...string) compute.PoolNode {
	n := compute.Node{Name: name, Labels: map[string]string{}}
	if gpus > 0 {
		n.Accelerators = map[string]int64{"nvidia.com/gpu": gpus}
	}
	for i := 0; i < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	return compute.PoolNode{Node: n}
}

func pool(nodes ...compute.PoolNode) compute.Pool {
	return compute.Pool{Name: "p", Engine: "slurm", Remote: true, Nodes: nodes}
}

func environmentOf(packages ...string) Environment {
	e := Environment{Python: "3.11.7", Platform: "cpython-linux-x86_64", Interpreter: Interpreter{Prefix: "/opt/python"}}
	for _, p := range packages {
		name, version, _ := strings.Cut(p, "==")
		e.SBOM = append(e.SBOM, Package{Name: name, Version: version})
	}
	return e
}

// TestFit has each rule refuse, pass, and say that it does not know.
func TestFit(t *testing.T) {
	t.Parallel()
	gpu := func(driver, compute string) compute.PoolNode {
		return nodeOf("g1", 8, "arch", "x86_64", "glibc", "2.36", machine.LabelDriver, driver, machine.LabelCompute, compute)
	}
	cu12 := environmentOf("torch==2.5.1", "nvidia-cuda-runtime-cu12==12.4.127", "nvidia-cudnn-cu12==9.1.0.70")
	old := environmentOf("six==1.0")
	old.Glibc = "2.34"
	system := environmentOf()
	system.Interpreter.Prefix = "/usr"
	site := system
	site.Interpreter.Site = map[string]string{"torch": "1.13"}
	for name, tt := range map[string]struct {
		env  Environment
		pool compute.Pool
		kind string
		want Fit
	}{
		"nothing asked": {environmentOf("six==1.0"), pool(nodeOf("n1", 0, "arch", "x86_64")), "slurm", Fit{Fits: true}},
		"another architecture": {environmentOf(), pool(nodeOf("n1", 0, "arch", "aarch64")), "slurm", Fit{
			Reasons: []string{"its processors are aarch64, the environment is for x86_64"},
		}},
		"Kubernetes' own labels": {environmentOf(), pool(nodeOf("n1", 0, "kubernetes.io/arch", "arm64")), "kube", Fit{
			Reasons: []string{"its processors are aarch64, the environment is for x86_64"},
		}},
		"nothing known": {old, pool(nodeOf("n1", 0)), "slurm", Fit{Fits: true, Unknown: []string{
			"its C library; the environment's wheels need glibc 2.34", "its architecture; the environment is for x86_64",
		}}},
		"no node known": {environmentOf(), pool(), "slurm", Fit{Fits: true, Unknown: []string{"no node of it is known yet"}}},
		"glibc": {old, pool(nodeOf("n1", 0, "arch", "x86_64", "glibc", "2.28")), "slurm", Fit{
			Reasons: []string{"it has glibc 2.28, the environment's wheels need 2.34 (their manylinux tags say so)"},
		}},
		"glibc by number": {old, pool(nodeOf("n1", 0, "arch", "x86_64", "glibc", "2.100")), "slurm", Fit{Fits: true}},
		"python": {system, pool(nodeOf("n1", 0, "arch", "x86_64", "python", "3.9.1,3.12.1")), "slurm", Fit{
			Reasons: []string{"its Pythons are 3.9.1, 3.12.1, the environment needs 3.11"},
		}},
		"python that travels": {environmentOf(), pool(nodeOf("n1", 0, "arch", "x86_64", "python", "3.9.1")), "slurm", Fit{Fits: true}},
		"python there":        {system, pool(nodeOf("n1", 0, "arch", "x86_64", "python", "3.11.2")), "slurm", Fit{Fits: true}},
		"python unknown": {system, pool(nodeOf("n1", 0, "arch", "x86_64")), "slurm", Fit{
			Fits: true, Unknown: []string{"whether it has Python 3.11"},
		}},
		"site packages": {site, pool(nodeOf("n1", 0, "arch", "x86_64", "python", "3.11.4")), "slurm", Fit{
			Fits: true, Unknown: []string{"whether its Python 3.11 brings the same 1 packages; its agent compares them before a job starts"},
		}},
		"site packages of another Python": {site, pool(nodeOf("n1", 0, "arch", "x86_64", "python", "3.12.4")), "slurm", Fit{
			Reasons: []string{"its Pythons are 3.12.4; the environment stands on the packages of a Python 3.11"},
		}},
		"driver": {cu12, pool(gpu("470.57.02", "8.0")), "slurm", Fit{Reasons: []string{
			"its NVIDIA driver is 470.57.02, and CUDA 12.4 and cuDNN 9.1.0 (of nvidia-cuda-runtime-cu12 12.4.127) needs 525 or newer",
		}}},
		"driver that is new enough": {cu12, pool(gpu("525.60.13", "8.0")), "slurm", Fit{Fits: true}},
		"driver 9 is not above 525": {cu12, pool(gpu("96.43", "8.0")), "slurm", Fit{Reasons: []string{
			"its NVIDIA driver is 96.43, and CUDA 12.4 and cuDNN 9.1.0 (of nvidia-cuda-runtime-cu12 12.4.127) needs 525 or newer",
		}}},
		"GPU too old": {environmentOf("torch==2.9.0", "nvidia-cuda-runtime==13.0.48"), pool(gpu("580.65.06", "7.0")), "slurm", Fit{Reasons: []string{
			"its GPUs have compute capability 7.0, and CUDA 13.0 (of nvidia-cuda-runtime 13.0.48) has no code below 7.5",
		}}},
		"GPU that its PyTorch no longer knows": {
			environmentOf("torch==2.8.0", "nvidia-cuda-runtime-cu12==12.8.90", "nvidia-cudnn-cu12==9.10.2.21"), pool(gpu("550.1", "6.1")), "slurm",
			Fit{Reasons: []string{"its GPUs have compute capability 6.1, and torch 2.8.0 with CUDA 12.8 has no code below 7.0"}},
		},
		"GPU that it knows with an older CUDA": {
			environmentOf("torch==2.8.0+cu126", "nvidia-cuda-runtime-cu12==12.6.77"), pool(gpu("550.1", "6.1")), "slurm", Fit{Fits: true},
		},
		"GPU that its JAX does not know": {environmentOf("jaxlib==0.5.0", "jax-cuda12-plugin==0.5.0"), pool(gpu("550.1", "5.0")), "slurm", Fit{Reasons: []string{
			"its GPUs have compute capability 5.0, and jaxlib 0.5.0 with CUDA 12 has no code below 5.2",
		}}},
		"GPU that its cuDNN does not know": {
			environmentOf("torch==2.4.0", "nvidia-cuda-runtime-cu11==11.8.89", "nvidia-cudnn-cu11==9.1.0.70"), pool(gpu("470.57", "3.7")), "slurm",
			Fit{Reasons: []string{"its GPUs have compute capability 3.7, and cuDNN 9.1.0 has no code below 5.0"}},
		},
		"GPU too new": {environmentOf("torch==2.1.0+cu121"), pool(gpu("550.1", "12.0")), "slurm", Fit{Reasons: []string{
			"its GPUs have compute capability 12.0, which CUDA 12.8 is the first to have code for; the environment brings CUDA 12.1 (of torch 2.1.0+cu121)",
		}}},
		"GPU that is just right": {environmentOf("torch==2.1.0+cu121"), pool(gpu("550.1", "9.0")), "slurm", Fit{Fits: true}},
		"driver unknown": {environmentOf("cupy-cuda12x==13.3.0"), pool(nodeOf("g1", 1, "arch", "x86_64")), "kube", Fit{Fits: true, Unknown: []string{
			"its NVIDIA driver; CUDA 12 (of cupy-cuda12x 13.3.0) needs 525 or newer", "the compute capability of its GPUs; CUDA 12 (of cupy-cuda12x 13.3.0) has code from 5.0 on",
		}}},
		"by GPU feature discovery": {
			cu12, pool(nodeOf("g1", 1, "kubernetes.io/arch", "amd64", "nvidia.com/cuda.driver.major", "470", "nvidia.com/gpu.compute.major", "8")), "kube", Fit{Reasons: []string{
				"its NVIDIA driver is 470.0, and CUDA 12.4 and cuDNN 9.1.0 (of nvidia-cuda-runtime-cu12 12.4.127) needs 525 or newer",
			}},
		},
		"no GPU at all": {cu12, pool(nodeOf("n1", 0, "arch", "x86_64")), "slurm", Fit{
			Fits: true, Notes: []string{"it has no GPU, and the CUDA 12.4 of nvidia-cuda-runtime-cu12 12.4.127 lies idle there; torch_backend: cpu, or auto, locks builds without it"},
		}},
		"torch for the CPU": {environmentOf("torch==2.5.1+cpu"), pool(gpu("1", "1.0")), "slurm", Fit{Fits: true}},
		"an unknown CUDA": {environmentOf("nvidia-cuda-runtime==14.2.1"), pool(gpu("700", "12.0")), "slurm", Fit{
			Fits: true, Unknown: []string{"what CUDA 14.2 (of nvidia-cuda-runtime 14.2.1) needs: this Falaj has no rule for it"},
		}},
		"vector instructions": {environmentOf("polars==1.0"), pool(nodeOf("n1", 0, "arch", "x86_64", "cpu.vector", "sse4_2,avx")), "slurm", Fit{
			Reasons: []string{"its processors have no AVX2 instructions, which polars 1.0 is built with"},
		}},
		"vector instructions by discovery": {
			environmentOf("polars==1.0"), pool(nodeOf("n1", 0, "arch", "x86_64", "feature.node.kubernetes.io/cpu-cpuid.AVX2", "true")), "kube", Fit{Fits: true},
		},
		"one node of three": {
			cu12, pool(gpu("550.1", "9.0"), nodeOf("g2", 1, "arch", "aarch64"), nodeOf("g3", 1, "arch", "aarch64")), "slurm",
			Fit{
				Fits: true, Notes: []string{"node g2, g3: its processors are aarch64, the environment is for x86_64"}, Unknown: []string{
					"node g2, g3: its C library; the environment's wheels need glibc 2.17",
					"node g2, g3: its NVIDIA driver; CUDA 12.4 and cuDNN 9.1.0 (of nvidia-cuda-runtime-cu12 12.4.127) needs 525 or newer",
					"node g2, g3: the compute capability of its GPUs; CUDA 12.4 and cuDNN 9.1.0 (of nvidia-cuda-runtime-cu12 12.4.127) has code from 5.0 on",
				},
			},
		},
		"image on Slurm": {Environment{Spec: Spec{Image: "r/i@sha256:0"}}, pool(), "slurm", Fit{Reasons: []string{
			"it is an image, and Slurm's nodes run none: their container programs differ by site; use site modules or a Python environment there",
		}}},
		"image on Kubernetes": {Environment{Spec: Spec{Image: "r/i@sha256:0"}}, pool(nodeOf("n1", 0)), "kube", Fit{Fits: true}},
		"image for another architecture": {Environment{Spec: Spec{Image: "r/i@sha256:0"}, Platform: "linux/amd64"}, pool(nodeOf("n1", 0, "kubernetes.io/arch", "arm64")), "kube", Fit{
			Reasons: []string{"its processors are aarch64, the environment is for x86_64"},
		}},
		"modules at home": {Environment{Spec: Spec{Modules: []string{"cuda/12.4"}}}, pool(), "local", Fit{Reasons: []string{
			"it is made of site modules, which only Slurm pools load; this pool's engine is local",
		}}},
		"modules on Slurm": {Environment{Spec: Spec{Modules: []string{"cuda/12.4"}}}, pool(), "slurm", Fit{
			Fits: true, Unknown: []string{"whether its nodes have the modules cuda/12.4 shows when a job starts"},
		}},
	} {
		if name == "one node of three" {
			tt.env.Glibc = "2.17"
		}
		tt.want.Pool = "p"
		if diff := cmp.Diff(tt.want, fit(tt.env.needs(), tt.pool, tt.kind)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestWheels(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Tag: cp311-cp311-manylinux_2_28_x86_64\n":                                        "2.28",
		"Tag: cp311-cp311-manylinux_2_28_x86_64\nTag: cp311-cp311-manylinux2014_x86_64\n": "2.17",
		"Tag: cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64\n":                   "2.17",
		"Tag: py3-none-any\n":                           "",
		"Tag: cp311-cp311-musllinux_1_2_x86_64\n":       "",
		"Tag: cp311-cp311-linux_x86_64\nGenerator: x\n": "",
	} {
		if got := wheelGlibc(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	venv := t.TempDir()
	for name, tag := range map[string]string{"a-1": "manylinux2014_x86_64", "b-1": "manylinux_2_31_x86_64", "c-1": "any"} {
		dir := filepath.Join(venv, "lib", "python3.11", "site-packages", name+".dist-info")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "WHEEL"), []byte("Wheel-Version: 1.0\nTag: cp311-none-"+tag+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := glibcOf(venv); err != nil || got != "2.31" {
		t.Errorf("%q, %v", got, err)
	}
}

func FuzzWheel(f *testing.F) {
	f.Add("Tag: cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64\n")
	f.Fuzz(func(t *testing.T, text string) {
		if v := wheelGlibc(text); v != "" && !strings.HasPrefix(v, "2.") {
			t.Errorf("%q: %q", text, v)
		}
	})
}
