package oip

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/jsondoc"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// post asks the server; headers are names and values in turn.
func post(t *testing.T, srv *httptest.Server, path string, body []byte, headers ...string) (answered, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := (&http.Transport{DisableCompression: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{resp.StatusCode, resp.Header}, b
}

// answered is a status and headers.
type answered struct {
	StatusCode int
	Header     http.Header
}

func floats(v ...float32) []byte {
	var out []byte
	for _, f := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(f))
	}
	return out
}

// TestBinary walks requests with raw tensors and the exact answers.
func TestBinary(t *testing.T) {
	srv := server(t)
	rows := floats(0, 0, 4, 3)
	const in = `"inputs":[{"name":"X","shape":[2,2],"datatype":"FP32",`
	const sized = in + `"parameters":{"binary_data_size":16}}]`
	const labels = "\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00"
	long := strings.Repeat(" ", 5)
	for name, c := range map[string]struct {
		head   string // JSON; "-": raw bytes alone
		body   []byte
		length string // "": that of head
		status int
		want   string // of the JSON
		raw    string
	}{
		"in":          {`{` + sized + `,"outputs":[{"name":"label"}]}`, rows, "", 200, `{"model_name":"delay","model_version":"3","id":"prd_","outputs":[{"name":"label","datatype":"INT64","shape":[2],"data":[0,1]}]}`, ""},
		"unaligned":   {`{` + sized + long + `,"outputs":[{"name":"label"}]}`, rows, "", 200, `{"model_name":"delay","model_version":"3","id":"prd_","outputs":[{"name":"label","datatype":"INT64","shape":[2],"data":[0,1]}]}`, ""},
		"out":         {`{` + in + `"data":[0,0,4,3]}],"outputs":[{"name":"label","parameters":{"binary_data":true}}]}`, nil, "", 200, `{"model_name":"delay","model_version":"3","id":"prd_","outputs":[{"name":"label","datatype":"INT64","shape":[2],"parameters":{"binary_data_size":16}}]}`, labels},
		"all out":     {`{"id":"☃","parameters":{"binary_data_output":true},` + sized + `}`, rows, "", 200, `{"model_name":"delay","model_version":"3","id":"☃","outputs":[{"name":"label","datatype":"INT64","shape":[2],"parameters":{"binary_data_size":16}},{"name":"probabilities","datatype":"FP32","shape":[2,2],"parameters":{"binary_data_size":16}}]}`, labels + "?"},
		"but one":     {`{"parameters":{"binary_data_output":true},` + sized + `,"outputs":[{"name":"label","parameters":{"binary_data":false}}]}`, rows, "", 200, `{"model_name":"delay","model_version":"3","id":"prd_","outputs":[{"name":"label","datatype":"INT64","shape":[2],"data":[0,1]}]}`, ""},
		"alone":       {"-", rows, "0", 200, `{"model_name":"delay","model_version":"3","id":"prd_","outputs":[{"name":"label","datatype":"INT64","shape":[2],"parameters":{"binary_data_size":16}},{"name":"probabilities","datatype":"FP32","shape":[2,2],"parameters":{"binary_data_size":16}}]}`, labels + "?"},
		"alone, part": {"-", rows[:12], "0", 400, `{"error":"a request with raw bytes only: 12 bytes are not a multiple of the row size of 8 bytes. Send JSON that describes the tensors, and its length in Inference-Header-Content-Length."}`, ""},
		"too short":   {`{` + sized + `}`, rows[:15], "", 400, `{"error":"input \"X\": binary_data_size is 16, and 15 bytes are left in the request"}`, ""},
		"too long":    {`{` + sized + `}`, append(slices.Clone(rows), 0), "", 400, `{"error":"1 bytes of the request belong to no input. Set Inference-Header-Content-Length to the length of the JSON, and binary_data_size for each binary input."}`, ""},
		"no sum":      {`{` + in + `"parameters":{"binary_data_size":12}}]}`, rows[:12], "", 400, `{"error":"input \"X\": shape [2 2] of FP32 needs 16 bytes, not 12"}`, ""},
		"both":        {`{` + in + `"data":[0,0,4,3],"parameters":{"binary_data_size":16}}]}`, rows, "", 400, `{"error":"input \"X\" has data and binary_data_size"}`, ""},
		"negative":    {`{` + in + `"parameters":{"binary_data_size":-16}}]}`, rows, "", 400, `{"error":"input \"X\": binary_data_size is -16: not a whole number from 0"}`, ""},
		"no length":   {`{` + sized + `}`, rows, "many", 400, `{"error":"Inference-Header-Content-Length: \"many\" is not a number of bytes"}`, ""},
		"length < 0":  {`{` + sized + `}`, rows, "-1", 400, `{"error":"Inference-Header-Content-Length: \"-1\" is not a number of bytes"}`, ""},
		"length > is": {`{` + sized + `}`, rows, "999", 400, `{"error":"Inference-Header-Content-Length is 999, and the request has 110 bytes"}`, ""},
		"length cut":  {`{` + sized + `}`, rows, "10", 400, `{"error":"the request is not an inference request in JSON: byte 11 is the end of the request, expected '['"}`, ""},
		"shared":      {`{` + in + `"parameters":{"shared_memory_region":"r"}}]}`, nil, "", 400, `{"error":"\"X\": tensors in shared memory are not supported. Send the tensor with the request, as binary data."}`, ""},
		"classes":     {`{` + sized + `,"outputs":[{"name":"probabilities","parameters":{"classification":1}}]}`, rows, "", 200, `{"model_name":"delay","model_version":"3","id":"prd_","outputs":[{"name":"probabilities","datatype":"BYTES","shape":[2,1],"data":["0.966843:0","0.896223:1"]}]}`, ""},
		"no classes":  {`{` + sized + `,"outputs":[{"name":"probabilities","parameters":{"classification":0}}]}`, rows, "", 400, `{"error":"classification of an output is 0: not a whole number from 1 to 10000"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			length := c.length
			if length == "" {
				length = strconv.Itoa(len(c.head))
			}
			body := append([]byte(strings.TrimPrefix(c.head, "-")), c.body...)
			resp, got := post(t, srv, "/v2/models/delay/infer", body, headLength, length)
			head := resp.Header.Get(headLength)
			n, err := strconv.Atoi(head)
			if head == "" {
				n, err = len(got), nil
			}
			if err != nil || (head != "") != (c.raw != "") || resp.StatusCode != c.status {
				t.Fatalf("status %d, %s %q, body %q", resp.StatusCode, headLength, head, got)
			}
			if diff := cmp.Diff(c.want, strings.TrimSpace(string(got[:n]))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			raw := string(got[n:])
			if prefix, more := strings.CutSuffix(c.raw, "?"); more && len(raw) > len(prefix) {
				raw = raw[:len(prefix)] + "?" // the probabilities are looked at elsewhere
			}
			if raw != c.raw {
				t.Errorf("raw %q, want %q", raw, c.raw)
			}
		})
	}
}

// TestBase64: by the parameter of MLServer's and KServe's clients BYTES are base64, in JSON, as
// raw bytes and by gRPC; what JSON has no other form for is answered so, and says it.
func TestBase64(t *testing.T) {
	const typed = `"parameters":{"content_type":"base64"}`
	given := func(datatype, parameters, data string) string {
		return `{"inputs":[{"name":"x","shape":[2],"datatype":"` + datatype + `",` + parameters + data + `}]}`
	}
	for name, c := range map[string]struct {
		head, raw string
		want      []string
		says      string
	}{
		"parameters first": {given("BYTES", typed+",", `"data":["/9j/",""]`), "", []string{"\xff\xd8\xff", ""}, ""},
		"data first":       {`{"inputs":[{"data":["/9j/",""],` + typed + `,"name":"x","datatype":"BYTES","shape":[2]}]}`, "", []string{"\xff\xd8\xff", ""}, ""},
		"another type":     {given("BYTES", `"parameters":{"content_type":"str"},`, `"data":["/9j/",""]`), "", []string{"/9j/", ""}, ""},
		"raw":              {given("BYTES", `"parameters":{"binary_data_size":12,"content_type":"base64"}`, ""), "\x04\x00\x00\x00/9j/\x00\x00\x00\x00", []string{"\xff\xd8\xff", ""}, ""},
		"no base64":        {given("BYTES", typed+",", `"data":["","a cat"]`), "", nil, `input "x": element 1 is not valid base64`},
		"numbers":          {given("INT64", typed+",", `"data":[1,2]`), "", nil, `content_type base64 requires BYTES, but the input is INT64`},
		"no text":          {given("BYTES", `"parameters":{"content_type":7},`, `"data":["",""]`), "", nil, `content_type is not text: 7`},
		"null":             {given("BYTES", typed+",", `"data":["",null]`), "", nil, `input "x": element 1 is null`},
	} {
		a, err := decode([]byte(c.head+c.raw), len(c.head))
		if c.says != "" {
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.says) || name == "null" && !strings.Contains(fault.HintOf(err), "for BYTES a text") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || !slices.Equal(a.Inputs[0].Data.([]string), c.want) {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
	text := &inference.InferParameter{ParameterChoice: &inference.InferParameter_StringParam{StringParam: "base64"}}
	m := &inference.ModelInferRequest{Inputs: []*inference.ModelInferRequest_InferInputTensor{{
		Name: "x", Datatype: "BYTES", Shape: []int64{1}, Parameters: map[string]*inference.InferParameter{"content_type": text},
		Contents: &inference.InferTensorContents{BytesContents: [][]byte{[]byte("/9j/")}},
	}}}
	if a, err := fromMessage(m); err != nil || !slices.Equal(a.Inputs[0].Data.([]string), []string{"\xff\xd8\xff"}) {
		t.Errorf("gRPC: %+v, %v", a, err)
	}
	m.Inputs[0].Contents, m.RawInputContents = nil, [][]byte{[]byte("\x04\x00\x00\x00/9j/")}
	if a, err := fromMessage(m); err != nil || !slices.Equal(a.Inputs[0].Data.([]string), []string{"\xff\xd8\xff"}) {
		t.Errorf("raw gRPC: %+v, %v", a, err)
	}

	out := []runtime.Tensor{
		{Name: "y", Datatype: runtime.Bytes, Shape: []int64{2}, Data: []string{"a", "\xff"}},
		{Name: "z", Datatype: runtime.Bytes, Shape: []int64{1}, Data: []string{"a"}},
	}
	for asked, want := range map[string]string{
		``: `[{"name":"y","datatype":"BYTES","shape":[2],"parameters":{"content_type":"base64"},"data":["YQ==","/w=="]},{"name":"z","datatype":"BYTES","shape":[1],"data":["a"]}]`,
		`,"outputs":[{"name":"y"},{"name":"z","parameters":{"content_type":"base64"}}]`: `[{"name":"y","datatype":"BYTES","shape":[2],"parameters":{"content_type":"base64"},"data":["YQ==","/w=="]},{"name":"z","datatype":"BYTES","shape":[1],"parameters":{"content_type":"base64"},"data":["YQ=="]}]`,
	} {
		body := []byte(`{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":["a"]}]` + asked + `}`)
		a, err := decode(body, len(body))
		if err != nil {
			t.Fatal(err)
		}
		head, _, err := a.encode(nil, "3", "", out)
		if err != nil || string(head) != `{"model_name":"","model_version":"3","outputs":`+want+`}` {
			t.Errorf("%s %v", head, err)
		}
	}
	if data := out[0].Data.([]string); data[1] != "\xff" {
		t.Errorf("the answer that is logged became %q", data)
	}
}

// TestParameters: what a request asks beside its tensors.
func TestParameters(t *testing.T) {
	const in = `"inputs":[{"data":[[1]],"shape":[1,1],"datatype":"INT8","name":"X","other":{"a":[null]}}]}`
	good := []byte(`{"parameters":{"priority":2,"timeout":1500,"other":{"x":[1]}},"unknown":[{}],` + in)
	a, err := decode(good, len(good))
	if err != nil || a.Priority != 2 || a.Timeout.Microseconds() != 1500 || !slices.Equal(a.Inputs[0].Data.([]int8), []int8{1}) {
		t.Errorf("%+v %v", a, err)
	}
	for _, wrong := range []string{
		`{"parameters":{"priority":-1},` + in, `{"parameters":{"timeout":1.5},` + in, `{"parameters":{"timeout":"1"},` + in, `{"parameters":{"binary_data_output":1},` + in,
		`{"id":"a","id":"b",` + in, `{"id":7,` + in, `{` + in + `x`, `{"a":01,` + in, "{\"a\":\"\x01\"," + in, `{"a":"\x",` + in,
		`{"a":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `,` + in, `{"a":` + strings.Repeat(`{"a":`, 1<<20),
		`{"inputs":[{"name":"X","datatype":"INT8","shape":[` + strings.Repeat("1,", 1<<20) + `1],"data":` + strings.Repeat("[", 1<<20),
		`{"inputs":[{"name":"X","datatype":"INT8","shape":[],"data":[[1]]}]}`, `{"inputs":[{"name":"X","datatype":"INT8","shape":[0],"data":[[]]}]}`,
		`{"inputs":[{"name":"X","datatype":"INT8","shape":[2],"data":[1,]}]}`, `{"inputs":[{"name":"X","datatype":"INT8","shape":[1.5],"data":[1]}]}`,
		`{"inputs":[{"name":"X","datatype":"INT8","shape":[1],"data":[1]}],"outputs":[{"name":"y"},{"name":"y"}]}`,
		`{"inputs":[` + strings.Repeat(`{"name":"X","datatype":"INT8","shape":[1],"data":[1]},`, MaxTensors) + `{}]}`,
		`{"inputs":[{"name":"X","datatype":"INT8","shape":[1],"data":[1]}],"outputs":[` + strings.Repeat(`{"name":"y"},`, MaxTensors) + `{}]}`,
		"{\"id\":\"\xff\"," + in, ``, `{`, `[]`, `null`,
	} {
		if _, err := decode([]byte(wrong), len(wrong)); !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.TooLarge) {
			t.Errorf("%.100s: %v", wrong, err)
		}
	}
}

// TestCompressed: gzip and deflate both ways, and what only says that it is.
func TestCompressed(t *testing.T) {
	srv := server(t)
	rows := 1000
	plain := []byte(`{"inputs":[{"name":"X","shape":[` + strconv.Itoa(rows) + `,2],"datatype":"FP32","data":[` + strings.TrimSuffix(strings.Repeat("4,3,", rows), ",") + `]}],"outputs":[{"name":"label"}]}`)
	pack := map[string]func(io.Writer) io.WriteCloser{
		"gzip":    func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"deflate": func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
	}
	unpack := map[string]func(io.Reader) (io.ReadCloser, error){
		"gzip":    func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) },
		"deflate": zlib.NewReader,
	}
	packed := func(kind string, b []byte) []byte {
		var out bytes.Buffer
		w := pack[kind](&out)
		_, _ = w.Write(b)
		_ = w.Close()
		return out.Bytes()
	}
	_, want := post(t, srv, "/v2/models/delay/infer", plain)
	for kind := range pack {
		for range 2 { // the second time with what the first has left
			resp, got := post(t, srv, "/v2/models/delay/infer", packed(kind, plain), "Content-Encoding", kind, "Accept-Encoding", "br, "+kind+";q=0.5")
			if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Encoding") != kind || len(got) >= len(want) {
				t.Fatalf("%s: %d %q, %d bytes", kind, resp.StatusCode, resp.Header.Get("Content-Encoding"), len(got))
			}
			r, err := unpack[kind](bytes.NewReader(got))
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(r); err != nil || !bytes.Equal(b, want) {
				t.Errorf("%s: %v, %.100q", kind, err, b)
			}
			good := packed(kind, plain)
			for what, body := range map[string][]byte{"plain": plain, "cut": good[:len(good)-5], "nothing": nil} {
				if resp, got := post(t, srv, "/v2/models/delay/infer", body, "Content-Encoding", kind); resp.StatusCode != http.StatusBadRequest {
					t.Errorf("%s, %s: %d %s", kind, what, resp.StatusCode, got)
				}
			}
		}
		bomb := packed(kind, make([]byte, MaxBody+1))
		if resp, got := post(t, srv, "/v2/models/delay/infer", bomb, "Content-Encoding", kind); resp.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(string(got), "more than") {
			t.Errorf("%s: a bomb of %d bytes: %d %s", kind, len(bomb), resp.StatusCode, got)
		}
	}
	if resp, _ := post(t, srv, "/v2/models/delay/infer", plain, "Content-Encoding", "br"); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("br: %d", resp.StatusCode)
	}
	for _, kind := range []string{"GZIP", "Gzip", "x-gzip"} {
		if resp, got := post(t, srv, "/v2/models/delay/infer", packed("gzip", plain), "Content-Encoding", kind); resp.StatusCode != http.StatusOK || !bytes.Equal(got, want) {
			t.Errorf("%s: %d %.100q", kind, resp.StatusCode, got)
		}
	}
	for _, refused := range []string{"gzip;q=0.000", "gzip;q=0.00, identity", "br"} {
		if resp, got := post(t, srv, "/v2/models/delay/infer", plain, "Accept-Encoding", refused); resp.Header.Get("Content-Encoding") != "" || !bytes.Equal(got, want) {
			t.Errorf("%s: in %q", refused, resp.Header.Get("Content-Encoding"))
		}
	}
}

// TestRaw: every datatype goes to bytes and back, from aligned and unaligned
// memory, and bytes that do not add up are refused.
func TestRaw(t *testing.T) {
	for _, c := range []struct {
		datatype runtime.Datatype
		data     any
		raw      string
	}{
		{runtime.Bool, []bool{true, false}, "\x01\x00"},
		{runtime.Uint8, []uint8{1, 255}, "\x01\xff"},
		{runtime.Uint16, []uint16{1, 0xff00}, "\x01\x00\x00\xff"},
		{runtime.Uint32, []uint32{1, 0xff000000}, "\x01\x00\x00\x00\x00\x00\x00\xff"},
		{runtime.Uint64, []uint64{1, 2}, "\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00"},
		{runtime.Int8, []int8{1, -1}, "\x01\xff"},
		{runtime.Int16, []int16{1, -2}, "\x01\x00\xfe\xff"},
		{runtime.Int32, []int32{1, -2}, "\x01\x00\x00\x00\xfe\xff\xff\xff"},
		{runtime.Int64, []int64{1, -2}, "\x01\x00\x00\x00\x00\x00\x00\x00\xfe\xff\xff\xff\xff\xff\xff\xff"},
		{runtime.FP16, []uint16{0x3c00, 0x8000}, "\x00\x3c\x00\x80"},
		{runtime.BF16, []uint16{0x3f80, 0x8000}, "\x80\x3f\x00\x80"},
		{runtime.FP32, []float32{1, -2}, "\x00\x00\x80\x3f\x00\x00\x00\xc0"},
		{runtime.FP64, []float64{1, -2}, "\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x00\x00\x00\x00\x00\x00\xc0"},
		{runtime.Bytes, []string{"a\x00\xff", ""}, "\x03\x00\x00\x00a\x00\xff\x00\x00\x00\x00"},
	} {
		for gap := range 9 {
			raw := append(make([]byte, gap), c.raw...)[gap:]
			in := runtime.Tensor{Name: "X", Datatype: c.datatype, Shape: []int64{2}}
			if err := inference.FromRaw(&in, raw); err != nil {
				t.Fatalf("%s: %v", c.datatype, err)
			}
			if diff := cmp.Diff(c.data, in.Data); diff != "" {
				t.Errorf("%s: %s", c.datatype, diff)
			}
			if out, err := inference.ToRaw(in); err != nil || string(out) != c.raw {
				t.Errorf("%s: %q %v", c.datatype, out, err)
			}
			for _, wrong := range [][]byte{raw[:len(raw)-1], append(slices.Clone(raw), 0), nil} {
				if err := inference.FromRaw(&in, wrong); !fault.Is(err, fault.Invalid) {
					t.Errorf("%s: %q: %v", c.datatype, wrong, err)
				}
			}
		}
		none := runtime.Tensor{Datatype: c.datatype, Shape: []int64{0, 3}}
		if err := inference.FromRaw(&none, nil); err != nil || none.Data == nil {
			t.Errorf("%s without elements: %#v %v", c.datatype, none.Data, err)
		}
	}
	for _, wrong := range []string{"\xff\xff\xff\xff", "\x05\x00\x00\x00a", "\x00\x00\x00", "\x00\x00\x00\x00\x00"} {
		in := runtime.Tensor{Name: "s", Datatype: runtime.Bytes, Shape: []int64{1}}
		if err := inference.FromRaw(&in, []byte(wrong)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	in := runtime.Tensor{Datatype: runtime.Bool, Shape: []int64{3}}
	if err := inference.FromRaw(&in, []byte{0, 2, 255}); err != nil || !slices.Equal(in.Data.([]bool), []bool{false, true, true}) {
		t.Errorf("%v %v", in.Data, err)
	}
}

// TestOpenAPI: the example of a model's document is a request that it takes.
func TestOpenAPI(t *testing.T) {
	srv := server(t)
	for _, path := range []string{"/v2/models/delay", "/v2/models/delay/versions/3"} {
		resp, err := srv.Client().Get(srv.URL + path + "/openapi.json")
		if err != nil {
			t.Fatal(err)
		}
		var doc struct {
			Paths map[string]map[string]struct {
				RequestBody struct {
					Content map[string]struct{ Example json.RawMessage }
				}
			}
		}
		err = json.NewDecoder(resp.Body).Decode(&doc)
		_ = resp.Body.Close()
		example := doc.Paths[path+"/infer"]["post"].RequestBody.Content["application/json"].Example
		if resp, got := post(t, srv, path+"/infer", example); err != nil || len(doc.Paths) != 3 || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %v %d %s %s", path, err, resp.StatusCode, example, got)
		}
	}
	half := document(serving.Description{Name: "half", Versions: []int64{1}, Metadata: runtime.Metadata{Inputs: []runtime.Spec{{Name: "x", Datatype: runtime.FP16}}}}, "/v2/models/half")
	if b, err := json.Marshal(half); err != nil || strings.Contains(string(b), "example") {
		t.Errorf("%s %v", b, err)
	}
}

// TestNoCopy: numbers stay where they were read.
func TestNoCopy(t *testing.T) {
	var one uint16 = 1
	if *(*byte)(unsafe.Pointer(&one)) != 1 {
		t.Fatal("raw tensors are little-endian, and this machine is not")
	}
	const head = `{"inputs":[{"name":"X","shape":[2],"datatype":"FP64","parameters":{"binary_data_size":16}}]}`
	for pad := range 8 {
		text := head + strings.Repeat(" ", pad)
		r := httptest.NewRequest(http.MethodPost, "/", io.MultiReader(strings.NewReader(text), bytes.NewReader(make([]byte, 16))))
		body, err := receive(r, len(text), MaxBody, new(held).share(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		a, err := decode(body, len(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := unsafe.Pointer(unsafe.SliceData(a.Inputs[0].Data.([]float64))); got != unsafe.Pointer(&body[len(text)]) {
			t.Errorf("%d bytes of JSON: copied", len(text))
		}
		raw, err := inference.ToRaw(a.Inputs[0])
		if err != nil || unsafe.Pointer(unsafe.SliceData(raw)) != unsafe.Pointer(&body[len(text)]) {
			t.Errorf("answered from another place: %v", err)
		}
	}
}

// TestClasses: ties, NaN, halves, more classes than there are, wrong tensors.
func TestClasses(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		t     runtime.Tensor
		n     int
		shape []int64
		want  []string
	}{
		{runtime.Tensor{Datatype: runtime.FP32, Shape: []int64{2, 3}, Data: []float32{.1, .7, .2, nan, 1, 1}}, 2, []int64{2, 2}, []string{"0.700000:1", "0.200000:2", "1.000000:1", "1.000000:2"}},
		{runtime.Tensor{Datatype: runtime.FP32, Shape: []int64{2}, Data: []float32{nan, -1}}, 9, []int64{2}, []string{"-1.000000:1", "nan:0"}},
		{runtime.Tensor{Datatype: runtime.Int64, Shape: []int64{1, 2, 2}, Data: []int64{3, 9, -4, 9}}, 3, []int64{1, 3}, []string{"9:1", "9:3", "3:0"}},
		{runtime.Tensor{Datatype: runtime.FP16, Shape: []int64{4}, Data: []uint16{0x3c00, 0x0001, 0xc000, 0x7c00}}, 4, []int64{4}, []string{"inf:3", "1.000000:0", "0.000000:1", "-2.000000:2"}},
		{runtime.Tensor{Datatype: runtime.BF16, Shape: []int64{2}, Data: []uint16{0x3f80, 0x4000}}, 1, []int64{1}, []string{"2.000000:1"}},
		{runtime.Tensor{Datatype: runtime.Uint16, Shape: []int64{2}, Data: []uint16{0x3f80, 0x4000}}, 1, []int64{1}, []string{"16384:1"}},
		{runtime.Tensor{Datatype: runtime.FP64, Shape: []int64{0, 3}, Data: []float64{}}, 2, []int64{0, 0}, []string{}},
	} {
		got, err := classified(t.Context(), c.t, c.n)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(runtime.Tensor{Datatype: runtime.Bytes, Shape: c.shape, Data: c.want}, got); diff != "" {
			t.Errorf("%+v\n%s", c.t, diff)
		}
	}
	for _, wrong := range []any{[]bool{true}, []string{"a"}} {
		if _, err := classified(t.Context(), runtime.Tensor{Name: "y", Shape: []int64{1}, Data: wrong}, 1); !fault.Is(err, fault.Invalid) {
			t.Errorf("%T: %v", wrong, err)
		}
	}
}

// NaN and infinities follow one rule in requests and answers.
func TestNumbersThatAreNone(t *testing.T) {
	request := func(kind, data string) (*ask, error) {
		body := []byte(`{"inputs":[{"name":"x","shape":[3],"datatype":"` + kind + `","data":[` + data + `]}]}`)
		return decode(body, len(body))
	}
	for _, kind := range []string{"FP32", "FP64"} {
		a, err := request(kind, `null,"NaN",NaN`)
		if err != nil {
			t.Fatal(err)
		}
		out, _, err := a.encode(nil, "1", "", a.Inputs)
		if err != nil || !strings.Contains(string(out), `"data":[null,null,null]`) {
			t.Errorf("%s: %s, %v", kind, out, err)
		}
		for _, word := range []string{"Infinity", "-Infinity", `"Infinity"`, `"-Infinity"`} {
			if _, err := request(kind, "1,"+word+",2"); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "element 1") || !strings.Contains(err.Error(), "binary data") {
				t.Errorf("%s %s: %v", kind, word, err)
			}
		}
		for _, word := range []string{"nan", "inf", "Inf", "+1", `"1"`, "1e999", "-1e999", "-NaN"} {
			if _, err := request(kind, "1,"+word+",2"); !fault.Is(err, fault.Invalid) {
				t.Errorf("%s %s: %v", kind, word, err)
			}
		}
	}
	if _, err := request("FP32", "1,1e300,2"); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "element 1") {
		t.Errorf("1e300 as FP32: %v", err)
	}
	far := runtime.Tensor{Name: "y", Shape: []int64{2}, Datatype: runtime.FP32, Data: []float32{1, float32(math.Inf(-1))}}
	if _, _, err := (&ask{}).encode(nil, "1", "", []runtime.Tensor{far}); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `output "y": element 1 is an infinity`) {
		t.Error(err)
	}
	if _, raw, err := (&ask{binary: true}).encode(nil, "1", "", []runtime.Tensor{far}); err != nil || len(raw) != 1 || len(raw[0]) != 8 {
		t.Errorf("as bytes: %v, %v", raw, err)
	}
}

// Texts that are no characters, and members that come twice, are refused wherever they are.
func TestStrictRequests(t *testing.T) {
	const x = `{"name":"x","shape":[1],"datatype":"BYTES","data":["a"]}`
	for body, want := range map[string]string{
		`{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":["\ud800"]}]}`:               "element 0",
		`{"inputs":[{"name":"x\udc00","shape":[1],"datatype":"BYTES","data":["a"]}]}`:              "whole characters",
		`{"other":1,"inputs":[` + x + `],"\u006fther":2}`:                                          `duplicate field "other"`,
		`{"inputs":[{"own":1,"own":1,` + x[1:] + `]}`:                                              `duplicate field "own"`,
		`{"inputs":[` + x + `],"other":{"a":[{"b":1,"b":2}]}}`:                                     `duplicate key "b"`,
		`{"inputs":[` + x + `],"outputs":[{"name":"y","own":1,"own":1}]}`:                          `duplicate field "own"`,
		`{"Inputs":[` + x + `]}`:                                                                   "no inputs",
		"{\"inputs\":[{\"name\":\"x\",\"shape\":[1],\"datatype\":\"BYTES\",\"data\":[\"\xe9\"]}]}": "not UTF-8",
	} {
		if _, err := decode([]byte(body), len(body)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
}

// FuzzDecode: what is taken is what package jsondoc takes, and NaN, with the numbers of
// encoding/json, and its answer is JSON.
func FuzzDecode(f *testing.F) {
	add := func(head, raw string) { f.Add([]byte(head+raw), len(head)) }
	add(`{"id":"1","inputs":[{"name":"X","shape":[2,2],"datatype":"FP32","data":[[1,2],[3,4]]}],"outputs":[{"name":"y"}]}`, "")
	add(`{"inputs":[{"name":"X","shape":[1],"datatype":"BYTES","data":["a\u0000\"b"]}]}`, "")
	add(`{"inputs":[{"name":"X","shape":[0],"datatype":"BOOL","data":[]}],"parameters":{"x":-1.5e3,"y":[{}]}}`, "")
	add(`{"inputs":[{"name":"X","shape":[2],"datatype":"BYTES","parameters":{"binary_data_size":9}},{"name":"Y","shape":[1],"datatype":"FP16","parameters":{"binary_data_size":2}}]}`, "\x01\x00\x00\x00a\x00\x00\x00\x00\x00\x3c")
	f.Fuzz(func(t *testing.T, body []byte, head int) {
		if head < 0 || head > len(body) {
			head = len(body)
		}
		text := bytes.Clone(body[:head])
		asked, err := decode(body, head)
		if err != nil {
			if k := fault.KindOf(err); k != fault.Invalid && k != fault.TooLarge && k != fault.Unsupported {
				t.Errorf("kind %s: %v", k, err)
			}
			return
		}
		if err := jsondoc.Check(bytes.ReplaceAll(text, []byte("NaN"), []byte("null"))); err != nil {
			t.Errorf("taken, and %v: %q", err, text)
		}
		var same struct {
			Inputs []struct{ Data json.RawMessage }
		}
		if err := json.Unmarshal(text, &same); err == nil && len(same.Inputs) == len(asked.Inputs) {
			for i, in := range asked.Inputs {
				var flat []float64
				if got, ok := in.Data.([]float64); ok && json.Unmarshal(same.Inputs[i].Data, &flat) == nil && len(flat) == len(got) {
					for j := range got {
						if got[j] != flat[j] && !math.IsNaN(got[j]) {
							t.Errorf("input %d, element %d: %v and %v", i, j, got[j], flat[j])
						}
					}
				}
			}
		}
		for _, in := range asked.Inputs {
			if n, err := runtime.Elements(in.Shape); err != nil || n != lengthOf(in.Data) {
				t.Errorf("%v has %d elements: %v", in.Shape, lengthOf(in.Data), err)
			}
		}
		asked.outputs = nil
		for _, asked.binary = range []bool{false, true} {
			out, _, err := asked.encode(nil, "1", asked.ID, asked.Inputs)
			if err != nil && fault.KindOf(err) != fault.Invalid || err == nil && !json.Valid(out) {
				t.Errorf("%s: %v", out, err)
			}
		}
	})
}

func lengthOf(data any) int {
	switch d := data.(type) {
	case []bool:
		return len(d)
	case []string:
		return len(d)
	}
	b, err := inference.ToRaw(runtime.Tensor{Data: data})
	if err != nil {
		return -1
	}
	switch data.(type) {
	case []uint16, []int16:
		return len(b) / 2
	case []uint32, []int32, []float32:
		return len(b) / 4
	case []uint64, []int64, []float64:
		return len(b) / 8
	}
	return len(b)
}

// FuzzScan: the scanner takes a value exactly when package jsondoc does.
func FuzzScan(f *testing.F) {
	for _, s := range []string{`{"a":[1,-0.5e+7,"\u00e9\n",true,null]}`, `[`, `"\ud800"`, `01`, `1.`, `-`, `tru`, "\"\x1f\"", ` [ ] `, `{"a":1,}`, `1e999`, `[{"a":1,"\u0061":2}]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if !utf8.Valid(b) { // which is seen before
			return
		}
		s := scanner{buf: b}
		s.skip()
		s.end()
		if valid := jsondoc.Check(b) == nil; valid != (s.err == nil) && !strings.Contains(errorText(s.err), "nests deeper") {
			t.Errorf("%q: valid %t, and %v", b, valid, s.err)
		}
	})
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// FuzzRaw: aligned and unaligned bytes make the same tensor, and it the same bytes.
func FuzzRaw(f *testing.F) {
	for i := range runtime.Datatypes {
		f.Add([]byte("\x01\x00\x00\x00a\x00\x00\x00"), uint8(i), int64(2), uint8(3))
	}
	f.Fuzz(func(t *testing.T, raw []byte, datatype uint8, n int64, gap uint8) {
		one := runtime.Tensor{Datatype: runtime.Datatypes[int(datatype)%len(runtime.Datatypes)], Shape: []int64{n}}
		other := one
		shifted := append(make([]byte, gap), raw...)[gap:]
		err, again := inference.FromRaw(&one, bytes.Clone(raw)), inference.FromRaw(&other, shifted)
		if (err == nil) != (again == nil) {
			t.Fatalf("%v and %v", err, again)
		}
		if err != nil {
			return
		}
		a, err := inference.ToRaw(one)
		b, again := inference.ToRaw(other)
		if err != nil || again != nil || !bytes.Equal(a, b) {
			t.Fatalf("%q %v and %q %v", a, err, b, again)
		}
		if one.Datatype != runtime.Bool && !bytes.Equal(a, raw) {
			t.Errorf("%q came back as %q", raw, a)
		}
	})
}

const iris = `{"inputs":[{"name":"X","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}`

// BenchmarkIris is the protocol's share of a small request: in, and its answer.
func BenchmarkIris(b *testing.B) {
	out := []runtime.Tensor{
		{Name: "label", Datatype: runtime.Int64, Shape: []int64{1}, Data: []int64{2}},
		{Name: "probabilities", Datatype: runtime.FP32, Shape: []int64{1, 3}, Data: []float32{.01, .04, .95}},
	}
	run := func(name, head, raw string) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			text := []byte(head + raw)
			var buffer []byte
			for b.Loop() {
				a, err := decode(text, len(head))
				if err != nil {
					b.Fatal(err)
				}
				if buffer, _, err = a.encode(buffer[:0], "1", "prd_01J", out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("json", iris, "")
	run("binary", `{"parameters":{"binary_data_output":true},"inputs":[{"name":"X","shape":[1,4],"datatype":"FP32","parameters":{"binary_data_size":16}}]}`, string(floats(5.1, 3.5, 1.4, .2)))
}

func BenchmarkDecode(b *testing.B) {
	body := []byte(`{"inputs":[{"name":"X","shape":[50,20],"datatype":"FP32","data":[` + strings.Repeat("1.25,", 999) + `1.25]}]}`)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := decode(body, len(body)); err != nil {
			b.Fatal(err)
		}
	}
}

// TestAnnounced: who announces a large body and sends none of it costs little memory.
func TestAnnounced(t *testing.T) {
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	s := new(held).share(t.Context())
	_, err := readAll(iotest.ErrReader(io.ErrUnexpectedEOF), MaxBody, 0, MaxBody, s)
	goruntime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; !fault.Is(broken(err), fault.Invalid) || taken > 4*trusted || s.n > 2*start {
		t.Errorf("%d bytes were taken: %v", taken, err)
	}
	if _, err := readAll(strings.NewReader(""), MaxBody+1, 0, MaxBody, s); !fault.Is(err, fault.TooLarge) {
		t.Error(err)
	}
	s.free()
	for _, n := range []int{0, 1, start, start + 1, trusted - 1, trusted, trusted + 1, 3*trusted + 5} {
		for _, size := range []int64{-1, int64(n), 1} { // what is announced may be wrong
			b, err := readAll(iotest.HalfReader(bytes.NewReader(make([]byte, n))), size, 3, MaxBody, s)
			if err != nil || len(b) != n+3 || s.n != int64(cap(b)) {
				t.Errorf("%d bytes, announced as %d: %d, %d held, %v", n, size, len(b), s.n, err)
			}
			s.free()
		}
	}
}
