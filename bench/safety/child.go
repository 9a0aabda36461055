package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/bench/harness"
	"github.com/falaj-ml/falaj/client"
)

const project = `
api_version: falaj/v1
kind: Project
name: bench
spec: {display_name: Measurements}
`

const deployment = "api_version: falaj/v1\nkind: Deployment\nname: %s\nproject: bench\nspec: {model: %s, version: \"1\", prediction: {log: false}}\n---\n"

// inProcess is the setting of a server whose models all run in its own process.
const inProcess = "serving:\n  in_process:\n    - project: bench\n"

// served is a model that is measured, of one input x and one output y.
type served struct {
	name, title string
	file        []byte
	columns     int
}

func models() []served {
	const tensor = 1 << 14
	return []served{
		{"linear", "linear model", harness.Logistic(13, "x", "y"), 13},
		{"forest", "forest of 100 trees", harness.Forest(100, 5, 4), 4},
		{"mlp", "network of 0.5 M weights", harness.MLP(128, 512, 512, 256, 10), 128},
		{"tensor", "64 KiB in and out", harness.Negative(tensor), tensor},
	}
}

// ask is one row for a model, in JSON or as binary tensors.
func (m served) ask(s *harness.Server, header string, raw bool) []byte {
	path := "/v2/models/" + m.name + "/infer"
	if !raw {
		return request(s, path, header+"Content-Type: application/json\r\n", m.json())
	}
	body := fmt.Appendf(nil, `{"inputs":[{"name":"x","shape":[1,%d],"datatype":"FP32","parameters":{"binary_data_size":%d}}],`+
		`"outputs":[{"name":"y","parameters":{"binary_data":true}}]}`, m.columns, 4*m.columns)
	header += fmt.Sprintf("Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n", len(body))
	for i := range m.columns {
		body = binary.LittleEndian.AppendUint32(body, math.Float32bits(float32(i*17%101)/100))
	}
	return request(s, path, header, body)
}

// json is one row as JSON.
func (m served) json() []byte {
	body := fmt.Appendf(nil, `{"inputs":[{"name":"x","shape":[1,%d],"datatype":"FP32","data":[`, m.columns)
	for i := range m.columns {
		if i > 0 {
			body = append(body, ',')
		}
		body = strconv.AppendFloat(body, float64(i*17%101)/100, 'g', -1, 64)
	}
	return append(body, `]}]}`...)
}

// side is a server and how its models run.
type side struct {
	on     *harness.Server
	header string
}

// child measures what a process of its own costs a model: CPU of the server and of its
// processes, and the time of a request, beside the same models in the server's process.
func (b *bench) child(ctx context.Context) error {
	core, undo := -1, func() {}
	if all := harness.Allowed(); len(all) > 1 {
		core = all[1]
		var err error
		if undo, err = harness.PinSelf(all[0]); err != nil {
			return err
		}
	}
	defer undo()
	here, err := b.serve(ctx, "here", core, inProcess)
	if err != nil {
		return err
	}
	defer func() { _ = here.on.Stop() }()
	apart, err := b.serve(ctx, "apart", core, "")
	if err != nil {
		return err
	}
	defer func() { _ = apart.on.Stop() }()
	at, span := []int{1, 8, 64}, time.Second
	if b.Quick {
		at, span = []int{8}, 50*time.Millisecond
	}
	for _, m := range models() {
		for _, raw := range []bool{false, true} {
			for _, n := range at {
				if err := b.beside(ctx, m, raw, n, span, here, apart); err != nil {
					return fmt.Errorf("%s, %d at a time: %w", m.title, n, err)
				}
			}
		}
	}
	return nil
}

// beside asks both sides in turns, and adds the rows.
func (b *bench) beside(ctx context.Context, m served, raw bool, at int, span time.Duration, here, apart side) error {
	form := map[bool]string{false: "JSON", true: "binary"}[raw]
	b.Say("%s, %s, %d at a time", m.title, form, at)
	var cpu, p50, p99 [2][]float64
	sides := []side{here, apart}
	for _, s := range sides { // connections and caches warm up
		if f, err := closed(ctx, s.on, m.ask(s.on, s.header, raw), at, span/10); err != nil || f.failed > 0 {
			return fmt.Errorf("%d requests were refused: %w", f.failed, err)
		}
	}
	for range b.Rounds {
		for i, s := range sides {
			f, err := closed(ctx, s.on, m.ask(s.on, s.header, raw), at, span)
			if err != nil || f.failed > 0 {
				return fmt.Errorf("%d requests were refused: %w", f.failed, err)
			}
			cpu[i], p50[i], p99[i] = append(cpu[i], f.cpu), append(p50[i], f.p50), append(p99[i], f.p99)
		}
	}
	const peer = "the model in the server's process"
	ratios, added := make([]float64, b.Rounds), make([]float64, b.Rounds)
	for i := range b.Rounds {
		ratios[i], added[i] = cpu[1][i]/cpu[0][i], p50[1][i]-p50[0][i]
	}
	what := fmt.Sprintf("%s, %s, %d at a time", m.title, form, at)
	row := harness.Row{
		Name: what + ": CPU of a request, the model in a process of its own", Unit: "µs", Better: harness.Lower, Peer: peer, Detail: at != 8,
		Ours: middle(cpu[1]), Theirs: middle(cpu[0]), Note: fmt.Sprintf("of the server and its processes; %.3g to %.3g times in single rounds", slices.Min(ratios), slices.Max(ratios)),
	}
	if at == 8 {
		row.Aim = &harness.Aim{Ratio: harness.Value(1 / 1.3)}
	}
	b.Add(row)
	row = harness.Row{
		Name: what + ": p50 that a process of its own adds", Unit: "µs", Better: harness.Lower, Ours: middle(added), Peer: peer, Detail: at != 1,
		Note: fmt.Sprintf("p50 is %.4g µs, and %.4g in the server's process; of all callers at once, without pause", *middle(p50[1]), *middle(p50[0])),
	}
	if at == 1 {
		row.Aim = &harness.Aim{Value: harness.Value(30)}
	}
	b.Add(row)
	b.Add(harness.Row{
		Name: what + ": p99, the model in a process of its own", Unit: "µs", Better: harness.Lower, Peer: peer, Detail: true, Ours: middle(p99[1]), Theirs: middle(p99[0]),
		Note: "of all callers at once, without pause",
	})
	return nil
}

// middle is the median, of a copy.
func middle(values []float64) *float64 { return harness.Value(harness.Median(slices.Clone(values))) }

// serve starts a server with a configuration and deploys the models on it.
func (b *bench) serve(ctx context.Context, name string, core int, config string) (_ side, err error) {
	file := filepath.Join(b.Dir, name+".yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return side{}, err
	}
	on, err := b.Up(ctx, filepath.Join(b.Dir, name), core, "FALAJ_CONFIG="+file)
	if err != nil {
		return side{}, err
	}
	defer func() {
		if err != nil {
			_ = on.Stop()
		}
	}()
	c, err := on.Client()
	if err != nil {
		return side{}, err
	}
	if _, err := c.Apply(ctx, "", []byte(project), false); err != nil {
		return side{}, err
	}
	var manifests strings.Builder
	for _, m := range models() {
		if err := on.Register(ctx, c, "bench", m.name, m.file); err != nil {
			return side{}, err
		}
		fmt.Fprintf(&manifests, deployment, m.name, m.name)
	}
	if _, err := c.Apply(ctx, "bench", []byte(manifests.String()), false); err != nil { // it answers when the models have answered
		return side{}, err
	}
	if got := len(harness.Tree(on.PID())); (got > 1) != (config == "") {
		return side{}, fmt.Errorf("the server has %d processes with the settings %q", got, config)
	}
	var token client.Object
	want := map[string]any{"name": "app", "role": "engineer", "project": "bench", "expires_in": "24h"}
	if err := c.Do(ctx, http.MethodPost, "/api/v1/tokens", want, &token); err != nil {
		return side{}, err
	}
	return side{on, "Authorization: Bearer " + token.Text("secret") + "\r\n"}, nil
}
