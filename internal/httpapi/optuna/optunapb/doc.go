// Package optunapb is the messages of api/optuna/storage.proto, as protoc-gen-go writes
// them: after a change there, run scripts/proto.sh.
package optunapb
