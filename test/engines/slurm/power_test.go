package slurm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine/slurm"
	"github.com/falaj-ml/falaj/internal/compute/engine/slurm/slurmtest"
	"github.com/falaj-ml/falaj/internal/compute/provisioner"
	"github.com/falaj-ml/falaj/internal/compute/provisioner/provisionertest"
	"github.com/falaj-ml/falaj/test/live"
)

// TestPowerConformance runs the provisioners' suite on a cluster whose nodes are
// switched off.
func TestPowerConformance(t *testing.T) {
	t.Parallel()
	c := slurmtest.New(t, slurmtest.Options{Nodes: 3, Power: true})
	provisionertest.Run(t, provisionertest.Options{
		Open: func(t *testing.T, dir string) provisioner.Provisioner {
			t.Helper()
			l, err := slurm.New(slurm.Config{Conf: c.Conf, DefaultUser: "daemon", Worker: "/usr/bin/true", Dir: filepath.Join(dir, "slurm")})
			if err != nil {
				t.Fatal(err)
			}
			return l
		},
		Pool: provisioner.Pool{Name: "night", Max: 3, Options: map[string]string{"partition": "batch"}},
	})
}

// TestBurstsOntoSlurm: a job for which nodes are switched on runs on them, and they
// are switched off again.
func TestBurstsOntoSlurm(t *testing.T) {
	t.Parallel()
	c := slurmtest.New(t, slurmtest.Options{Nodes: 3, Power: true})
	s := live.New(t, "")
	config := filepath.Join(s.Home, "falaj.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "engines: {hpc: {kind: slurm, conf: %s, users: {p: daemon}, worker: %s}}\n", c.Conf, c.Worker(t, s.Bin.Worker)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Args = []string{"--config", config}
	s.Up(t)
	p := s.Project(t, "p")
	p.Apply(`{api_version: falaj/v1, kind: Pool, name: night, spec: {engine: hpc, mode: delegated, options: {partition: batch}, price_per_hour: 5,
  elastic: {provisioner: slurm, max: 2, startup: 20s, idle: 5s}}}`)
	if out := p.Run(0, "pool", "describe", "night"); !strings.Contains(out, "0 to 2 nodes; desired 0") {
		t.Fatal(out)
	}
	id := p.Apply(`{api_version: falaj/v1, kind: Job, name: j, project: PROJECT, spec: {pools: [night], workers: 2, command: [/bin/sh, -c, "hostname; sleep 2"],
  timeout: 1h, resources: {cpu: 16, memory: 100MiB}}}`)[0].ID
	p.Eventually("no nodes are switched on", func() (bool, error) {
		out, err := c.Command(t.Context(), "scontrol", "--oneliner", "show", "nodes")
		return strings.Count(out, "Comment=falaj/") == 2, err
	})
	if got := p.Ends(id, "succeeded"); got.Text("pool") != "night" {
		t.Errorf("it ran on %q", got.Text("pool"))
	}
	p.Eventually("nodes stay on", func() (bool, error) {
		out, err := c.Command(t.Context(), "scontrol", "--oneliner", "show", "nodes")
		return strings.Count(out, "+POWERED_DOWN") == 3 && !strings.Contains(out, "Comment=falaj/"), err
	})
}
