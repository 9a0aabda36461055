package flight

import (
	"encoding/json"

	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/jsondoc"
)

// ask is a descriptor's command and, with a digest, a ticket: JSON, so that
// clients may write their own.
//
//	{"dataset": "weather@3", "digest": "sha256:…", "columns": ["temp"],
//	 "shard": {"index": 0, "count": 4}, "skip": 65536, "take": 0}
type ask struct {
	Dataset string   `json:"dataset"`
	Digest  string   `json:"digest,omitempty"`
	Columns []string `json:"columns,omitempty"` // none is all
	Shard   *shard   `json:"shard,omitempty"`
	Skip    int64    `json:"skip,omitempty"` // rows of the shard that the client has
	Take    int64    `json:"take,omitempty"` // rows after them; 0 is the rest
}

// shard is part index of count equal parts; see dataset.Shard.
type shard struct {
	Index int64 `json:"index"`
	Count int64 `json:"count"`
}

const example = `Write {"dataset": "weather@3"}, or the path weather@3.`

// decode reads a command or a ticket strictly.
func decode(what string, b []byte) (ask, error) {
	var a ask
	if err := jsondoc.Decode(b, &a, jsondoc.Known); err != nil {
		return ask{}, fault.New(fault.Invalid, "the %s is not understood: %v", what, err).WithHint(example)
	}
	if a.Shard != nil && a.Shard.Count == 0 {
		return ask{}, fault.New(fault.Invalid, "the %s has a shard of 0", what)
	}
	return a, nil
}

// descriptor reads what a client asks about.
func descriptor(d *flight.FlightDescriptor) (ask, error) {
	switch d.GetType() {
	case flight.DescriptorPATH:
		if len(d.GetPath()) != 1 {
			return ask{}, fault.New(fault.Invalid, "the path has %d parts", len(d.GetPath())).WithHint(example)
		}
		return ask{Dataset: d.GetPath()[0]}, nil
	case flight.DescriptorCMD:
		return decode("command", d.GetCmd())
	default:
		return ask{}, fault.New(fault.Invalid, "the descriptor is neither a path nor a command").WithHint(example)
	}
}

// ticket reads what names a stream: a version, never "the newest".
func ticket(t *flight.Ticket) (ask, error) {
	a, err := decode("ticket", t.GetTicket())
	if err != nil {
		return ask{}, err
	}
	ref, err := dataset.ParseRef(a.Dataset)
	if err == nil && (ref.Number == 0 || a.Digest == "") {
		err = fault.New(fault.Invalid, "the ticket does not name a version and its digest").WithHint("Ask for a ticket by GetFlightInfo.")
	}
	return a, err
}

// request is the read that is asked for.
func (a ask) request(p project.Name) (dataset.OpenRequest, error) {
	ref, err := dataset.ParseRef(a.Dataset)
	if err != nil {
		return dataset.OpenRequest{}, err
	}
	r := dataset.OpenRequest{Project: p, Ref: ref, Digest: a.Digest, Columns: a.Columns, Shard: dataset.Shard{Skip: a.Skip, Take: a.Take}, Purpose: "flight"}
	if a.Shard != nil {
		r.Shard.Index, r.Shard.Count = a.Shard.Index, a.Shard.Count
	}
	return r, r.Shard.Validate()
}

func (a ask) encode() []byte {
	b, err := json.Marshal(a)
	if err != nil {
		panic("flight: a ticket does not marshal: " + err.Error())
	}
	return b
}
