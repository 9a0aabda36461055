package oip

import (
	"context"
	"math"
	"net/http"
	"strings"

	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/serving/inference"
	"github.com/falaj-ml/falaj/internal/serving/runtime"
)

// typeName is Triton's name of a datatype in configurations.
func typeName(d runtime.Datatype) string {
	if d == runtime.Bytes {
		return "TYPE_STRING"
	}
	return "TYPE_" + string(d)
}

// backend is Triton's name of what runs a model: onnxruntime of onnxruntime_onnx.
func backend(d serving.Description) string {
	name, _, _ := strings.Cut(d.Platform, "_")
	return name
}

// dims are a tensor's in a configuration: without that of the rows, which requests
// share. reshape says that nothing is left of them, where Triton has a 1.
func dims(s spec, batched bool) (dims []int64, reshape *inference.ModelTensorReshape) {
	switch {
	case !batched || len(s.Shape) == 0:
		return s.Shape, nil
	case len(s.Shape) == 1:
		return []int64{1}, &inference.ModelTensorReshape{}
	}
	return s.Shape[1:], nil
}

func configOf(d serving.Description) *inference.ModelConfig {
	out := &inference.ModelConfig{
		Name: d.Name, Platform: d.Platform, Backend: backend(d),
		VersionPolicy: &inference.ModelVersionPolicy{PolicyChoice: &inference.ModelVersionPolicy_Specific_{Specific: &inference.ModelVersionPolicy_Specific{Versions: d.Versions}}},
	}
	kind := func(s spec) inference.DataType {
		return inference.DataType(inference.DataType_value[typeName(s.Datatype)])
	}
	for _, s := range inputsOf(d.Metadata) {
		optional := s.Parameters != nil
		dims, reshape := dims(s, d.Batched && !optional) // which is not batched
		out.Input = append(out.Input, &inference.ModelInput{Name: s.Name, DataType: kind(s), Dims: dims, Reshape: reshape, Optional: optional})
	}
	for _, s := range specs(d.Outputs) {
		dims, reshape := dims(s, d.Batched)
		out.Output = append(out.Output, &inference.ModelOutput{Name: s.Name, DataType: kind(s), Dims: dims, Reshape: reshape})
	}
	if q := d.Queue; d.Batched {
		out.MaxBatchSize = int32(min(q.MaxRows, math.MaxInt32)) //nolint:gosec // bounded
		out.DynamicBatching = &inference.ModelDynamicBatching{
			MaxQueueDelayMicroseconds: uint64(q.MaxDelay.Microseconds()), //nolint:gosec // from 0
			DefaultQueuePolicy: &inference.ModelQueuePolicy{
				DefaultTimeoutMicroseconds: uint64(q.Timeout.Microseconds()), //nolint:gosec // from 0
				AllowTimeoutOverride:       true,
				MaxQueueSize:               uint32(min(q.MaxWaiting, math.MaxInt32)), //nolint:gosec // bounded
			},
		}
		if q.Priorities > 1 {
			levels := uint64(q.Priorities)
			out.DynamicBatching.PriorityLevels, out.DynamicBatching.DefaultPriorityLevel = levels, levels
		}
	}
	return out
}

func (a *API) callConfig(ctx context.Context, m *inference.ModelConfigRequest) (*inference.ModelConfigResponse, error) {
	d, err := a.Serving.Metadata(ctx, callOf(ctx).project, m.GetName(), m.GetVersion())
	if err != nil {
		return nil, err
	}
	return &inference.ModelConfigResponse{Config: configOf(d)}, nil
}

func (a *API) config(w http.ResponseWriter, r *http.Request) {
	d, err := a.find(r)
	c := configOf(d)
	tensor := func(name string, kind inference.DataType, dims []int64, reshape *inference.ModelTensorReshape) map[string]any {
		t := map[string]any{"name": name, "data_type": kind.String(), "dims": dims}
		if reshape != nil {
			t["reshape"] = map[string]any{"shape": []int64{}}
		}
		return t
	}
	inputs, outputs := make([]map[string]any, len(c.GetInput())), make([]map[string]any, len(c.GetOutput()))
	for i, t := range c.GetInput() {
		inputs[i] = tensor(t.GetName(), t.GetDataType(), t.GetDims(), t.GetReshape())
		if t.GetOptional() {
			inputs[i]["optional"] = true
		}
	}
	for i, t := range c.GetOutput() {
		outputs[i] = tensor(t.GetName(), t.GetDataType(), t.GetDims(), t.GetReshape())
	}
	out := map[string]any{
		"name": c.GetName(), "platform": c.GetPlatform(), "backend": c.GetBackend(), "max_batch_size": c.GetMaxBatchSize(),
		"version_policy": map[string]any{"specific": map[string]any{"versions": d.Versions}},
		"input":          inputs, "output": outputs,
	}
	if b := c.GetDynamicBatching(); b != nil {
		p := b.GetDefaultQueuePolicy()
		out["dynamic_batching"] = map[string]any{
			"max_queue_delay_microseconds": b.GetMaxQueueDelayMicroseconds(), "priority_levels": b.GetPriorityLevels(), "default_priority_level": b.GetDefaultPriorityLevel(),
			"default_queue_policy": map[string]any{
				"timeout_action": p.GetTimeoutAction().String(), "default_timeout_microseconds": p.GetDefaultTimeoutMicroseconds(),
				"allow_timeout_override": p.GetAllowTimeoutOverride(), "max_queue_size": p.GetMaxQueueSize(),
			},
		}
	}
	a.reply(w, r, out, err)
}
