// Package optuna is the storage of Optuna's studies by gRPC, in the words of
// api/optuna/storage.proto, which are Optuna's own: optuna.storages.GrpcStorageProxy
// calls it. A call is a request of HTTP/2 like others, so that it passes what all
// requests pass; a study is a sweep of the token's project.
//
// # Map
//
//   - optuna.go: the calls, each one message and one answer.
//   - convert.go: messages to tuning's studies and trials, and back.
//   - optunapb/ is generated from the proto by scripts/proto.sh.
//
// # What clients rely on
//
// Optuna's client makes its exceptions of four codes: ALREADY_EXISTS of a study whose
// name is taken, NOT_FOUND, FAILED_PRECONDITION of a trial that has finished, and
// INVALID_ARGUMENT of a parameter. Calls that must not be done twice, making a study or
// a trial and moving one, take the metadata "idempotency-key": their repetition gets
// what the first got. The others may be repeated as they are.
package optuna

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/httpapi/optuna/optunapb"
	"github.com/falaj-ml/falaj/internal/httpapi/rpc"
	"github.com/falaj-ml/falaj/internal/tuning"
)

// Prefix begins the path of every call.
const Prefix = "/optuna.StorageService/"

// MaxBody bounds a request, in bytes: a trial with all that it may bring.
const MaxBody = 16 << 20

// maxAnswer bounds the trials of an answer, in bytes.
const maxAnswer = 256 << 20

// Ours reports whether a path is a call of this service.
func Ours(path string) bool { return strings.HasPrefix(path, Prefix) }

// Keeps reports whether a call keeps something new: those that read, delete or end a
// trial are answered also when there is no room.
func Keeps(path string) bool {
	call, ours := strings.CutPrefix(path, Prefix)
	return ours && !strings.HasPrefix(call, "Get") && call != "DeleteStudy" && call != "SetTrialStateValues"
}

// Tuning is what the calls ask of studies.
type Tuning interface {
	Create(ctx context.Context, study tuning.Study) (tuning.StudyID, error)
	Study(ctx context.Context, p project.Name, id tuning.StudyID) (tuning.Study, error)
	StudyNamed(ctx context.Context, p project.Name, name string) (tuning.Study, error)
	List(ctx context.Context, p project.Name, after tuning.StudyID, limit int) ([]tuning.Study, tuning.StudyID, error)
	Delete(ctx context.Context, p project.Name, id tuning.StudyID) error
	SetStudyAttribute(ctx context.Context, p project.Name, id tuning.StudyID, scope tuning.Scope, key, value string) error
	CreateTrial(ctx context.Context, p project.Name, id tuning.StudyID, template *tuning.Trial, request string) (tuning.TrialID, error)
	SetParam(ctx context.Context, p project.Name, id tuning.TrialID, name string, param tuning.Param) error
	SetState(ctx context.Context, p project.Name, id tuning.TrialID, state tuning.State, values []float64, request string) (bool, error)
	SetIntermediate(ctx context.Context, p project.Name, id tuning.TrialID, step int64, value float64) error
	SetTrialAttribute(ctx context.Context, p project.Name, id tuning.TrialID, scope tuning.Scope, key, value string) error
	Trial(ctx context.Context, p project.Name, id tuning.TrialID) (tuning.Trial, error)
	TrialNumbered(ctx context.Context, p project.Name, id tuning.StudyID, number int64) (tuning.TrialID, error)
	Trials(ctx context.Context, p project.Name, id tuning.StudyID, after tuning.TrialID, included []tuning.TrialID, limit int) ([]tuning.Trial, error)
}

// API answers the calls.
type API struct {
	Tuning Tuning
	// Project is the project of a request's token.
	Project func(r *http.Request) (string, error)
	// Gate asks for a permission in a project.
	Gate func(ctx context.Context, action policy.Action, project string) error
	// Refuse answers what the gate refuses, Fail what a call that came further does,
	// with another code than that of the error's kind unless it is OK.
	Refuse func(w http.ResponseWriter, r *http.Request, err error)
	Fail   func(w http.ResponseWriter, r *http.Request, code codes.Code, err error)
}

// call is a request that has passed the gate.
type call struct {
	*API
	project project.Name
	request string // the client's key, by which a repetition is known
}

// method is a call of one message and one answer.
type method struct {
	name   string
	action policy.Action
	do     func(c call, ctx context.Context, r *http.Request) (proto.Message, error)
	codes  map[fault.Kind]codes.Code // where Optuna reads another one
}

func unary[Q any, A proto.Message, P interface {
	*Q
	proto.Message
}](name string, action policy.Action, do func(c call, ctx context.Context, q P) (A, error)) method {
	return method{name: name, action: action, do: func(c call, ctx context.Context, r *http.Request) (proto.Message, error) {
		q := P(new(Q))
		if err := rpc.Receive(r, q); err != nil {
			return nil, err
		}
		a, err := do(c, ctx, q)
		if err != nil {
			return nil, err // not an A that is nil
		}
		return a, nil
	}}
}

// as has an error of a kind answered by another code.
func (m method) as(kind fault.Kind, code codes.Code) method {
	m.codes = map[fault.Kind]codes.Code{kind: code}
	return m
}

// Register adds the calls.
func (a *API) Register(handle func(path string, action policy.Action, h http.HandlerFunc)) {
	for _, m := range methods {
		handle(Prefix+m.name, m.action, func(w http.ResponseWriter, r *http.Request) {
			p, err := a.Project(r)
			if err == nil {
				err = a.Gate(r.Context(), m.action, p)
			}
			if err != nil {
				a.Refuse(w, r, err)
				return
			}
			ctx, cancel, err := rpc.Deadline(r)
			if err != nil {
				a.Fail(w, r, codes.OK, err)
				return
			}
			defer cancel()
			c := call{API: a, project: project.Name(p), request: r.Header.Get("Idempotency-Key")}
			answer, err := m.do(c, ctx, r)
			if err == nil {
				err = rpc.Send(ctx, w, answer)
			}
			if err == nil {
				return
			}
			if errors.Is(ctx.Err(), context.DeadlineExceeded) && r.Context().Err() == nil {
				err = fault.New(fault.Timeout, "the client's deadline has passed")
			}
			a.Fail(w, r, m.codes[fault.KindOf(err)], err)
		})
	}
}

// methods lists the calls.
var methods = []method{
	unary("CreateNewStudy", tuning.ActionWrite, call.createStudy).as(fault.Conflict, codes.AlreadyExists),
	unary("DeleteStudy", tuning.ActionDelete, func(c call, ctx context.Context, q *optunapb.DeleteStudyRequest) (*optunapb.DeleteStudyReply, error) {
		return &optunapb.DeleteStudyReply{}, c.Tuning.Delete(ctx, c.project, tuning.StudyID(q.GetStudyId()))
	}),
	unary("SetStudyUserAttribute", tuning.ActionWrite, func(c call, ctx context.Context, q *optunapb.SetStudyUserAttributeRequest) (*optunapb.SetStudyUserAttributeReply, error) {
		return &optunapb.SetStudyUserAttributeReply{}, c.Tuning.SetStudyAttribute(ctx, c.project, tuning.StudyID(q.GetStudyId()), tuning.User, q.GetKey(), q.GetValue())
	}),
	unary("SetStudySystemAttribute", tuning.ActionWrite, func(c call, ctx context.Context, q *optunapb.SetStudySystemAttributeRequest) (*optunapb.SetStudySystemAttributeReply, error) {
		return &optunapb.SetStudySystemAttributeReply{}, c.Tuning.SetStudyAttribute(ctx, c.project, tuning.StudyID(q.GetStudyId()), tuning.System, q.GetKey(), q.GetValue())
	}),
	unary("GetStudyIdFromName", tuning.ActionRead, func(c call, ctx context.Context, q *optunapb.GetStudyIdFromNameRequest) (*optunapb.GetStudyIdFromNameReply, error) {
		study, err := c.Tuning.StudyNamed(ctx, c.project, q.GetStudyName())
		return &optunapb.GetStudyIdFromNameReply{StudyId: int64(study.ID)}, err
	}),
	unary("GetStudyNameFromId", tuning.ActionRead, func(c call, ctx context.Context, q *optunapb.GetStudyNameFromIdRequest) (*optunapb.GetStudyNameFromIdReply, error) {
		study, err := c.study(ctx, q.GetStudyId())
		return &optunapb.GetStudyNameFromIdReply{StudyName: study.Name}, err
	}),
	unary("GetStudyDirections", tuning.ActionRead, func(c call, ctx context.Context, q *optunapb.GetStudyDirectionsRequest) (*optunapb.GetStudyDirectionsReply, error) {
		study, err := c.study(ctx, q.GetStudyId())
		return &optunapb.GetStudyDirectionsReply{Directions: directionsOf(study)}, err
	}),
	unary("GetStudyUserAttributes", tuning.ActionRead, func(c call, ctx context.Context, q *optunapb.GetStudyUserAttributesRequest) (*optunapb.GetStudyUserAttributesReply, error) {
		study, err := c.study(ctx, q.GetStudyId())
		return &optunapb.GetStudyUserAttributesReply{UserAttributes: study.User}, err
	}),
	unary("GetStudySystemAttributes", tuning.ActionRead, func(c call, ctx context.Context, q *optunapb.GetStudySystemAttributesRequest) (*optunapb.GetStudySystemAttributesReply, error) {
		study, err := c.study(ctx, q.GetStudyId())
		return &optunapb.GetStudySystemAttributesReply{SystemAttributes: study.System}, err
	}),
	unary("GetAllStudies", tuning.ActionRead, call.allStudies),
	unary("CreateNewTrial", tuning.ActionWrite, call.createTrial),
	unary("SetTrialParameter", tuning.ActionWrite, func(c call, ctx context.Context, q *optunapb.SetTrialParameterRequest) (*optunapb.SetTrialParameterReply, error) {
		param := tuning.Param{Value: q.GetParamValueInternal(), Distribution: tuning.Distribution(q.GetDistribution())}
		return &optunapb.SetTrialParameterReply{}, c.Tuning.SetParam(ctx, c.project, tuning.TrialID(q.GetTrialId()), q.GetParamName(), param)
	}),
	unary("GetTrialIdFromStudyIdTrialNumber", tuning.ActionRead, func(c call, ctx context.Context, q *optunapb.GetTrialIdFromStudyIdTrialNumberRequest) (*optunapb.GetTrialIdFromStudyIdTrialNumberReply, error) {
		id, err := c.Tuning.TrialNumbered(ctx, c.project, tuning.StudyID(q.GetStudyId()), q.GetTrialNumber())
		return &optunapb.GetTrialIdFromStudyIdTrialNumberReply{TrialId: int64(id)}, err
	}),
	unary("SetTrialStateValues", tuning.ActionWrite, func(c call, ctx context.Context, q *optunapb.SetTrialStateValuesRequest) (*optunapb.SetTrialStateValuesReply, error) {
		moved, err := c.Tuning.SetState(ctx, c.project, tuning.TrialID(q.GetTrialId()), stateFrom(q.GetState()), q.GetValues(), c.request)
		return &optunapb.SetTrialStateValuesReply{TrialUpdated: moved}, err
	}),
	unary("SetTrialIntermediateValue", tuning.ActionWrite, func(c call, ctx context.Context, q *optunapb.SetTrialIntermediateValueRequest) (*optunapb.SetTrialIntermediateValueReply, error) {
		return &optunapb.SetTrialIntermediateValueReply{}, c.Tuning.SetIntermediate(ctx, c.project, tuning.TrialID(q.GetTrialId()), q.GetStep(), q.GetIntermediateValue())
	}),
	unary("SetTrialUserAttribute", tuning.ActionWrite, func(c call, ctx context.Context, q *optunapb.SetTrialUserAttributeRequest) (*optunapb.SetTrialUserAttributeReply, error) {
		return &optunapb.SetTrialUserAttributeReply{}, c.Tuning.SetTrialAttribute(ctx, c.project, tuning.TrialID(q.GetTrialId()), tuning.User, q.GetKey(), q.GetValue())
	}),
	unary("SetTrialSystemAttribute", tuning.ActionWrite, func(c call, ctx context.Context, q *optunapb.SetTrialSystemAttributeRequest) (*optunapb.SetTrialSystemAttributeReply, error) {
		return &optunapb.SetTrialSystemAttributeReply{}, c.Tuning.SetTrialAttribute(ctx, c.project, tuning.TrialID(q.GetTrialId()), tuning.System, q.GetKey(), q.GetValue())
	}),
	unary("GetTrial", tuning.ActionRead, func(c call, ctx context.Context, q *optunapb.GetTrialRequest) (*optunapb.GetTrialReply, error) {
		t, err := c.Tuning.Trial(ctx, c.project, tuning.TrialID(q.GetTrialId()))
		return &optunapb.GetTrialReply{Trial: messageOf(t)}, err
	}),
	unary("GetTrials", tuning.ActionRead, call.trials),
}

func (c call) study(ctx context.Context, id int64) (tuning.Study, error) {
	return c.Tuning.Study(ctx, c.project, tuning.StudyID(id))
}

func (c call) createStudy(ctx context.Context, q *optunapb.CreateNewStudyRequest) (*optunapb.CreateNewStudyReply, error) {
	directions, err := directionsFrom(q.GetDirections())
	if err != nil {
		return nil, err
	}
	id, err := c.Tuning.Create(ctx, tuning.Study{Project: c.project, Name: q.GetStudyName(), Directions: directions, Request: c.request})
	return &optunapb.CreateNewStudyReply{StudyId: int64(id)}, err
}

func (c call) allStudies(ctx context.Context, _ *optunapb.GetAllStudiesRequest) (*optunapb.GetAllStudiesReply, error) {
	out, size := &optunapb.GetAllStudiesReply{}, 0
	for after := tuning.StudyID(0); ; {
		studies, next, err := c.Tuning.List(ctx, c.project, after, tuning.MaxPage)
		if err != nil {
			return nil, err
		}
		for _, s := range studies {
			m := &optunapb.Study{StudyId: int64(s.ID), StudyName: s.Name, Directions: directionsOf(s), UserAttributes: s.User, SystemAttributes: s.System}
			out.Studies = append(out.Studies, m)
			if size += proto.Size(m); size > maxAnswer {
				return nil, tooLarge("studies")
			}
		}
		if next == 0 {
			return out, nil
		}
		after = next
	}
}

func (c call) createTrial(ctx context.Context, q *optunapb.CreateNewTrialRequest) (*optunapb.CreateNewTrialReply, error) {
	var template *tuning.Trial
	if !q.GetTemplateTrialIsNone() {
		t, err := trialFrom(q.GetTemplateTrial())
		if err != nil {
			return nil, err
		}
		template = &t
	}
	id, err := c.Tuning.CreateTrial(ctx, c.project, tuning.StudyID(q.GetStudyId()), template, c.request)
	return &optunapb.CreateNewTrialReply{TrialId: int64(id)}, err
}

// trials answers the trials that a client lacks: those that it knows as unfinished,
// by number, and those after the last that it saw finish.
func (c call) trials(ctx context.Context, q *optunapb.GetTrialsRequest) (*optunapb.GetTrialsReply, error) {
	after := tuning.TrialID(q.GetTrialIdGreaterThan())
	var included []tuning.TrialID
	for _, id := range q.GetIncludedTrialIds() {
		if tuning.TrialID(id) <= after {
			included = append(included, tuning.TrialID(id))
		}
	}
	slices.Sort(included)
	included = slices.Compact(included)
	out, size := &optunapb.GetTrialsReply{}, 0
	add := func(after tuning.TrialID, included []tuning.TrialID) (last tuning.TrialID, full bool, err error) {
		found, err := c.Tuning.Trials(ctx, c.project, tuning.StudyID(q.GetStudyId()), after, included, tuning.MaxPage)
		for _, t := range found {
			m := messageOf(t)
			out.Trials = append(out.Trials, m)
			if size += proto.Size(m); size > maxAnswer {
				return 0, false, tooLarge("trials")
			}
			last = t.ID
		}
		return last, len(found) == tuning.MaxPage, err
	}
	for part := range slices.Chunk(included, tuning.MaxPage) {
		if _, _, err := add(1<<63-1, part); err != nil {
			return nil, err
		}
	}
	for {
		last, more, err := add(after, nil)
		if err != nil {
			return nil, err
		}
		if !more {
			return out, nil
		}
		after = last
	}
}

func tooLarge(what string) error {
	return fault.New(fault.TooLarge, "the %s have more than %d MiB", what, maxAnswer>>20).
		WithHint("Store large data as artifacts of runs, or create another study; GET …/sweeps/{sweep}/trials returns them in pages.")
}
