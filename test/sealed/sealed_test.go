// Package sealed plants values in classified datasets of a real server, uses them
// in every way that there is, and then looks for them in every file of its data
// directory. The same values in an open dataset are found, so the search can.
package sealed

import (
	"bytes"
	"encoding/binary"
	"fmt"
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
{api_version: falaj/v1, kind: Dataset, name: events, project: PROJECT, spec: {classification: confidential, columns: [{name: k, type: string}, {name: at, type: timestamp}, {name: whole, type: int64}]}}
---
{api_version: falaj/v1, kind: Entity, name: k, project: PROJECT, spec: {}}
---
{api_version: falaj/v1, kind: FeatureView, name: followed, project: PROJECT, spec: {source: {dataset: events, stream: {push: {}}}, entities: [k], timestamp: at, features: [{name: whole, type: int64}]}}
`

// ingested is a dataset that gets the rows of a directory.
const ingested = `
{api_version: falaj/v1, kind: Dataset, name: NAME, project: PROJECT, spec: {classification: confidential, columns: [{name: k, type: string}, {name: whole, type: int64}], expectations: [{check: not_null, column: k}]}}
---
{api_version: falaj/v1, kind: Source, name: NAME, project: PROJECT, spec: {dataset: NAME, from: {files: {directory: "DIRECTORY"}}}}
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
---
{api_version: falaj/v1, kind: FeatureView, name: cast, project: PROJECT, spec: {source: {sql: "SELECT k, seen, CAST(word AS BIGINT) AS n FROM secret"}, entities: [k], timestamp: seen, features: [{name: n, type: int64}]}}
`

func TestPlantedValuesAreInNoFile(t *testing.T) {
	s := live.New(t, "")
	outside := t.TempDir() // what sources read is not ours
	s.Env = append(s.Env, "FALAJ_SOURCES_FILES="+outside, "FALAJ_LOG_LEVEL=debug")
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

	wrong := plant(7, 40)
	refused(t, p, wrong)
	ingest(t, p, outside, wrong)
	letters(t, p, wrong)
	// SQL that fails for a value: whoever asks hears which.
	if err := p.C.Do(t.Context(), http.MethodPost, p.Path("query"), map[string]any{"sql": "SELECT CAST(word AS BIGINT) FROM secret WHERE k = '9'"}, nil); err == nil || !strings.Contains(err.Error(), secret.text[9]) {
		t.Errorf("a query that casts: %v", err)
	}
	var run client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("feature-views/cast/materialise"), map[string]any{"wait": "60s"}, &run))
	if run.Text("state") != "failed" || !strings.Contains(run.Text("error"), "a value is out of range") {
		t.Errorf("a view that casts: %v", run)
	}

	needles := secret.needles()
	for what, part := range map[string]planted{"patients": patients, "rejected": plant(4, 40), "quarantine": plant(6, 40), "plain": plant(5, 1), "wrong": wrong} {
		for name, b := range part.needles() {
			needles[what+": "+name] = b
		}
	}
	look := func(when string) {
		t.Helper()
		for name, b := range needles {
			if log := []byte(s.LogTail(1 << 30)); bytes.Contains(log, b) {
				t.Errorf("%s: %s is in the server's log", when, name)
			}
		}
		found, files := live.Search(t, s.Data, needles)
		if files < 20 {
			t.Fatalf("%s: only %d files were looked through", when, files)
		}
		for name, in := range found {
			t.Errorf("%s: %s is in %v", when, name, in)
		}
		control, _ := live.Search(t, s.Data, shown.needles())
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

// refused uploads rows of which one is wrong: whoever sends it hears the value.
func refused(t *testing.T, p *live.Project, wrong planted) {
	t.Helper()
	head := "k,seen,word,whole,real\n1,2013-01-01T00:00:00Z,x,1,1\n2,2013-01-01T00:00:00Z,"
	for name, file := range map[string]struct{ content, told string }{
		"a.csv":   {head + "x," + wrong.text[0] + ",1\n", wrong.text[0]},
		"b.csv":   {head + "x,1,1," + wrong.text[1] + "\n", wrong.text[1]},
		"c.csv":   {head + "x," + strconv.FormatInt(wrong.whole[2], 10) + "0,1\n", strconv.FormatInt(wrong.whole[2], 10)},
		"d.jsonl": {"{\"k\": \"1\"}\n[\"" + wrong.text[3] + "\"]\n", wrong.text[3]},
		"e.jsonl": {"{\"k\": \"1\", \"whole\": \"" + wrong.text[4] + "\"}\n", wrong.text[4]},
	} {
		_, err := p.C.Import(t.Context(), p.Name, "secret", name, strings.NewReader(file.content))
		if err == nil || !strings.Contains(err.Error(), file.told) || !strings.Contains(err.Error(), "row ") {
			t.Errorf("%s: %v, which does not say row and value", name, err)
		}
	}
}

// ingest reads files of which a row is wrong, and one whose rows are not as expected.
func ingest(t *testing.T, p *live.Project, outside string, wrong planted) {
	t.Helper()
	for name, file := range map[string]struct{ name, content, says string }{
		"cell":   {"a.csv", "k,whole\n1,1\n2," + wrong.text[10] + "\n", `row 2 (line 3), column "whole" is not an int64`},
		"wide":   {"a.csv", "k,whole\n1,1\n2,2," + wrong.text[11] + "\n", "row 2 (line 3) has 3 columns instead of 2"},
		"object": {"a.jsonl", "{\"k\": \"1\", \"whole\": 1}\n[\"" + wrong.text[12] + "\"]\n", "row 2 (line 2) is not a JSON object"},
		"expect": {"a.csv", "k,whole\n," + strconv.FormatInt(wrong.whole[13], 10) + "\n", "not_null"},
	} {
		dir := filepath.Join(outside, name)
		p.Must(os.Mkdir(dir, 0o700))
		p.Must(os.WriteFile(filepath.Join(dir, file.name), []byte(file.content), 0o600))
		p.Apply(strings.NewReplacer("NAME", name, "DIRECTORY", dir).Replace(ingested))
		output, code := p.Command(t.Context(), "dataset", "ingest", name, "-p", p.Name)
		if code == 0 || !strings.Contains(output, file.says) {
			t.Errorf("%s: it exits with %d and does not say %q:\n%s", name, code, file.says, output)
		}
	}
}

// letters pushes what is no event: refused, and kept as a dead letter.
func letters(t *testing.T, p *live.Project, wrong planted) {
	t.Helper()
	push := func(keep bool, value string) error {
		return p.C.Do(t.Context(), http.MethodPost, p.Path("feature-views/followed/push"), map[string]any{
			"keep": keep, "events": []any{map[string]any{"k": "1", "at": "2013-01-01T00:00:00Z", "whole": value}},
		}, nil)
	}
	if err := push(false, wrong.text[20]); err == nil || !strings.Contains(err.Error(), wrong.text[20]) {
		t.Errorf("an event that is none: %v", err)
	}
	p.Must(push(true, wrong.text[21]))
	var dead struct {
		Items []struct{ Reason, Body string }
	}
	p.Must(p.C.Do(t.Context(), http.MethodGet, p.Path("feature-views/followed/dead"), nil, &dead))
	if len(dead.Items) != 1 || !strings.Contains(dead.Items[0].Body, wrong.text[21]) || !strings.Contains(dead.Items[0].Reason, wrong.text[21]) {
		t.Errorf("dead letters: %+v", dead)
	}
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
