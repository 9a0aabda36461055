package loop

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// TestFullDisk fills the disk while versions are tried: what is not classified
// goes on answering and what it could not remember is counted; what is classified
// answers nothing that is not on record.
func TestFullDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	o := &ocean{Server: live.New(t, ""), next: &sync.Mutex{}}
	d := o.Disk(t, 256)
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := o.pond(t)
	p.threeVersions()
	p.classified()
	_, err := p.C.Canary(t.Context(), p.Name, "m", "2", 50, "")
	p.Must(err)
	next := 0
	ask := func(name string, n int) (ids []string, failures []error) {
		for range n {
			next++
			a, err := p.Infer(p.C, name, map[string]any{"route_key": strconv.Itoa(next)}, live.Tensor("X", "FP32", []float64{1, 0}, 1, 2))
			if err != nil {
				failures = append(failures, err)
				continue
			}
			if name == "m" && fmt.Sprint(a.Score()) != a.Version+"001" {
				t.Errorf("%+v", a)
			}
			ids = append(ids, a.ID)
		}
		return ids, failures
	}
	label := func(name string, ids []string) (a client.Labelled, err error) {
		labels := make([]client.Label, len(ids))
		for i, id := range ids {
			v := 1.0
			labels[i] = client.Label{ID: id, Value: &v}
		}
		return p.C.Label(t.Context(), p.Name, name, labels)
	}
	before, failures := ask("m", 50)
	_, classified := ask("secret", 5)
	if failures != nil || classified != nil {
		t.Fatal(failures, classified)
	}

	// Little space: nothing new is begun, what answers is remembered.
	live.Fill(t, d.Root, 40<<20)
	if _, err := p.C.Shadow(t.Context(), p.Name, "m", "3"); err == nil {
		t.Error("a shadow was begun without room")
	}
	if _, err := label("m", before); err == nil {
		t.Error("labels were taken without room")
	} else {
		p.refused("labels", err, http.StatusInsufficientStorage, "space")
	}
	during, failures := ask("m", 50)
	_, classified = ask("secret", 5)
	if failures != nil || classified != nil {
		t.Error(failures, classified)
	}
	_, err = p.C.Rollback(t.Context(), p.Name, "m", 0, "little space")
	p.Must(err)
	if s := p.status("m"); s.Text("lost") != "0" || s["rollout"] != nil {
		t.Errorf("%v", s)
	}

	// None, also of what the server gives back for this.
	live.Fill(t, d.Root, 0)
	p.Eventually("the space kept for a full disk stays kept", func() (bool, error) {
		_, err := os.Stat(filepath.Join(d.Root, "ballast"))
		return errors.Is(err, fs.ErrNotExist), err
	})
	const many = 300
	var unkept []string
	p.Eventually("all is remembered on a full disk", func() (bool, error) {
		live.Fill(t, d.Root, 0) // also with what came free a moment later
		some, failures := ask("m", many)
		if unkept = append(unkept, some...); failures != nil {
			t.Errorf("%d of %d requests failed on a full disk: %v", len(failures), many, failures[0])
		}
		return p.status("m").Text("lost") != "0", nil
	})
	answered, refused := ask("secret", many) // the last page of a file takes some
	t.Logf("classified: %d answered, %d refused", len(answered), len(refused))
	if len(refused) == 0 {
		t.Error("a classified model went on answering without a record")
	}
	for _, err := range refused {
		p.refused("classified", err, http.StatusInsufficientStorage, "full")
	}
	lost, err := strconv.Atoi(p.status("m").Text("lost"))
	if err != nil || lost == 0 {
		t.Errorf("%d answers could not be remembered: %v", lost, err)
	}
	_, _ = p.C.Canary(t.Context(), p.Name, "m", "2", 50, "") // whatever is said, it does not disturb
	if _, failures = ask("m", 20); failures != nil {
		t.Errorf("%v", failures[0])
	}
	var metrics strings.Builder
	resp, err := p.C.Send(t.Context(), http.MethodGet, "/metrics", nil, nil)
	p.Must(err)
	_, _ = bufio.NewReader(resp.Body).WriteTo(&metrics)
	_ = resp.Body.Close()
	if text := metrics.String(); !strings.Contains(text, "falaj_predictions_lost_total") || strings.Contains(text, "falaj_predictions_lost_total 0\n") {
		t.Error("no metric tells of the loss")
	}

	// Space again: it goes on, and what was lost is what was counted.
	live.Free(t, d.Root)
	tally := func(name string, ids []string) (a client.Labelled) {
		t.Helper()
		p.Eventually("labels are still refused", func() (bool, error) {
			var err error
			a, err = label(name, ids)
			return err == nil, err
		})
		return a
	}
	if a := tally("m", unkept); a.Unknown != lost || a.Accepted != len(unkept)-lost {
		t.Errorf("%d answers were lost, %d were counted: %+v", a.Unknown, lost, a)
	}
	if a := tally("secret", answered); a.Accepted != len(answered) {
		t.Errorf("%d answers of the classified model are on record, it gave %d", a.Accepted, len(answered))
	}
	if a := tally("m", append(before, during...)); a.Accepted != 100 {
		t.Errorf("%+v", a)
	}
	p.Eventually("nothing is remembered again", func() (bool, error) {
		after, failures := ask("m", 1)
		return len(after) == 1 && tally("m", after).Accepted == 1, errors.Join(failures...)
	})
	p.Eventually("the classified model does not answer again", func() (bool, error) {
		_, failures := ask("secret", 1)
		return failures == nil, errors.Join(failures...)
	})
	p.Must(o.Kill())
}

// classified deploys a model that was made of confidential data.
func (p *pond) classified() {
	p.T.Helper()
	p.Apply("{api_version: falaj/v1, kind: Dataset, name: secret, project: PROJECT, spec: {classification: confidential}}")
	_, err := p.C.Import(p.T.Context(), p.Name, "secret", "secret.csv", strings.NewReader("a\n1\n"))
	p.Must(err)
	p.Must(p.C.Do(p.T.Context(), http.MethodPost, p.Path("jobs"), map[string]any{"name": "train", "spec": map[string]any{
		"command":   []string{"/bin/sh", "-ec", `mkdir "$FALAJ_OUTPUT_DIR/model"; cp model.onnx "$FALAJ_OUTPUT_DIR/model/"`},
		"source":    p.Source("model.onnx", linear(0, 1, 1)),
		"data":      map[string]string{"secret": "secret"},
		"register":  "secret",
		"resources": map[string]any{"cpu": "0.2", "memory": "128MiB"},
	}}, nil))
	p.trainedOnce()
	p.Apply("{api_version: falaj/v1, kind: Deployment, name: secret, project: PROJECT, spec: {model: secret, version: \"1\"}}")
	var d client.Object
	p.Must(p.C.Do(p.T.Context(), http.MethodGet, p.Path("deployments/secret"), nil, &d))
	if d.Text("classification") != "confidential" {
		p.T.Fatal(d)
	}
}
