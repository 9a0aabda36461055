// Package onlinev1 is the messages of api/falaj/online/v1/online.proto, as protoc-gen-go
// writes them: after a change there, run scripts/proto.sh.
package onlinev1
