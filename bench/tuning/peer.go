package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/internal/tuning/space"
)

// peer is Optuna in a process of its own.
type peer struct{ *harness.Peer }

func (b *bench) startPeer(ctx context.Context) (p *peer, reason string) {
	started, reason := b.StartPeer(ctx, "bench-tuning", "bench/tuning/peers.txt", nil, "bench/tuning/peer.py", b.Dir)
	if started == nil {
		return nil, reason
	}
	return &peer{started}, ""
}

// tell writes the problems for the peer, in Optuna's form.
func (b *bench) tell(problems []problem) error {
	type parameter struct {
		Name         string           `json:"name"`
		Distribution json.RawMessage  `json:"distribution"`
		When         *space.Condition `json:"when,omitempty"`
	}
	all := map[string][]parameter{}
	for _, p := range problems {
		for _, q := range p.space.Parameters {
			text, err := q.Optuna()
			if err != nil {
				return err
			}
			all[p.name] = append(all[p.name], parameter{q.Name, text, q.When})
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.Dir, "problems.json"), text, 0o600)
}

// ask asks a question, whose answer is JSON.
func (p *peer) ask(answer any, question ...any) error {
	text, err := json.Marshal(question)
	if err != nil {
		return err
	}
	line, err := p.Ask(string(text))
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(line), answer)
}
