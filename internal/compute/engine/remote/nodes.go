package remote

import (
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"github.com/falaj-ml/falaj/internal/compute/engine"
)

// nodesFile has the reports of agents about their nodes. It is beside the workloads'
// directories. If it is lost, agents report again.
const nodesFile = "nodes.json"

const (
	maxNodes = 10_000
	maxBook  = 64 << 20
)

// book remembers what agents found on their nodes, so that what does not fit a
// node is known before anything queues. An agent speaks with the rights of its
// attempt: what the engine itself says of a node stands over it, and it decides
// nothing but which environments are said to fit.
type book struct {
	path string
	mu   sync.Mutex
	of   map[string]map[string]string // facts by node
}

func openBook(dir string, log *slog.Logger) *book {
	b := &book{path: filepath.Join(dir, nodesFile), of: map[string]map[string]string{}}
	info, err := os.Stat(b.path)
	if err != nil || info.Size() > maxBook {
		return b
	}
	text, err := os.ReadFile(b.path)
	if err == nil {
		err = json.Unmarshal(text, &b.of)
	}
	if err != nil || b.of == nil {
		log.Warn("the agents' reports about their nodes cannot be read; they are collected again", slog.Any("error", err))
		b.of = map[string]map[string]string{}
	}
	return b
}

// learn takes what an agent found.
func (b *book) learn(node string, facts map[string]string, log *slog.Logger) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if node == "" || len(facts) == 0 || maps.Equal(b.of[node], facts) || b.of[node] == nil && len(b.of) >= maxNodes {
		return
	}
	b.of[node] = facts
	text, err := json.Marshal(b.of)
	if err == nil {
		err = os.WriteFile(b.path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(b.path+".new", b.path)
	}
	if err != nil {
		log.Warn("an agent's report about its node cannot be stored", slog.String("node", node), slog.Any("error", err))
	}
}

// addLabels adds the stored labels to nodes.
func (b *book) addLabels(nodes []engine.Node) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, n := range nodes {
		labels := maps.Clone(b.of[n.Name])
		if labels == nil {
			continue
		}
		maps.Copy(labels, n.Labels)
		nodes[i].Labels = labels
	}
}
