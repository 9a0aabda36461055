package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
)

// dialect is how a kind of server is asked for an input, in JSON or in bytes: by
// the Open Inference Protocol, or as its documentation says.
type dialect func(name string, x input, raw bool) (path, header string, body []byte)

// oip is the Open Inference Protocol, with binary tensors as tritonclient sends them.
func oip(name string, x input, raw bool) (path, header string, body []byte) {
	shape, _ := json.Marshal(x.of.shape(x.rows))
	path = "/v2/models/" + name + "/infer"
	if !raw {
		body = fmt.Appendf(nil, `{"inputs":[{"name":"x","shape":%s,"datatype":%q,"data":[`, shape, x.of.Datatype)
		body = append(append(body, x.flat()...), `]}]}`...)
		return path, "Content-Type: application/json\r\n", body
	}
	tensor := x.bytes()
	head := fmt.Appendf(nil, `{"inputs":[{"name":"x","shape":%s,"datatype":%q,"parameters":{"binary_data_size":%d}}],`+
		`"outputs":[{"name":"y","parameters":{"binary_data":true}}]}`, shape, x.of.Datatype, len(tensor))
	header = fmt.Sprintf("Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n", len(head))
	return path, header, append(head, tensor...)
}

// nested is {"x": rows}, or the bytes alone, at paths that say which.
func nested(name string, x input, raw bool) (path, header string, body []byte) {
	if raw {
		return "/raw/" + name, "Content-Type: application/octet-stream\r\n", x.bytes()
	}
	return "/json/" + name, "Content-Type: application/json\r\n", append(append([]byte(`{"x":`), x.nested()...), '}')
}

// method is {"x": rows} to a method of the model's name.
func method(name string, x input, _ bool) (path, header string, body []byte) {
	_, header, body = nested(name, x, false)
	return "/" + name, header, body
}

// request is a whole request of HTTP/1.1.
func request(address, path, header string, body []byte) []byte {
	text := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n%s\r\n", path, address, len(body), header)
	return append(text, body...)
}

// numbers are those of the output, in whichever form a server answered.
func numbers(header http.Header, body []byte) ([]float32, error) {
	if length := header.Get("Inference-Header-Content-Length"); length != "" || header.Get("Content-Type") == "application/octet-stream" {
		skip, _ := strconv.Atoi(length)
		if skip > len(body) || (len(body)-skip)%4 != 0 {
			return nil, fmt.Errorf("%d bytes after a header of %d are no tensor", len(body)-skip, skip)
		}
		var out []float32
		for b := body[skip:]; len(b) > 0; b = b[4:] {
			out = append(out, math.Float32frombits(binary.LittleEndian.Uint32(b)))
		}
		return out, nil
	}
	var answer any
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	if members, ok := answer.(map[string]any); ok {
		answer = members["y"]
		if outputs, ok := members["outputs"].([]any); ok && len(outputs) == 1 {
			answer = outputs[0].(map[string]any)["data"]
		}
	}
	var out []float32
	var flatten func(any)
	flatten = func(v any) {
		switch v := v.(type) {
		case float64:
			out = append(out, float32(v))
		case []any:
			for _, e := range v {
				flatten(e)
			}
		}
	}
	flatten(answer)
	return out, nil
}

// same refuses an answer that is not that of the model.
func same(got, want []float32) error {
	if len(got) != len(want) || len(want) == 0 {
		return fmt.Errorf("%d numbers instead of %d", len(got), len(want))
	}
	largest := float32(0)
	for _, v := range want {
		largest = max(largest, float32(math.Abs(float64(v))))
	}
	for i := range want {
		if off := math.Abs(float64(got[i] - want[i])); !(off <= 1e-5*float64(largest)) {
			return fmt.Errorf("number %d is %g and not %g", i, got[i], want[i])
		}
	}
	return nil
}
