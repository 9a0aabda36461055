package optuna

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/policy"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/httpapi/optuna/optunapb"
	"github.com/falaj-ml/falaj/internal/tuning"
)

// asked is a Tuning of which a test has what it needs; the rest would panic.
type asked struct {
	Tuning
	create func(study tuning.Study) (tuning.StudyID, error)
	trials func(after tuning.TrialID, included []tuning.TrialID, limit int) ([]tuning.Trial, error)
	state  func(state tuning.State, request string) (bool, error)
}

func (a asked) Create(_ context.Context, study tuning.Study) (tuning.StudyID, error) {
	return a.create(study)
}

func (a asked) Trials(_ context.Context, _ project.Name, _ tuning.StudyID, after tuning.TrialID, included []tuning.TrialID, limit int) ([]tuning.Trial, error) {
	return a.trials(after, included, limit)
}

func (a asked) SetState(_ context.Context, _ project.Name, _ tuning.TrialID, state tuning.State, _ []float64, request string) (bool, error) {
	return a.state(state, request)
}

func framed(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// send sends a message and reads the answer into out, or gives the code of a refusal.
func send(t *testing.T, tuned Tuning, name string, body []byte, out proto.Message) codes.Code {
	t.Helper()
	mux := http.NewServeMux()
	a := &API{
		Tuning:  tuned,
		Project: func(*http.Request) (string, error) { return "nyc", nil },
		Gate:    func(context.Context, policy.Action, string) error { return nil },
		Refuse:  func(_ http.ResponseWriter, _ *http.Request, err error) { t.Errorf("the gate refuses: %v", err) },
		Fail: func(w http.ResponseWriter, _ *http.Request, code codes.Code, err error) {
			if code == codes.OK {
				code = codes.Code(100 + uint32(fault.KindOf(err))) // what the server makes of the kind
			}
			w.Header().Set("Failed", strconv.Itoa(int(code)))
		},
	}
	a.Register(func(path string, _ policy.Action, h http.HandlerFunc) { mux.HandleFunc("POST "+path, h) })
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, Prefix+name, bytes.NewReader(body))
	r.ProtoMajor = 2
	r.Header.Set("Content-Type", "application/grpc")
	r.Header.Set("Idempotency-Key", "key")
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	if failed := w.Header().Get("Failed"); failed != "" {
		n, err := strconv.Atoi(failed)
		if err != nil {
			t.Fatal(err)
		}
		return codes.Code(n)
	}
	if err := proto.Unmarshal(w.Body.Bytes()[5:], out); err != nil {
		t.Fatal(err)
	}
	return codes.OK
}

// TestCodes: Optuna tells a name that is taken from a trial that has finished.
func TestCodes(t *testing.T) {
	conflict := fault.New(fault.Conflict, "no")
	tuned := asked{
		create: func(study tuning.Study) (tuning.StudyID, error) {
			if study.Request != "key" || study.Project != "nyc" || !slices.Equal(study.Directions, []tuning.Direction{tuning.Maximize, tuning.Minimize}) {
				t.Errorf("asked for %+v", study)
			}
			return 0, conflict
		},
		state: func(state tuning.State, request string) (bool, error) {
			if state != tuning.Pruned || request != "key" {
				t.Errorf("asked for %s by %q", state, request)
			}
			return false, conflict
		},
	}
	both := []optunapb.StudyDirection{optunapb.StudyDirection_MAXIMIZE, optunapb.StudyDirection_MINIMIZE}
	if got := send(t, tuned, "CreateNewStudy", framed(&optunapb.CreateNewStudyRequest{StudyName: "a", Directions: both}), nil); got != codes.AlreadyExists {
		t.Errorf("a name that is taken: %v", got)
	}
	if got := send(t, tuned, "CreateNewStudy", framed(&optunapb.CreateNewStudyRequest{Directions: []optunapb.StudyDirection{7}}), nil); got != 100+codes.Code(fault.Invalid) {
		t.Errorf("an unknown direction: %v", got)
	}
	if got := send(t, tuned, "SetTrialStateValues", framed(&optunapb.SetTrialStateValuesRequest{State: optunapb.TrialState_PRUNED}), nil); got != 100+codes.Code(fault.Conflict) {
		t.Errorf("a trial that has finished: %v", got)
	}
}

// TestTrials: whatever a client has seen, it gets each trial that it lacks once, by
// pages that the store bounds.
func TestTrials(t *testing.T) {
	const all = 3500
	store := asked{trials: func(after tuning.TrialID, included []tuning.TrialID, limit int) (out []tuning.Trial, err error) {
		if len(included) > tuning.MaxPage || limit > tuning.MaxPage {
			t.Errorf("%d by number, %d in all", len(included), limit)
		}
		for id := tuning.TrialID(1); id <= all && len(out) < limit; id++ {
			if _, named := slices.BinarySearch(included, id); id > after || named {
				out = append(out, tuning.Trial{ID: id, State: tuning.Running})
			}
		}
		return out, nil
	}}
	var many []int64
	for id := int64(2400); id > 0; id-- {
		many = append(many, id, id)
	}
	for _, x := range []struct {
		after    int64
		included []int64
		want     int
	}{
		{-1, nil, all},
		{-1, many, all},
		{3000, []int64{5, 1, 3000, 3001, all + 1}, 503},
		{2400, many, all},
		{all, []int64{7}, 1},
		{math.MaxInt64, nil, 0},
	} {
		var got optunapb.GetTrialsReply
		if code := send(t, store, "GetTrials", framed(&optunapb.GetTrialsRequest{TrialIdGreaterThan: x.after, IncludedTrialIds: x.included}), &got); code != codes.OK {
			t.Errorf("after %d: %v", x.after, code)
		}
		ids := make([]int64, len(got.GetTrials()))
		for i, m := range got.GetTrials() {
			ids[i] = m.GetTrialId()
		}
		if len(ids) != x.want || !slices.IsSorted(ids) || len(slices.Compact(ids)) != x.want {
			t.Errorf("after %d with %d by number: %d trials, want %d", x.after, len(x.included), len(ids), x.want)
		}
	}
	long := asked{trials: func(tuning.TrialID, []tuning.TrialID, int) ([]tuning.Trial, error) {
		return slices.Repeat([]tuning.Trial{{ID: 1, User: tuning.Attributes{"k": string(make([]byte, 1<<20))}}}, 300), nil
	}}
	if code := send(t, long, "GetTrials", framed(&optunapb.GetTrialsRequest{}), nil); code != 100+codes.Code(fault.TooLarge) {
		t.Errorf("300 MiB of trials: %v", code)
	}
}

// TestTrialsComeBack: what a client sent is what it gets.
func TestTrialsComeBack(t *testing.T) {
	in := tuning.Trial{
		State: tuning.Complete, Values: []float64{math.Inf(-1), 2}, Started: time.UnixMicro(1_700_000_000_123_456), Completed: time.UnixMicro(1_700_000_001_000_000),
		Params: map[string]tuning.Param{"x": {Value: 0.1, Distribution: "d"}}, User: tuning.Attributes{"u": "NaN"}, System: tuning.Attributes{"s": "1"},
		Intermediate: map[int64]float64{-3: 1},
	}
	out, err := trialFrom(messageOf(in))
	if err != nil || !out.Started.Equal(in.Started) || !out.Completed.Equal(in.Completed) {
		t.Fatal(out, err)
	}
	out.Started, out.Completed = in.Started, in.Completed
	if !reflect.DeepEqual(in, out) {
		t.Errorf("sent %+v, got %+v", in, out)
	}
	for what, m := range map[string]*optunapb.Trial{
		"a time that is none":   {DatetimeStart: "soon"},
		"no distribution":       {Params: map[string]float64{"x": 1}},
		"a year before the era": {DatetimeComplete: "0000-01-01 00:00:00.000000"},
	} {
		if _, err := trialFrom(m); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestKeeps: what ends or removes is answered without room.
func TestKeeps(t *testing.T) {
	var keeps []string
	for _, m := range methods {
		if Keeps(Prefix + m.name) {
			keeps = append(keeps, m.name)
		}
	}
	want := []string{"CreateNewStudy", "SetStudyUserAttribute", "SetStudySystemAttribute", "CreateNewTrial", "SetTrialParameter", "SetTrialIntermediateValue", "SetTrialUserAttribute", "SetTrialSystemAttribute"}
	if !slices.Equal(keeps, want) {
		t.Errorf("kept by %v", keeps)
	}
	if n := optunapb.File_optuna_storage_proto.Services().Get(0).Methods().Len(); len(methods) != n {
		t.Errorf("%d of %d calls are offered", len(methods), n)
	}
}

func FuzzCall(f *testing.F) {
	f.Add(framed(&optunapb.CreateNewTrialRequest{TemplateTrial: messageOf(tuning.Trial{State: tuning.Complete, Params: map[string]tuning.Param{"x": {}}, Intermediate: map[int64]float64{1: 2}})}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var q optunapb.CreateNewTrialRequest
		if len(b) < 5 || proto.Unmarshal(b[5:], &q) != nil {
			return
		}
		if _, err := trialFrom(q.GetTemplateTrial()); err != nil && fault.KindOf(err) == fault.Internal {
			t.Error(err)
		}
	})
}
