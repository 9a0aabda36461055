package httpapi

import (
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/coding"
	"github.com/falaj-ml/falaj/internal/dataset/openlineage"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/membudget"
	"github.com/falaj-ml/falaj/internal/share"
)

// reportPath is where OpenLineage's clients post to; they cannot name a project.
const reportPath = "/api/v1/lineage"

// lineageRoutes are those of lineage that crosses our border, below p.
func (s *Server) lineageRoutes(p string) {
	const action = openlineage.ActionReport
	s.declare(http.MethodPost, reportPath, action).takes(lineageBody)
	s.mux.HandleFunc("POST "+reportPath, s.reportLineage)
	op := operation(http.MethodPost, reportPath, action, "Receive an OpenLineage event for the token's project")
	op.DefaultStatus = http.StatusCreated
	s.describe(op, media{takes: "application/json", gives: "application/json"}, "application/problem+json", s.problemSchema())

	route(s, "GET", p+"/lineage", "dataset.read", "Get upstream and downstream lineage of an object, including external OpenLineage datasets", s.lineage)
}

// reportLineage takes an event, plain or by gzip. The permission is asked before the
// body is read.
func (s *Server) reportLineage(w http.ResponseWriter, r *http.Request) {
	taken, err := func() (openlineage.Taken, error) {
		p, err := projectOf(r)
		if err != nil {
			return openlineage.Taken{}, err
		}
		if err := s.gate(r.Context(), openlineage.ActionReport, p); err != nil {
			return openlineage.Taken{}, err
		}
		b, err := unpacked(r, openlineage.MaxEvent)
		if err != nil {
			return openlineage.Taken{}, err
		}
		return s.Lineage.Take(r.Context(), project.Name(p), b)
	}()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	status := http.StatusCreated
	if taken.Unchanged {
		status = http.StatusOK
	}
	answer(w, status, taken)
}

// unpacked is a body of at most limit bytes, also when it is compressed.
func unpacked(r *http.Request, limit int64) ([]byte, error) {
	var body io.Reader = r.Body
	kind, err := coding.Of(strings.Join(r.Header.Values("Content-Encoding"), ","), coding.Gzip)
	if err != nil {
		return nil, err
	}
	if kind == coding.Gzip {
		z, err := gzip.NewReader(body)
		if err != nil {
			return nil, fault.New(fault.Invalid, "the body is not gzip, but Content-Encoding is gzip: %v", err)
		}
		defer func() { _ = z.Close() }()
		body = membudget.NewMeter(r.Context(), io.NopCloser(z), membudget.From(r.Context()), membudget.JSON)
	}
	b, err := io.ReadAll(io.LimitReader(body, limit+1))
	var corrupt flate.CorruptInputError
	if errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &corrupt) {
		err = fault.New(fault.Invalid, "the body is corrupt or truncated: %w", err).WithHint("Send it again.")
	}
	if err == nil && int64(len(b)) > limit {
		err = fault.New(fault.TooLarge, "the body has more than %d bytes", limit)
	}
	if err == nil && len(b) >= share.Heavy/4 {
		err = share.TurnOf(r.Context()).Begin(r.Context()) // what is compressed is small before
	}
	return b, err
}

// graphTime bounds a walk over lineage.
const graphTime = 20 * time.Second

func (s *Server) lineage(ctx context.Context, in *struct {
	InProject
	Dataset   string `query:"dataset" maxLength:"90" doc:"Falaj dataset: name, or name@version"`
	Kind      string `query:"kind" enum:"dataset,job,feature_view,feature_service,model,deployment" default:"dataset" doc:"Kind of the object"`
	Namespace string `query:"namespace" maxLength:"2048" doc:"OpenLineage namespace of an external dataset or job; empty for a Falaj job"`
	Name      string `query:"name" maxLength:"2048" doc:"Name of the object, such as delay@3 for a model or feature view; without a version the newest"`
	Direction string `query:"direction" enum:"both,up,down" default:"both" doc:"up: upstream lineage; down: downstream lineage"`
	Depth     int    `query:"depth" minimum:"0" maximum:"50" doc:"Maximum depth; 0 means 20"`
},
) (*body[openlineage.Graph], error) {
	if (in.Dataset == "") == (in.Name == "") {
		return nil, fault.New(fault.Invalid, "set either dataset, or kind and name").WithHint("For external datasets and jobs, also set namespace.")
	}
	ctx, cancel := context.WithTimeout(ctx, graphTime)
	defer cancel()
	return one(s.Lineage.Around(ctx, openlineage.Ask{
		Project: project.Name(in.Project), Ref: in.Dataset, Kind: openlineage.Kind(in.Kind), Name: openlineage.Name{Namespace: in.Namespace, Name: in.Name},
		Up: in.Direction == "up", Down: in.Direction == "down", Depth: in.Depth,
	}))
}
