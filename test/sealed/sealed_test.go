// Package sealed plants values in classified datasets of a real server, uses them
// in every way that there is, and then looks for them in every file of its data
// directory. The same values in an open dataset are found, so the search can.
package sealed

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

// planted is rows of values that are nowhere else: text, whole numbers, numbers.
type planted struct {
	text  []string
	whole []int64
	real  []float64
}

// plant draws values. They are random, so that no compression changes their bytes,
// and large, so that no other value has them.
func plant(seed uint64, rows int) planted {
	dice := rand.New(rand.NewPCG(seed, 2013))
	var p planted
	for range rows {
		p.text = append(p.text, fmt.Sprintf("%016x%016x", dice.Uint64(), dice.Uint64()))
		p.whole = append(p.whole, int64(dice.Uint64()>>1|1<<61))
		p.real = append(p.real, (1+dice.Float64())*1e100)
	}
	return p
}

// csv has a key of each row too, which is no secret, and a time. Expectations name
// none of the values.
func (p planted) csv(broken bool) string {
	var b strings.Builder
	b.WriteString("k,seen,word,whole,real\n")
	for i := range p.text {
		key := strconv.Itoa(i)
		if broken && i == 1 {
			key = "" // the version is rejected, and kept
		}
		fmt.Fprintf(&b, "%s,2013-01-01T00:00:%02dZ,%s,%d,%s\n", key, i%60, p.text[i], p.whole[i], strconv.FormatFloat(p.real[i], 'g', -1, 64))
	}
	return b.String()
}

// needles are the values as files could have them, by a name that tells no value.
func (p planted) needles() map[string][]byte {
	out := map[string][]byte{}
	add := func(name string, i int, b []byte) { out[fmt.Sprintf("%s of row %d", name, i)] = b }
	for i, s := range p.text {
		add("text", i, []byte(s))
		add("a piece of text", i, []byte(s[8:24]))
		var wide []byte
		for _, u := range utf16.Encode([]rune(s)) {
			wide = binary.LittleEndian.AppendUint16(wide, u)
		}
		add("text in UTF-16", i, wide[:32]) // the big-endian form has all but its first byte, too
		add("whole number", i, binary.LittleEndian.AppendUint64(nil, uint64(p.whole[i])))
		add("whole number, big-endian", i, binary.BigEndian.AppendUint64(nil, uint64(p.whole[i])))
		add("whole number in digits", i, []byte(strconv.FormatInt(p.whole[i], 10)))
		add("number", i, binary.LittleEndian.AppendUint64(nil, math.Float64bits(p.real[i])))
		add("number, big-endian", i, binary.BigEndian.AppendUint64(nil, math.Float64bits(p.real[i])))
		add("number in digits", i, []byte(strconv.FormatFloat(p.real[i], 'g', -1, 64)[:15]))
	}
	return out
}

// search says in which files of a directory each needle is.
func search(t *testing.T, dir string, needles map[string][]byte) (found map[string][]string, files int) {
	t.Helper()
	found = map[string][]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		rel, _ := filepath.Rel(dir, path)
		for name, b := range needles {
			if bytes.Contains(content, b) || bytes.Contains([]byte(rel), b) {
				found[name] = append(found[name], rel)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found, files
}

const datasets = `
{api_version: falaj/v1, kind: Dataset, name: secret, project: PROJECT, spec: {classification: confidential, columns: [{name: k, type: string}, {name: whole, type: int64}, {name: real, type: float64}], expectations: [{check: not_null, column: k}]}}
---
{api_version: falaj/v1, kind: Dataset, name: patients, project: PROJECT, spec: {classification: restricted, columns: [{name: k, type: string}, {name: whole, type: int64}, {name: real, type: float64}], expectations: [{check: not_null, column: k}]}}
---
{api_version: falaj/v1, kind: Dataset, name: plain, project: PROJECT, spec: {columns: [{name: k, type: string}, {name: whole, type: int64}, {name: real, type: float64}], expectations: [{check: not_null, column: k}, {check: between, column: whole, max: 1}]}}
---
{api_version: falaj/v1, kind: Dataset, name: sifted, project: PROJECT, spec: {classification: confidential, columns: [{name: k, type: string}, {name: whole, type: int64}, {name: real, type: float64}], expectations: [{check: in_set, column: k, values: ["1"], otherwise: quarantine}]}}
---
{api_version: falaj/v1, kind: Dataset, name: shown, project: PROJECT, spec: {protection: open, columns: [{name: k, type: string}, {name: whole, type: int64}, {name: real, type: float64}]}}
---
{api_version: falaj/v1, kind: Entity, name: k, project: PROJECT, spec: {}}
`

const view = `
api_version: falaj/v1
kind: FeatureView
name: facts
project: PROJECT
spec:
  source: {dataset: secret}
  entities: [k]
  timestamp: seen
  features: [{name: word, type: string}, {name: whole, type: int64}, {name: real, type: float64}]
`

func TestPlantedValuesAreInNoFile(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "vault")
	p.Apply(datasets)
	secret, patients, shown := plant(1, 40), plant(2, 40), plant(3, 40)
	p.Import("secret", secret.csv(false))
	p.Import("secret", plant(4, 40).csv(true)) // rejected
	p.Import("patients", patients.csv(false))
	p.Import("plain", plant(5, 1).csv(false)) // neither; rejected, with an example
	p.Import("shown", shown.csv(false))
	p.Import("sifted", plant(6, 40).csv(false)) // all rows but one are in quarantine
	var aside client.Object
	p.Must(p.C.Do(t.Context(), http.MethodGet, p.Path("datasets/sifted@1/quarantine"), nil, &aside))
	if aside.Text("total") != "39" || !strings.Contains(aside.Text("rows"), plant(6, 40).text[7]) {
		t.Fatal("the quarantine does not have the values")
	}

	// SQL, a training set, online rows.
	rows := func(c *client.Client, sql string) string {
		t.Helper()
		var got client.Object
		p.Must(c.Do(t.Context(), http.MethodPost, p.Path("query"), map[string]any{"sql": sql}, &got))
		return got.Text("rows")
	}
	if got := rows(p.C, "SELECT * FROM secret ORDER BY word"); !strings.Contains(got, secret.text[7]) {
		t.Fatal("the query does not answer with the values")
	}
	p.Apply(view)
	var made client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("training-sets"), map[string]any{
		"name": "learn", "spine": "SELECT k, seen AS at, word AS label FROM secret", "timestamp": "at", "labels": []string{"label"}, "features": []string{"facts:word", "facts:whole", "facts:real"},
	}, &made))
	p.Materialise("facts")
	var online client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("features/online"), map[string]any{
		"features": []string{"facts:word", "facts:whole", "facts:real"}, "entities": []any{map[string]any{"k": "7"}},
	}, &online))
	if got := fmt.Sprint(online); !strings.Contains(got, secret.text[7]) {
		t.Fatalf("the online store does not answer with the values")
	}

	// Restricted data: by who is named.
	var doctor client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": p.Name, "name": "doctor", "role": "engineer"}, &doctor))
	p.Apply(`{api_version: falaj/v1, kind: Grant, name: doctor-patients, project: PROJECT, spec: {principal: service/doctor, role: engineer, object: dataset/patients}}`)
	if got := rows(p.ClientWith(t, doctor.Text("secret")), "SELECT * FROM patients ORDER BY word"); !strings.Contains(got, patients.text[7]) {
		t.Fatal("the query does not answer with the values")
	}

	// Streams.
	if got := stream(t, s, p.Name, s.Token, "secret@1"); !bytes.Contains(got, []byte(secret.text[7])) {
		t.Error("the stream does not have the values")
	}
	if got := stream(t, s, p.Name, doctor.Text("secret"), "patients@1"); !bytes.Contains(got, []byte(patients.text[7])) {
		t.Error("the stream does not have the values")
	}
	stream(t, s, p.Name, s.Token, made.Text("name")+"@"+made.Text("version"))

	// A job, whose private files go with it.
	job := p.Apply(`{api_version: falaj/v1, kind: Job, name: reads, project: PROJECT, spec: {data: {train: secret}, timeout: 2m, command: [/bin/sh, -c, 'cat $FALAJ_DATA_TRAIN/*.parquet | wc -c']}}`)
	p.Ends(job[0].ID, "succeeded")

	needles := secret.needles()
	for what, part := range map[string]planted{"patients": patients, "rejected": plant(4, 40), "quarantine": plant(6, 40), "plain": plant(5, 1)} {
		for name, b := range part.needles() {
			needles[what+": "+name] = b
		}
	}
	look := func(when string) {
		t.Helper()
		found, files := search(t, s.Data, needles)
		if files < 20 {
			t.Fatalf("%s: only %d files were looked through", when, files)
		}
		for name, in := range found {
			t.Errorf("%s: %s is in %v", when, name, in)
		}
		control, _ := search(t, s.Data, shown.needles())
		kinds := map[string]bool{}
		for name, in := range control {
			if slices.ContainsFunc(in, func(f string) bool { return strings.HasSuffix(f, ".parquet") }) {
				kinds[strings.Split(name, " of row")[0]] = true
			}
		}
		for _, want := range []string{"text", "whole number", "number"} {
			if !kinds[want] {
				t.Errorf("%s: the search does not find %s of an open dataset: it would find nothing", when, want)
			}
		}
	}
	look("while it runs")
	p.Must(s.Kill())
	look("after kill -9")
	p.Again()
	p.Must(s.Stop())
	look("after it ended")
}

// stream reads a version by Arrow Flight, and gives the bytes of its batches.
func stream(t *testing.T, s *live.Server, project, token, ref string) (all []byte) {
	t.Helper()
	c, err := flight.NewClientWithMiddleware(strings.TrimPrefix(s.URL, "http://"), nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token, "falaj-project", project)
	info, err := c.GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{ref}})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := c.DoGet(ctx, info.Endpoint[0].Ticket)
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := rows.Recv()
		if err != nil {
			if err.Error() != "EOF" {
				t.Fatal(err)
			}
			return all
		}
		all = append(all, m.DataBody...)
	}
}
