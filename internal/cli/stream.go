package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

const (
	pushBatch    = 1000      // events in one request
	pushLine     = 256 << 10 // bytes of a line
	pushPatience = time.Minute
)

func (a *app) featurePush() *cobra.Command {
	var id string
	var keep bool
	cmd := &cobra.Command{
		Use: "push VIEW FILE", Short: "Push events to the stream of a view",
		Long: "FILE is JSON lines with the columns of the view's dataset; - reads standard input. Accepted events are durable, and\n" +
			"are applied exactly once to the online store and the dataset. With --id, events whose ID was accepted within the\n" +
			"last day are skipped, so that a file can be pushed again. If the log is full, the command waits up to a minute.",
		Example: "  falaj feature push spending purchases.jsonl --id purchase -p shop", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, done, err := a.labelFile(args[1])
			if err != nil {
				return err
			}
			defer done()
			p := pusher{a: a, cmd: cmd, view: args[0], id: id, keep: keep}
			lines := bufio.NewScanner(r)
			lines.Buffer(nil, pushLine)
			for lines.Scan() {
				if err := p.add(lines.Bytes()); err != nil {
					return fault.Wrap(err, "after %d events", p.sent)
				}
			}
			if err := lines.Err(); err != nil {
				return fault.New(fault.Invalid, "%s: %w", args[1], err)
			}
			if err := p.flush(); err != nil {
				return fault.Wrap(err, "after %d events", p.sent)
			}
			if a.output != "table" {
				return a.printOne(map[string]any{"accepted": p.accepted, "duplicates": p.duplicates, "dead": p.dead})
			}
			a.say("%d events accepted", p.accepted)
			if p.duplicates > 0 {
				a.say("%d already existed", p.duplicates)
			}
			if p.dead > 0 {
				a.say("%d dead letters: falaj feature dead-letters %s", p.dead, args[0])
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&id, "id", "", "column with the ID of an event")
	cmd.Flags().BoolVar(&keep, "keep", false, "store invalid events as dead letters instead of refusing the push")
	return cmd
}

// pusher sends events in batches.
type pusher struct {
	a      *app
	cmd    *cobra.Command
	view   string
	id     string
	keep   bool
	events []json.RawMessage
	ids    []string

	sent, accepted, duplicates, dead int
}

func (p *pusher) add(line []byte) error {
	line = bytes.TrimSpace(line)
	if len(line) == 0 {
		return nil
	}
	if !json.Valid(line) {
		return fault.New(fault.Invalid, "line %d is not valid JSON", p.sent+len(p.events)+1)
	}
	if p.id != "" {
		var e map[string]json.RawMessage
		if err := json.Unmarshal(line, &e); err != nil || e[p.id] == nil {
			return fault.New(fault.Invalid, "line %d has no %q", p.sent+len(p.events)+1, p.id)
		}
		p.ids = append(p.ids, string(e[p.id]))
	}
	p.events = append(p.events, bytes.Clone(line))
	if len(p.events) < pushBatch {
		return nil
	}
	return p.flush()
}

func (p *pusher) flush() error {
	if len(p.events) == 0 {
		return nil
	}
	body := map[string]any{"events": p.events, "keep": p.keep}
	if p.id != "" {
		body["ids"] = p.ids
	}
	var got struct{ Accepted, Duplicates, Dead int }
	for end := time.Now().Add(pushPatience); ; {
		err := p.a.call(p.cmd, http.MethodPost, body, &got, "feature-views", p.view, "push")
		if err == nil {
			break
		}
		if !fault.Is(err, fault.Exhausted) || time.Now().After(end) {
			return err
		}
		select {
		case <-p.cmd.Context().Done():
			return p.cmd.Context().Err()
		case <-time.After(time.Second):
		}
	}
	p.sent, p.accepted, p.duplicates, p.dead = p.sent+len(p.events), p.accepted+got.Accepted, p.duplicates+got.Duplicates, p.dead+got.Dead
	p.events, p.ids = nil, nil
	return nil
}

func (a *app) featureStream() *cobra.Command {
	return &cobra.Command{
		Use: "stream VIEW", Short: "Show the stream lag of a view and its dataset",
		Example: "  falaj feature stream spending -p shop", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var o client.Object
			if err := a.call(cmd, http.MethodGet, nil, &o, "feature-views", args[0], "stream"); err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(o)
			}
			a.say("%s events since the beginning, %s of %s bytes in the log", o.Text("events"), o.Text("bytes"), o.Text("limit_bytes"))
			if o.Text("position") == "-1" {
				a.say("%s is not online: falaj feature materialise %s", o.Text("view"), o.Text("view"))
			} else {
				a.say("%s is %s pushes behind", o.Text("view"), o.Text("waiting"))
			}
			if v := o.Text("version"); v != "" {
				a.say("dataset %s is %s pushes behind; the newest version with events is %s", o.Text("dataset"), o.Text("uncut"), v)
			} else {
				a.say("dataset %s is %s pushes behind; no version has events yet", o.Text("dataset"), o.Text("uncut"))
			}
			if n := o.Text("dead"); n != "0" {
				a.say("%s dead letters: falaj feature dead-letters %s", n, args[0])
			}
			if why := o.Text("trouble"); why != "" {
				a.say("blocked: %s", plain(why))
			}
			return nil
		},
	}
}

// featureDead is the former name of dead-letters. It is hidden, and goes with the version after 0.1.0.
func (a *app) featureDead() *cobra.Command {
	cmd := a.featureDeadLetters()
	cmd.Use, cmd.Hidden = strings.Replace(cmd.Use, "dead-letters", "dead", 1), true
	return cmd
}

func (a *app) featureDeadLetters() *cobra.Command {
	var replay, drop bool
	var purpose string
	cmd := &cobra.Command{
		Use: "dead-letters VIEW [LETTER…]", Short: "List, replay or drop the dead letters of a view's stream",
		Long: "Dead letters are messages that could not be processed as events; each is listed with the reason. --replay processes\n" +
			"them again, for instance after the dataset's schema was changed or a timestamp is no longer in the future; --drop\n" +
			"removes them. Both apply to the named dead letters, or to all.",
		Example: "  falaj feature dead-letters spending -p shop\n  falaj feature dead-letters spending --replay -p shop", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{}
			if len(args) > 1 {
				body["ids"] = args[1:]
			}
			act := func(what, text string, fields ...string) error {
				var o client.Object
				if err := a.call(cmd, http.MethodPost, body, &o, "feature-views", args[0], "dead", what); err != nil {
					return err
				}
				if a.output != "table" {
					return a.printOne(o)
				}
				var values []any
				for _, f := range fields {
					values = append(values, o.Text(f))
				}
				a.say("%s", fmt.Sprintf(text, values...))
				return nil
			}
			switch {
			case replay && drop:
				return usage("--replay and --drop: use one of them")
			case replay:
				return act("replay", "%s were replayed, %s are still dead letters", "accepted", "dead")
			case drop:
				return act("drop", "%s dropped", "dropped")
			case len(args) > 1:
				return usage("letters are named for --replay or --drop")
			}
			query := url.Values{}
			if purpose != "" {
				query.Set("purpose", purpose)
			}
			return a.listOf(cmd, query, []column{{"LETTER", "id"}, {"AT", "at"}, {"FROM", "from"}, {"REASON", "reason"}, {"BODY", "body"}}, "feature-views", args[0], "dead")
		},
	}
	cmd.Flags().BoolVar(&replay, "replay", false, "process the dead letters again")
	cmd.Flags().BoolVar(&drop, "drop", false, "remove the dead letters")
	cmd.Flags().StringVar(&purpose, "purpose", "", "purpose of the read; required if the view declares purposes")
	return cmd
}
