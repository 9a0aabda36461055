package oip

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// TestScoring walks requests of the scoring protocols and the exact answers, which are those
// of the Open Inference Protocol for the same rows.
func TestScoring(t *testing.T) {
	srv := server(t)
	var probabilities []json.RawMessage
	{
		_, b := sent(t, srv.URL+"/v2/models/delay/infer", "application/json", `{"inputs":[{"name":"X","shape":[2,2],"datatype":"FP32","data":[0,0,4,3]}],"outputs":[{"name":"probabilities"}]}`)
		var a struct {
			Outputs []struct{ Data []json.RawMessage }
		}
		if err := json.Unmarshal([]byte(b), &a); err != nil {
			t.Fatal(err)
		}
		probabilities = a.Outputs[0].Data
	}
	p := probabilities
	both := fmt.Sprintf(`{"predictions":[{"label":0,"probabilities":[%s,%s]},{"label":1,"probabilities":[%s,%s]}]}`, p[0], p[1], p[2], p[3])
	const (
		v1      = "/v1/models/delay:predict"
		mlflow  = "/endpoints/delay/invocations"
		unnamed = `{"error":"the request has no rows. Send one of dataframe_split, dataframe_records, instances and inputs, such as {\"dataframe_split\": {\"columns\": [\"a\", \"b\"], \"data\": [[1, 2]]}}."}`
	)
	for name, c := range map[string]struct {
		path, kind, body string
		status           int
		want             string
	}{
		"instances":            {v1, "", `{"instances": [[0, 0], [4, 3]]}`, 200, both},
		"version":              {"/v1/models/delay/versions/3:predict", "", `{"instances": [[0, 0], [4, 3]]}`, 200, both},
		"signature":            {v1, "", `{"signature_name":"serving_default","instances": [[0, 0], [4, 3]]}`, 200, both},
		"instances by name":    {v1, "", `{"instances": [{"X": [0, 0]}, {"X": [4, 3]}]}`, 200, both},
		"inputs":               {v1, "", `{"inputs": [[0, 0], [4, 3]]}`, 200, both},
		"inputs by name":       {v1, "", `{"inputs": {"X": [[0, 0], [4, 3]]}}`, 200, both},
		"inputs in rows":       {v1, "", `{"inputs": [{"a": 0, "b": 0}, {"a": 4, "b": 3}]}`, 200, both},
		"split":                {mlflow, "application/json", `{"dataframe_split": {"index": [7, 8], "columns": ["a", "b"], "data": [[0, 0], [4, 3]]}}`, 200, both},
		"split first data":     {mlflow, "application/json; charset=utf-8", `{"dataframe_split": {"data": [[0, 0.0], [4e0, 3]], "columns": [0, 1]}, "params": {}}`, 200, both},
		"split by name":        {mlflow, "application/json", `{"dataframe_split": {"columns": ["X"], "data": [[[0, 0]], [[4, 3]]]}}`, 200, both},
		"records":              {mlflow, "application/json", `{"dataframe_records": [{"a": 0, "b": 0}, {"b": 3, "a": 4}], "client_request_id": "7"}`, 200, both},
		"the only one":         {"/invocations", "application/json", `{"dataframe_records": [{"a": 0, "b": 0}, {"b": 3, "a": 4}]}`, 200, both},
		"query":                {"/invocations?deployment=delay", "application/json", `{"inputs": [[0, 0], [4, 3]]}`, 200, both},
		"csv":                  {mlflow, "text/csv", "a,b\n0,0\n4,3\n", 200, both},
		"csv of Windows":       {mlflow, "text/csv; charset=utf-8", "\ufeff\"a\",\"b\"\r\n0, 0.0\r\n4,3\r\n", 200, both},
		"deep":                 {mlflow, "", `{"inputs": ` + strings.Repeat("[", 70_000), 400, `{"error":"the request nests deeper than 64"}`},
		"unknown":              {"/endpoints/nothing/invocations", "", `{"inputs": [[0, 0]]}`, 404, `{"error":"unknown model: \"nothing\" is not deployed"}`},
		"other verb":           {"/v1/models/delay:explain", "", `{"inputs": [[0, 0]]}`, 404, `{"error":"\"delay:explain\" is not a path of a model. Use NAME:predict."}`},
		"no rows":              {v1, "", `{"instances": []}`, 400, `{"error":"the request has no rows"}`},
		"no data":              {mlflow, "", `{"dataframe_split": {"columns": ["a", "b"], "data": []}}`, 400, `{"error":"the request has no rows"}`},
		"nothing":              {mlflow, "", `{}`, 400, unnamed},
		"null":                 {v1, "", `{"instances": null}`, 400, `{"error":"instances is not a list"}`},
		"two":                  {mlflow, "", `{"inputs": [[1, 2]], "instances": [[1, 2]]}`, 400, `{"error":"set either inputs or instances, not both"}`},
		"columns":              {mlflow, "", `{"dataframe_split": {"columns": ["a"], "data": [[0], [4]]}}`, 400, `{"error":"the rows have 1 columns, but input \"X\" of the model has 2"}`},
		"ragged":               {mlflow, "", `{"dataframe_split": {"columns": ["a", "b"], "data": [[0, 0], [4]]}}`, 400, `{"error":"row 1 has 1 values for 2 columns"}`},
		"ragged the other way": {mlflow, "", `{"dataframe_split": {"columns": ["a", "b"], "data": [[0, 0, 1], [4]]}}`, 400, `{"error":"row 0 has 3 values for 2 columns"}`},
		"new column":           {mlflow, "", `{"dataframe_records": [{"a": 0, "b": 0}, {"a": 0, "c": 0}]}`, 400, `{"error":"row 1 has the column \"c\", which is missing in row 0. Send every column in every row; use null for missing values."}`},
		"column twice":         {mlflow, "", `{"dataframe_records": [{"a": 0, "b": 0}, {"a": 0, "a": 0}]}`, 400, `{"error":"row 1 has the duplicate column \"a\""}`},
		"text":                 {mlflow, "", `{"dataframe_split": {"columns": ["a", "b"], "data": [[0, 0], [4, "x"]]}}`, 400, `{"error":"input \"X\": element 3, \"x\", is not a number"}`},
		"text in CSV":          {mlflow, "text/csv", "a,b\n0,0\n4,x\n", 400, `{"error":"input \"X\": element 3, \"x\", is not a number"}`},
		"ragged CSV":           {mlflow, "text/csv", "a,b\n0,0\n4\n", 400, `{"error":"the request is not CSV: line 3: wrong number of fields"}`},
		"no CSV":               {mlflow, "text/csv", "", 400, `{"error":"the request is not CSV: the header is missing"}`},
		"infinity":             {v1, "", `{"instances": [[0, -Infinity]]}`, 400, `{"error":"input \"X\": element 1, -Infinity, is an infinity, which cannot be sent as JSON; send the input as binary data"}`},
		"params":               {mlflow, "", `{"inputs": [[0, 0]], "params": {"max_tokens": 3}}`, 501, `{"error":"params are not supported. Remove params. Pass values that change between requests as inputs of the model."}`},
		"another signature":    {v1, "", `{"inputs": [[0, 0]], "signature_name": "classify"}`, 501, `{"error":"signature \"classify\" is not supported: a deployment has one signature. Remove signature_name."}`},
		"not json":             {v1, "", `instances`, 400, `{"error":"the request is not an inference request in JSON: byte 1 is 'i', expected '{'"}`},
		"cut":                  {v1, "", `{"instances": [[0, 0]`, 400, `{"error":"the request is not an inference request in JSON: byte 22 is the end of the request, expected ',' or ']'"}`},
	} {
		t.Run(name, func(t *testing.T) {
			status, got := sent(t, srv.URL+c.path, c.kind, c.body)
			if c.status == 501 { // as the server's own table of statuses has it, which is not here
				c.status = 400
			}
			if status != c.status {
				t.Errorf("status %d, want %d", status, c.status)
			}
			if diff := gocmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	for path, want := range map[string]string{"/v1/models": `{"models":["delay"]}`, "/v1/models/delay": `{"name":"delay","ready":true}`} {
		resp, err := srv.Client().Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if got := strings.TrimSpace(string(b)); got != want || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", path, resp.StatusCode, got)
		}
	}
}

func sent(t *testing.T, url, kind, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	resp, err := (&http.Client{Timeout: time.Minute}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, strings.TrimSpace(string(b))
}

// TestMLflowFrames: bodies of MLflow's protocol are read as MLflow 3.17's server reads them, of a
// model with a signature of columns, and of one without, which knows the names of its columns.
// What differs is in docs/reference/inference.md.
func TestMLflowFrames(t *testing.T) {
	signed := serving.Takes{Platform: sklearn, Inputs: []runtime.Spec{input("b", runtime.FP64, -1), input("a", runtime.FP64, -1), input("n", runtime.Int64, -1), input("ok", runtime.Bool, -1)}}
	one := serving.Takes{Platform: sklearn, Inputs: []runtime.Spec{input("c", runtime.FP64, -1)}}
	matrix := serving.Takes{Platform: sklearn, Inputs: []runtime.Spec{{Name: "X", Datatype: runtime.FP64, Shape: []int64{-1, 2}, Columns: []string{"b", "a"}}}}
	values := func(b, a float64, n int64, ok bool) string {
		return fmt.Sprint(map[string]any{"b": []float64{b}, "a": []float64{a}, "n": []int64{n}, "ok": []bool{ok}})
	}
	for _, c := range []struct {
		takes serving.Takes
		body  string // JSON, or CSV with a line break
		want  string // values by input, or an error
	}{
		{signed, `{"dataframe_split":{"columns":["a","z","n","b","ok"],"data":[[5,"x",2,1,true]]}}`, values(1, 5, 2, true)},
		{signed, `{"dataframe_records":[{"a":5,"z":{"q":1},"n":2,"b":1,"ok":true}]}`, values(1, 5, 2, true)},
		{signed, `{"instances":[{"a":5,"n":2,"b":1,"ok":true,"z":null}]}`, values(1, 5, 2, true)},
		{signed, `{"inputs":{"a":[5],"n":[2],"z":[[1]],"b":[1],"ok":[true]}}`, values(1, 5, 2, true)},
		{signed, "ok,z,a,b,n\nTrue,x,5,1,2\n", values(1, 5, 2, true)},
		{signed, `{"dataframe_split":{"columns":["b","a","n","ok"],"data":[["1.5"," 1e3 "," +2 ",1]]}}`, values(1.5, 1000, 2, true)},
		{signed, `{"dataframe_split":{"columns":["b","a","n","ok"],"data":[[true,false,true,0]]}}`, values(1, 0, 1, false)},
		{signed, `{"dataframe_split":{"columns":["b","a","n","ok"],"data":[["NaN",null,2.0,1.0]]}}`, values(math.NaN(), math.NaN(), 2, true)},
		{signed, `{"dataframe_split":{"columns":["b"],"data":[["x"]]}}`, `input "b": element 0, "x", is not a number`},
		{signed, `{"dataframe_split":{"columns":["b"],"data":[["0x10"]]}}`, `input "b": element 0, "0x10", is not a number`},
		{signed, `{"dataframe_split":{"columns":["b"],"data":[["true"]]}}`, `input "b": element 0, "true", is not a number`},
		{signed, `{"dataframe_split":{"columns":["b"],"data":[[""]]}}`, `input "b": element 0, "", is not a number`},
		{signed, `{"dataframe_split":{"columns":["n"],"data":[[1.5]]}}`, `input "n": element 0, 1.5, is not a whole number of 64 bits`},
		{signed, `{"dataframe_split":{"columns":["n"],"data":[["1.5"]]}}`, `input "n": element 0, "1.5", is not a whole number of 64 bits`},
		{signed, `{"dataframe_split":{"columns":["n"],"data":[[null]]}}`, `input "n": element 0 is null`},
		{signed, `{"dataframe_split":{"columns":["ok"],"data":[["false"]]}}`, `input "ok": element 0, "false", is not true or false`},
		{signed, `{"dataframe_split":{"columns":["ok"],"data":[[2]]}}`, `is not true or false`},
		{signed, `{"dataframe_split":{"columns":["y","z"],"data":[[1,2]]}}`, `unknown column "y"`},
		{signed, `{"dataframe_split":{"columns":["b","z","z"],"data":[[1,2,3]]}}`, `duplicate column "z"`},
		{one, `{"dataframe_records":[{"c":1},{"d":3,"c":2}]}`, "map[c:[1 2]]"},
		{one, `{"dataframe_records":[{"c":1},{"d":3}]}`, "map[c:[1 NaN]]"},
		{one, `{"dataframe_split":{"columns":["d"],"data":[[1]]}}`, `unknown column "d"`},
		{one, `{"instances":[1,2]}`, "map[c:[1 2]]"},
		{matrix, `{"dataframe_split":{"columns":["b","a"],"data":[[1,5],[2,6]]}}`, "map[X:[1 5 2 6]]"},
		{matrix, `{"dataframe_split":{"columns":["a","b"],"data":[[5,"1"],[6,2]]}}`, "map[X:[1 5 2 6]]"},
		{matrix, `{"dataframe_records":[{"a":5,"b":1},{"b":2,"a":6}]}`, "map[X:[1 5 2 6]]"},
		{matrix, "a,b\n5,1\n6,2\n", "map[X:[1 5 2 6]]"},
		{matrix, `{"dataframe_split":{"data":[[1,5]]}}`, "map[X:[1 5]]"},
		{matrix, `{"dataframe_split":{"columns":[0,1],"data":[[1,5]]}}`, "map[X:[1 5]]"},
		{matrix, `{"instances":[[1,5]]}`, "map[X:[1 5]]"},
		{matrix, `{"dataframe_split":{"columns":["a"],"data":[[5]]}}`, `column "b" is missing: the model was trained with it`},
		{matrix, `{"dataframe_split":{"columns":["a","b","z"],"data":[[5,1,2]]}}`, `unknown column "z": the model was trained without it`},
		{matrix, `{"dataframe_split":{"columns":["q","r"],"data":[[1,5]]}}`, `column "b" is missing`},
		{matrix, `{"dataframe_records":[{"a":5,"b":1},{"b":2,"a":6,"z":1}]}`, `row 1 has the column "z"`},
	} {
		f := frame{takes: c.takes, mlflow: true, hold: func(int) error { return nil }}
		read := f.json
		if strings.Contains(c.body, "\n") {
			read = func(b []byte) ([]runtime.Tensor, string, error) { t, err := f.csv(b); return t, "", err }
		}
		tensors, _, err := read([]byte(c.body))
		got := map[string]any{}
		for _, x := range tensors {
			got[x.Name] = x.Data
		}
		if text := fmt.Sprint(got); err == nil && text != c.want || err != nil && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %s %v, want %s", c.body, text, err, c.want)
		}
	}
	// KServe's protocol ignores no column, and takes no text for a number.
	for body, want := range map[string]string{
		`{"instances":[{"a":5,"z":1}]}`: `unknown column "z"`,
		`{"instances":[{"a":"5"}]}`:     `input "a": element 0, "5", is not a number`,
	} {
		f := frame{takes: signed, hold: func(int) error { return nil }}
		if _, _, err := f.json([]byte(body)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", body, err)
		}
	}
	f := frame{takes: matrix, hold: func(int) error { return nil }}
	if got, _, err := f.json([]byte(`{"instances":[{"a":5,"b":1}]}`)); err != nil || !reflect.DeepEqual(got[0].Data, []float64{1, 5}) || !slices.Equal(got[0].Columns, []string{"b", "a"}) {
		t.Errorf("KServe's rows by name: %+v, %v", got, err)
	}
}

// TestScored: of a classifier of scikit-learn MLflow's server answers what predict gives.
func TestScored(t *testing.T) {
	tensor := func(names ...string) (all []runtime.Tensor) {
		for _, name := range names {
			all = append(all, runtime.Tensor{Name: name, Datatype: runtime.Int64, Shape: []int64{1}, Data: []int64{1}})
		}
		return all
	}
	for _, c := range []struct {
		platform  string
		has, want []runtime.Tensor
	}{
		{sklearn, tensor("label", "probabilities"), tensor("label")},
		{sklearn, tensor("probabilities", "late"), tensor("late")},
		{sklearn, tensor("probabilities"), tensor("probabilities")},
		{sklearn, tensor("east", "north"), tensor("east", "north")},
		{sklearn, tensor("label", "probabilities", "over"), tensor("label", "probabilities", "over")},
		{"onnxruntime_onnx", tensor("label", "probabilities"), tensor("label", "probabilities")},
	} {
		if diff := gocmp.Diff(c.want, scored(c.platform, c.has)); diff != "" {
			t.Errorf("%s: %s", c.platform, diff)
		}
	}
}

func input(name string, d runtime.Datatype, shape ...int64) runtime.Spec {
	return runtime.Spec{Name: name, Datatype: d, Shape: shape}
}

// columned is a model with an input for each column, as scikit-learn's are.
var columned = serving.Takes{Inputs: []runtime.Spec{input("age", runtime.FP64, -1, 1), input("city", runtime.Bytes, -1, 1), input("count", runtime.Int64, -1), input("ok", runtime.Bool, -1)}}

// featured is a model of one input that features fill.
var featured = serving.Takes{Inputs: []runtime.Spec{input("X", runtime.FP32, -1, 3)}, Columns: []string{"origin", "minute", "share", "holiday"}}

// TestFrames: the rows of each form become the same tensors.
func TestFrames(t *testing.T) {
	people := []runtime.Tensor{
		{Name: "age", Datatype: runtime.FP64, Shape: []int64{2, 1}, Data: []float64{30, math.NaN()}},
		{Name: "city", Datatype: runtime.Bytes, Shape: []int64{2, 1}, Data: []string{"Bonn", "a,\"b\"\n"}},
		{Name: "count", Datatype: runtime.Int64, Shape: []int64{2}, Data: []int64{9007199254740993, -1}},
		{Name: "ok", Datatype: runtime.Bool, Shape: []int64{2}, Data: []bool{true, false}},
	}
	flights := []runtime.Tensor{
		{Name: "origin", Datatype: runtime.Bytes, Shape: []int64{2}, Data: []string{"JFK", "LGA"}},
		{Name: "minute", Datatype: runtime.Int64, Shape: []int64{2}, Data: []int64{600, 720}},
		{Name: "share", Datatype: runtime.FP64, Shape: []int64{2}, Data: []float64{1, math.NaN()}},
		{Name: "holiday", Datatype: runtime.Bool, Shape: []int64{2}, Data: []bool{true, false}},
	}
	for name, c := range map[string]struct {
		takes serving.Takes
		body  string
		want  []runtime.Tensor
	}{
		"split":        {takes: columned, body: `{"dataframe_split":{"columns":["age","city","count","ok"],"data":[[30,"Bonn",9007199254740993,true],[null,"a,\"b\"\n",-1,false]]}}`, want: people},
		"records":      {takes: columned, body: `{"dataframe_records":[{"age":30,"city":"Bonn","count":9007199254740993,"ok":true},{"ok":false,"city":"a,\"b\"\n","count":-1}]}`, want: people},
		"instances":    {takes: columned, body: `{"instances":[{"age":[30],"city":["Bonn"],"count":9007199254740993,"ok":true},{"age":[NaN],"city":["a,\"b\"\n"],"count":-1,"ok":false}]}`, want: people},
		"inputs":       {takes: columned, body: `{"inputs":{"age":[30,NaN],"city":[["Bonn"],["a,\"b\"\n"]],"count":[9007199254740993,-1],"ok":[true,false]}}`, want: people},
		"features":     {takes: featured, body: `{"dataframe_records":[{"origin":"JFK","minute":600,"share":1,"holiday":true},{"origin":"LGA","minute":720,"share":null,"holiday":false}]}`, want: flights},
		"its own":      {takes: featured, body: `{"instances":[[1,2,3]]}`, want: []runtime.Tensor{{Name: "X", Datatype: runtime.FP32, Shape: []int64{1, 3}, Data: []float32{1, 2, 3}}}},
		"scalars":      {takes: serving.Takes{Inputs: []runtime.Spec{input("x", runtime.FP32, -1, 1)}}, body: `{"instances":[1, 2.5]}`, want: []runtime.Tensor{{Name: "x", Datatype: runtime.FP32, Shape: []int64{2, 1}, Data: []float32{1, 2.5}}}},
		"one value":    {takes: serving.Takes{Inputs: []runtime.Spec{input("x", runtime.FP32, -1), input("scale", runtime.FP32)}}, body: `{"inputs":{"x":[1,2],"scale":3}}`, want: []runtime.Tensor{{Name: "x", Datatype: runtime.FP32, Shape: []int64{2}, Data: []float32{1, 2}}, {Name: "scale", Datatype: runtime.FP32, Shape: []int64{}, Data: []float32{3}}}},
		"column alone": {takes: serving.Takes{Inputs: []runtime.Spec{input("x", runtime.FP32, -1)}}, body: `{"dataframe_split":{"columns":["any"],"data":[[1],[2]]}}`, want: []runtime.Tensor{{Name: "x", Datatype: runtime.FP32, Shape: []int64{2}, Data: []float32{1, 2}}}},
		"images":       {takes: serving.Takes{Inputs: []runtime.Spec{input("i", runtime.Uint8, -1, 1, 2, 2)}}, body: `{"instances":[[[[1,2],[3,4]]],[[[5,6],[7,8]]]]}`, want: []runtime.Tensor{{Name: "i", Datatype: runtime.Uint8, Shape: []int64{2, 1, 2, 2}, Data: []uint8{1, 2, 3, 4, 5, 6, 7, 8}}}},
	} {
		f := frame{takes: c.takes, hold: func(int) error { return nil }}
		got, _, err := f.json([]byte(c.body))
		if diff := gocmp.Diff(c.want, got, cmpopts.EquateNaNs()); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", name, err, diff)
		}
	}
	f := frame{takes: columned, hold: func(int) error { return nil }}
	got, err := f.csv([]byte("age,city,count,ok\n30,Bonn,9007199254740993,True\n,\"a,\"\"b\"\"\n\",-1,false\n"))
	if diff := gocmp.Diff(people, got, cmpopts.EquateNaNs()); err != nil || diff != "" {
		t.Errorf("CSV: %v (-want +got)\n%s", err, diff)
	}
	for body, want := range map[string]string{
		`{"dataframe_split":{"columns":["age","town"],"data":[[1,"x"]]}}`:              `unknown column "town"`,
		`{"dataframe_split":{"columns":["age","age"],"data":[[1,2]]}}`:                 `duplicate column "age"`,
		`{"dataframe_split":{"columns":["age"]}}`:                                      "has no columns, or no data",
		`{"dataframe_split":{"columns":[null],"data":[[1]]}}`:                          "dataframe_split.columns",
		`{"dataframe_split":[[1]]}`:                                                    "expected '{'",
		`{"instances":[[1,"x",2,true]]}`:                                               "the model has 4 inputs, but the rows of instances do not name them",
		`{"inputs":{"age":[1],"age":[2]}}`:                                             `duplicate input "age"`,
		`{"inputs":{}}`:                                                                "the request has no inputs",
		`{"inputs":{"town":[1]}}`:                                                      `unknown column "town"`,
		`{"dataframe_records":[{}]}`:                                                   "have no columns",
		`{"dataframe_records":[{"count":1},{"count":1.5}]}`:                            `input "count": element 1, 1.5, is not a whole number of 64 bits`,
		`{"dataframe_records":[{"city":"x"},{"city":null}]}`:                           `input "city": element 1 is null`,
		`{"dataframe_records":[{"city":"x"},{"city":{"b64":"AA="}}]}`:                  `input "city": element 1, {"b64":"AA="}, is not base64`,
		`{"dataframe_records":[{"city":"x"},{"city":{"b65":"AA=="}}]}`:                 `not a string, nor bytes as {"b64"`,
		`{"dataframe_records":[{"city":"x"},{"city":{"b64":"","b64":""}}]}`:            `not a string, nor bytes as {"b64"`,
		`{"dataframe_records":[{"age":1},{"age":{"b64":"AA=="}}]}`:                     `input "age": data does not have shape`,
		`{"inputs":` + strings.Repeat("[", 60) + strings.Repeat("]", 60) + `}`:         "the model has 4 inputs",
		`{"inputs":{"age":` + strings.Repeat("[", 60) + strings.Repeat("]", 60) + `}}`: "a tensor has at most 32 dimensions",
		`{"inputs":{"age":` + strings.Repeat("[", 99) + strings.Repeat("]", 99) + `}}`: "nests deeper than 64",
		"{\"instances\":[\"\xff\"]}":                                                   "not UTF-8",
	} {
		f := frame{takes: columned, hold: func(int) error { return nil }}
		if _, _, err := f.json([]byte(body)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %q", body, err, want)
		}
	}
	f = frame{takes: featured, hold: func(int) error { return nil }}
	if _, err := f.csv([]byte("origin\nJFK\n")); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "its type in CSV is ambiguous") {
		t.Errorf("a key in CSV: %v", err)
	}
}

// TestFramesAreBounded: short rows that stand for many values take no more memory than a
// request may have.
func TestFramesAreBounded(t *testing.T) {
	many := serving.Takes{Inputs: make([]runtime.Spec, MaxTensors)}
	first := make([]string, MaxTensors)
	for i := range first {
		many.Inputs[i] = input(fmt.Sprintf("c%d", i), runtime.FP32, -1)
		first[i] = fmt.Sprintf(`"c%d":1`, i)
	}
	held := 0
	f := frame{takes: many, hold: func(n int) error { held += n; return nil }}
	_, _, err := f.json([]byte(`{"dataframe_records":[{` + strings.Join(first, ",") + `}` + strings.Repeat(",{}", 20_000) + `]}`))
	if !fault.Is(err, fault.TooLarge) || held > 2*MaxBody {
		t.Errorf("%v, and %d bytes are held", err, held)
	}
	f = frame{takes: columned, hold: func(int) error { return fault.New(fault.Exhausted, "no memory") }}
	if _, _, err := f.json([]byte(`{"dataframe_records":[{"age":1}]}`)); !fault.Is(err, fault.Exhausted) {
		t.Errorf("without memory: %v", err)
	}
	for _, takes := range []serving.Takes{columned, {Inputs: []runtime.Spec{input("X", runtime.FP32, -1, -1)}}} {
		f := frame{takes: takes, hold: func(int) error { return nil }}
		if _, _, err := f.json([]byte(`{"dataframe_split":{"data":[],"columns":[1` + strings.Repeat(",1", maxColumns) + `]}}`)); !fault.Is(err, fault.TooLarge) {
			t.Errorf("too many columns: %v", err)
		}
		wide := strings.Repeat(",", maxColumns)
		for _, body := range []string{wide, "age\n" + wide, "\"a\nb\"" + wide} {
			if _, err := f.csv([]byte(body)); !fault.Is(err, fault.TooLarge) {
				t.Errorf("too many columns of CSV: %v", err)
			}
		}
	}
}

// TestPredictions: what answers look like.
func TestPredictions(t *testing.T) {
	tensor := func(name string, d runtime.Datatype, data any, shape ...int64) runtime.Tensor {
		return runtime.Tensor{Name: name, Datatype: d, Shape: append([]int64{}, shape...), Data: data}
	}
	for want, outputs := range map[string][]runtime.Tensor{
		`{"predictions":[1,2]}`:             {tensor("y", runtime.Int64, []int64{1, 2}, 2)},
		`{"predictions":[[1],[null]]}`:      {tensor("y", runtime.FP64, []float64{1, math.NaN()}, 2, 1)},
		`{"predictions":[[[1,2]],[[3,4]]]}`: {tensor("y", runtime.Uint8, []uint8{1, 2, 3, 4}, 2, 1, 2)},
		`{"predictions":[[],[]]}`:           {tensor("y", runtime.Uint8, []uint8{}, 2, 0)},
		`{"predictions":[]}`:                {tensor("y", runtime.Uint8, []uint8{}, 0, 2)},
		`{"predictions":1.5}`:               {tensor("y", runtime.FP16, []uint16{0x3e00})},
		`{"predictions":["a","\"b"]}`:       {tensor("y", runtime.Bytes, []string{"a", `"b`}, 2)},
		// One that is no text, and all of its output are base64.
		`{"predictions":[[{"b64":"YQ=="}],[{"b64":"/w=="}]]}`:                         {tensor("y", runtime.Bytes, []string{"a", "\xff"}, 2, 1)},
		`{"predictions":[{"y":{"b64":"YQ=="},"z":"a"},{"y":{"b64":"/w=="},"z":"b"}]}`: {tensor("y", runtime.Bytes, []string{"a", "\xff"}, 2), tensor("z", runtime.Bytes, []string{"a", "b"}, 2)},
		`{"predictions":[{"y":1,"z":[true]},{"y":2,"z":[false]}]}`:                    {tensor("y", runtime.BF16, []uint16{0x3f80, 0x4000}, 2), tensor("z", runtime.Bool, []bool{true, false}, 2, 1)},
	} {
		if got, err := predictions(nil, outputs); err != nil || string(got) != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
	for want, outputs := range map[string][]runtime.Tensor{
		"is an infinity":                 {tensor("y", runtime.FP32, []float32{float32(math.Inf(1))}, 1)},
		"have different numbers of rows": {tensor("y", runtime.FP32, []float32{1, 2}, 2), tensor("z", runtime.FP32, []float32{1})},
	} {
		if _, err := predictions(nil, outputs); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) || !strings.Contains(fault.HintOf(err), "/v2/models/NAME/infer") {
			t.Errorf("%v (%s), want %q", err, fault.HintOf(err), want)
		}
	}
}

// TestFramesRoundTrip: random tables in each form are the same table, and so are the
// predictions of a model that answers what it was asked.
func TestFramesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.IntRange(1, 5).Draw(t, "rows")
		ages := rapid.SliceOfN(rapid.Float64(), rows, rows).Draw(t, "ages")
		cities := rapid.SliceOfN(rapid.String(), rows, rows).Draw(t, "cities")
		counts := rapid.SliceOfN(rapid.Int64(), rows, rows).Draw(t, "counts")
		records, data := make([]any, rows), make([]any, rows)
		for i := range rows {
			records[i] = map[string]any{"age": ages[i], "city": cities[i], "count": counts[i]}
			data[i] = []any{ages[i], cities[i], counts[i]}
		}
		for _, body := range []any{
			map[string]any{"dataframe_records": records},
			map[string]any{"instances": records},
			map[string]any{"dataframe_split": map[string]any{"columns": []string{"age", "city", "count"}, "data": data}},
			map[string]any{"inputs": map[string]any{"age": ages, "city": cities, "count": counts}},
		} {
			text, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			f := frame{takes: columned, hold: func(int) error { return nil }}
			in, _, err := f.json(text)
			if err != nil {
				t.Fatal(err)
			}
			slices.SortFunc(in, func(a, b runtime.Tensor) int { return strings.Compare(a.Name, b.Name) })
			if len(in) != 3 || !slices.Equal(in[0].Data.([]float64), ages) || !slices.Equal(in[1].Data.([]string), cities) || !slices.Equal(in[2].Data.([]int64), counts) {
				t.Fatalf("%s became %v", text, in)
			}
			got, err := predictions(nil, in)
			if err != nil {
				t.Fatal(err)
			}
			var answer struct {
				Predictions []struct {
					Age   []float64
					City  []string
					Count int64
				}
			}
			if err := json.Unmarshal(got, &answer); err != nil {
				t.Fatalf("%s: %v", got, err)
			}
			for i, p := range answer.Predictions {
				if p.Age[0] != ages[i] || p.City[0] != cities[i] || p.Count != counts[i] {
					t.Fatalf("row %d: %v", i, p)
				}
			}
		}
	})
}

// FuzzScoring: whatever the body, it becomes tensors whose data has their shape, or is refused.
func FuzzScoring(f *testing.F) {
	for _, s := range []string{
		`{"dataframe_split":{"columns":["age","city"],"data":[[1,"x"],[null,""]]}}`, `{"dataframe_records":[{"age":1},{}]}`, `{"instances":[[1,2],[3,4]]}`,
		`{"inputs":{"X":[[NaN,-Infinity]]}}`, `{"dataframe_records":[{"city":{"b64":"/w=="}}]}`, `{"instances":[{"X":[1,2]}],"params":{}}`, `{"inputs":{"age":[[[]]]}}`, "age,city\n1,x\n", "\"a\nb\",c\n,\n",
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	one := serving.Takes{Inputs: []runtime.Spec{input("X", runtime.FP32, -1, 2)}}
	f.Fuzz(func(t *testing.T, body []byte, table bool) {
		for _, takes := range []serving.Takes{columned, featured, one} {
			var in []runtime.Tensor
			var err error
			fr := frame{takes: takes, hold: func(int) error { return nil }}
			if table {
				in, err = fr.csv(body)
			} else {
				in, _, err = fr.json(body)
			}
			if err != nil {
				if k := fault.KindOf(err); k != fault.Invalid && k != fault.TooLarge && k != fault.Unsupported {
					t.Errorf("kind %s: %v", k, err)
				}
				continue
			}
			if len(in) == 0 {
				t.Error("taken, and there is nothing")
			}
			for _, x := range in {
				if n, err := runtime.Elements(x.Shape); err != nil || n != reflect.ValueOf(x.Data).Len() {
					t.Errorf("%q: input %s has shape %v and %d elements, %v", body, x.Name, x.Shape, reflect.ValueOf(x.Data).Len(), err)
				}
			}
			if _, err := predictions(nil, in); err != nil && !fault.Is(err, fault.Invalid) {
				t.Error(err)
			}
		}
	})
}

func TestWidest(t *testing.T) {
	for text, want := range map[string]int{"": 1, "a,b\n1,2,3\nx": 3, `"a,b,c,d",e`: 2, "\"a\n,,,\",b\nc": 2, `"a""b,",c`: 2} {
		if got := widest([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// TestBytes: what is no text comes in base64, by version 1 of KServe's protocol as {"b64": …},
// and by MLflow's as the text of a binary column.
func TestBytes(t *testing.T) {
	image := input("image", runtime.Bytes, -1)
	one := serving.Takes{Inputs: []runtime.Spec{image}}
	image.Binary = true
	binary := serving.Takes{Inputs: []runtime.Spec{image}}
	for name, c := range map[string]struct {
		takes  serving.Takes
		mlflow bool
		body   string
		want   []string // nil: refused
	}{
		"instances":             {one, false, `{"instances":[{"b64":"/9j/"},{"b64":""}]}`, []string{"\xff\xd8\xff", ""}},
		"by name":               {one, false, `{"instances":[{"image":{"b64":"/9j/"}},{"image":"text"}]}`, []string{"\xff\xd8\xff", "text"}},
		"one value":             {one, false, `{"inputs":{"b64":"/9j/"}}`, []string{"\xff\xd8\xff"}},
		"columns":               {one, false, `{"inputs":{"image":[{"b64":"/9j/"}]}}`, []string{"\xff\xd8\xff"}},
		"records":               {one, true, `{"dataframe_records":[{"image":{"b64":"/9j/"}}]}`, []string{"\xff\xd8\xff"}},
		"split":                 {one, true, `{"dataframe_split":{"columns":["image"],"data":[[{"b64":"/9j/"}],["t"]]}}`, []string{"\xff\xd8\xff", "t"}},
		"a text of MLflow's":    {one, true, `{"dataframe_split":{"columns":["image"],"data":[["/9j/"]]}}`, []string{"/9j/"}},
		"a binary column":       {binary, true, `{"dataframe_split":{"columns":["image"],"data":[["/9j/"],["AA==\n"]]}}`, []string{"\xff\xd8\xff", "\x00"}},
		"its objects":           {binary, true, `{"dataframe_records":[{"image":{"b64":"/9j/"}}]}`, []string{"\xff\xd8\xff"}},
		"that is no base64":     {binary, true, `{"dataframe_records":[{"image":"a cat"}]}`, nil},
		"elsewhere it is text":  {binary, false, `{"instances":[{"image":"/9j/"}]}`, []string{"/9j/"}},
		"null in it":            {binary, true, `{"dataframe_records":[{"image":null}]}`, nil},
		"an input of that name": {serving.Takes{Inputs: []runtime.Spec{input("b64", runtime.Bytes, -1)}}, false, `{"instances":[{"b64":"/9j/"}]}`, []string{"/9j/"}},
	} {
		f := frame{takes: c.takes, mlflow: c.mlflow, hold: func(int) error { return nil }}
		in, _, err := f.json([]byte(c.body))
		switch {
		case c.want == nil:
			if !fault.Is(err, fault.Invalid) {
				t.Errorf("%s: %+v, %v", name, in, err)
			}
		case err != nil || len(in) != 1 || !slices.Equal(in[0].Data.([]string), c.want):
			t.Errorf("%s: %+v, %v", name, in, err)
		}
	}
	f := frame{takes: binary, mlflow: true, hold: func(int) error { return nil }}
	if _, err := f.csv([]byte("image\n/9j/\n")); !fault.Is(err, fault.Invalid) || !strings.Contains(fault.HintOf(err), "base64") {
		t.Errorf("CSV: %v", err)
	}
}
