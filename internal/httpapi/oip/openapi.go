package oip

import (
	"math"
	"net/http"
	"slices"

	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

type object = map[string]any

// describe answers with an OpenAPI document of one model: its tensors, and a request
// that it takes.
func (a *API) describe(w http.ResponseWriter, r *http.Request) {
	d, err := a.find(r)
	if err != nil {
		a.Refuse(w, r, err)
		return
	}
	path := "/v2/models/" + d.Name
	if v := r.PathValue("version"); v != "" {
		path += "/versions/" + v
	}
	write(w, http.StatusOK, document(d, path))
}

func document(d serving.Description, path string) object {
	refusals := object{"description": "Error message", "content": object{"application/json": object{"schema": ref("Error")}}}
	get := func(summary string) object {
		return object{"get": object{"summary": summary, "responses": object{"200": object{"description": "OK"}, "default": refusals}}}
	}
	ask := object{"schema": ref("Request")}
	if example, ok := exampleOf(d); ok {
		ask["example"] = example
	}
	return object{
		"openapi":  "3.1.0",
		"info":     object{"title": "Model " + d.Name, "version": versions(d)[0], "description": "By the Open Inference Protocol, version 2."},
		"security": []object{{"token": []string{}}},
		"paths": object{
			path:            get("Get the model's metadata"),
			path + "/ready": get("Check that the model is ready"),
			path + "/infer": object{"post": object{
				"summary":     "Request predictions",
				"requestBody": object{"required": true, "content": object{"application/json": ask, "application/octet-stream": object{}}},
				"responses": object{
					"200":     object{"description": "The predictions", "content": object{"application/json": object{"schema": ref("Answer")}, "application/octet-stream": object{}}},
					"default": refusals,
				},
			}},
		},
		"components": object{
			"securitySchemes": object{"token": object{"type": "http", "scheme": "bearer"}},
			"schemas": object{
				"Request": object{
					"type": "object", "required": []string{"inputs"},
					"properties": object{
						"id":         object{"type": "string", "description": "Returned in the response"},
						"parameters": object{"type": "object"},
						"inputs":     tensors(d.Inputs, d.Optional, true),
						"outputs": object{"type": "array", "description": "Requested outputs; default: all", "items": object{
							"type": "object", "required": []string{"name"},
							"properties": object{"name": object{"enum": namesOf(d.Outputs)}, "parameters": object{"type": "object"}},
						}},
					},
				},
				"Answer": object{
					"type": "object", "required": []string{"model_name", "model_version", "outputs"},
					"properties": object{
						"model_name": object{"const": d.Name}, "model_version": object{"type": "string"}, "id": object{"type": "string"},
						"outputs": tensors(d.Outputs, nil, false),
					},
				},
				"Error": object{"type": "object", "required": []string{"error"}, "properties": object{"error": object{"type": "string"}}},
			},
		},
	}
}

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

func namesOf(specs []runtime.Spec) []string {
	out := make([]string, len(specs))
	for i, s := range specs {
		out[i] = s.Name
	}
	return out
}

// tensors is the schema of a list of them; whole: each must be there, but for the optional ones.
func tensors(specs, optional []runtime.Spec, whole bool) object {
	each := make([]object, len(specs)+len(optional))
	for i, s := range slices.Concat(specs, optional) {
		shape := object{"type": "array", "items": object{"type": "integer", "minimum": 0}}
		if s.Shape != nil {
			dims := make([]object, len(s.Shape))
			for j, d := range s.Shape {
				if dims[j] = (object{"const": d}); d < 0 {
					dims[j] = object{"type": "integer", "minimum": 0}
				}
			}
			shape["prefixItems"], shape["minItems"], shape["maxItems"] = dims, len(dims), len(dims)
		}
		properties := object{
			"name": object{"const": s.Name}, "datatype": object{"const": s.Datatype}, "shape": shape, "parameters": object{"type": "object"},
		}
		if item, ok := element(s.Datatype); ok {
			properties["data"] = object{"type": "array", "description": "Flat in row-major order, or nested as the shape", "items": object{"anyOf": []object{item, {"type": "array"}}}}
		}
		each[i] = object{"type": "object", "required": []string{"name", "datatype", "shape"}, "properties": properties}
	}
	out := object{"type": "array", "items": object{"oneOf": each}}
	if whole {
		out["minItems"], out["maxItems"] = len(specs), len(each)
	}
	return out
}

// element is the schema of one, where the datatype has a form in JSON.
func element(d runtime.Datatype) (object, bool) {
	integer := func(low, high any) (object, bool) {
		return object{"type": "integer", "minimum": low, "maximum": high}, true
	}
	switch d {
	case runtime.Bool:
		return object{"type": "boolean"}, true
	case runtime.Bytes:
		return object{"type": "string"}, true
	case runtime.FP32, runtime.FP64:
		return object{"type": []string{"number", "null"}, "description": "null is NaN"}, true
	case runtime.Uint8:
		return integer(0, math.MaxUint8)
	case runtime.Uint16:
		return integer(0, math.MaxUint16)
	case runtime.Uint32:
		return integer(0, math.MaxUint32)
	case runtime.Uint64:
		return integer(0, uint64(math.MaxUint64))
	case runtime.Int8:
		return integer(math.MinInt8, math.MaxInt8)
	case runtime.Int16:
		return integer(math.MinInt16, math.MaxInt16)
	case runtime.Int32:
		return integer(math.MinInt32, math.MaxInt32)
	case runtime.Int64:
		return integer(math.MinInt64, math.MaxInt64)
	default:
		return nil, false
	}
}

// maxExample bounds the elements of a tensor in an example.
const maxExample = 64

// exampleOf is a request that the model takes: one of each dimension that varies. false
// when a tensor is too large to show, or has no form in JSON.
func exampleOf(d serving.Description) (object, bool) {
	inputs := make([]object, len(d.Inputs))
	for i, s := range d.Inputs {
		shape := slices.Clone(s.Shape)
		for j := range shape {
			if shape[j] < 0 {
				shape[j] = 1
			}
		}
		if shape == nil {
			shape = []int64{1}
		}
		n, err := runtime.Elements(shape)
		if _, ok := element(s.Datatype); err != nil || !ok || n > maxExample {
			return nil, false
		}
		var one any = 0
		switch s.Datatype { //nolint:exhaustive // the others are numbers
		case runtime.Bool:
			one = false
		case runtime.Bytes:
			one = "text"
		}
		data := make([]any, n)
		for j := range data {
			data[j] = one
		}
		inputs[i] = object{"name": s.Name, "datatype": s.Datatype, "shape": shape, "data": data}
	}
	return object{"inputs": inputs}, true
}
