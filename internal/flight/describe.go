package flight

import (
	"context"
	"encoding/json"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
)

// About is the app_metadata of a flight, in JSON: what the stream is of.
type About struct {
	Dataset        string                 `json:"dataset"` // "weather@3"
	Digest         string                 `json:"digest"`
	Rows           int64                  `json:"rows"` // of the version; the info's total_records are the part's
	Classification dataset.Classification `json:"classification"`
	// RowGroups are the rows at which row groups begin, of GetFlightInfo: blocks that begin there
	// are read without what is before them. Absent where they are not known, or too many.
	RowGroups []int64 `json:"row_groups,omitempty"`
}

// maxGroups bounds RowGroups: many clients refuse messages over 4 MiB.
const maxGroups = 100_000

// GetFlightInfo says what a descriptor means now, and gives the ticket for it.
// Needs dataset.read.
func (s *Server) GetFlightInfo(ctx context.Context, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	a, plan, err := s.plan(ctx, d)
	if err != nil {
		return nil, err
	}
	return info(d, a, plan, plan.Version.GroupStarts(maxGroups)), nil
}

// GetSchema gives the columns of a descriptor. Needs dataset.read.
func (s *Server) GetSchema(ctx context.Context, d *flight.FlightDescriptor) (*flight.SchemaResult, error) {
	_, plan, err := s.plan(ctx, d)
	if err != nil {
		return nil, err
	}
	return &flight.SchemaResult{Schema: flight.SerializeSchema(plan.Schema, memory.DefaultAllocator)}, nil
}

func (s *Server) plan(ctx context.Context, d *flight.FlightDescriptor) (ask, dataset.Plan, error) {
	a, err := descriptor(d)
	if err != nil {
		return ask{}, dataset.Plan{}, err
	}
	r, err := a.request(identity.From(ctx).Project)
	if err != nil {
		return ask{}, dataset.Plan{}, err
	}
	plan, err := s.datasets.Reads.Plan(ctx, r)
	return a, plan, err
}

// info is the answer about a plan: one endpoint, here.
func info(d *flight.FlightDescriptor, a ask, plan dataset.Plan, groups []int64) *flight.FlightInfo {
	v := plan.Version
	a.Dataset, a.Digest = v.Ref().String(), v.ContentDigest
	about, err := json.Marshal(About{Dataset: a.Dataset, Digest: a.Digest, Rows: v.Rows, Classification: v.Classification, RowGroups: groups})
	if err != nil {
		panic("flight: what a flight is about does not marshal: " + err.Error())
	}
	return &flight.FlightInfo{
		Schema: flight.SerializeSchema(plan.Schema, memory.DefaultAllocator), FlightDescriptor: d,
		Endpoint:     []*flight.FlightEndpoint{{Ticket: &flight.Ticket{Ticket: a.encode()}}},
		TotalRecords: plan.To - plan.From, TotalBytes: -1, Ordered: true, AppMetadata: about,
	}
}

// ListFlights lists the newest accepted version of each dataset that the token
// may read. Needs dataset.read.
func (s *Server) ListFlights(c *flight.Criteria, to flight.FlightService_ListFlightsServer) error {
	ctx := to.Context()
	p := identity.From(ctx).Project
	if len(c.GetExpression()) > 0 {
		return fault.New(fault.Unsupported, "flights are listed without an expression").WithHint("Choose among all of them.")
	}
	for page := (dataset.Page{}); ; {
		all, next, err := s.datasets.Definitions.List(ctx, p, page)
		if err != nil {
			return err
		}
		for _, d := range all {
			if err := s.list(ctx, p, d, to); err != nil {
				return err
			}
		}
		if page.Token = next; next == "" {
			return nil
		}
	}
}

func (s *Server) list(ctx context.Context, p project.Name, d dataset.Dataset, to flight.FlightService_ListFlightsServer) error {
	if d.Accepted == 0 {
		return nil
	}
	a := ask{Dataset: dataset.Ref{Name: d.Name, Number: d.Accepted}.String()}
	r, err := a.request(p)
	if err != nil {
		return err
	}
	plan, err := s.datasets.Reads.Plan(ctx, r)
	if fault.Is(err, fault.Gone) || fault.Is(err, fault.NotFound) || fault.Is(err, fault.PermissionDenied) {
		return nil // deleted meanwhile, or not for this token
	}
	if err != nil {
		return err
	}
	return to.Send(info(&flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{a.Dataset}}, a, plan, nil))
}
