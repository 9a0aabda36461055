// Package inference is the Open Inference Protocol as it is on the wire of gRPC: the
// messages of api/inference/service.proto, as protoc-gen-go writes them (after a change
// there, run scripts/proto.sh), and tensors in them: raw.go as bytes, contents.go as
// lists. Both ends use it: internal/httpapi/oip answers, runtime/remote asks.
package inference
