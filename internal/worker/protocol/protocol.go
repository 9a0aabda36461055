// Package protocol is what the server and the agent on a node say to each other.
// Standard library only. All bodies are JSON unless said otherwise; the paths are
// below /api/v1/projects/{project}/workloads/{workload}/worker/.
//
//	POST join                       Join → Order, or 202 with Waiting until the gang is complete
//	GET  mounts/{n}                 the n-th mount of the order as a tar stream, gzip
//	POST log?index=I&offset=N       raw bytes of worker I from offset N of its log; answers the offset reached
//	POST beat                       Beat → Told
//	PUT  mounts/{n}/tree?index=I&name=NAME   a tar stream, gzip: becomes NAME below the mount by one rename
//	POST end                        End; repeating it is no change
//
// The caller is the attempt's own token. A member joins with a number drawn at
// its start; another number for a member that has joined is a second start, and
// is refused with fault conflict: nothing runs twice.
package protocol

// Version of this protocol; a server takes its own and the one before.
const Version = 2

// Join is the first thing an agent says.
type Join struct {
	Version int    `json:"version"`
	Index   int    `json:"index"`
	Start   string `json:"start"` // drawn at the agent's start
	Node    string `json:"node"`
	Address string `json:"address"`
	Port    int    `json:"port"`
	PID     int    `json:"pid"`
	// Facts of the node by name, for checks and describe.
	Facts map[string]string `json:"facts,omitempty"`
}
