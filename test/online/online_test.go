// Package online reads features from a real server by gRPC, and asks HTTP the same.
package online

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/httpapi/rpc"
	"github.com/falaj-ml/falaj/internal/httpapi/rpc/onlinev1"
	"github.com/falaj-ml/falaj/test/live"
)

const manifests = `
{api_version: falaj/v1, kind: Dataset, name: rides, project: PROJECT, spec: {classification: confidential, columns: [{name: zone, type: string}, {name: slot, type: int64}, {name: at, type: timestamp}, {name: fare, type: float64}, {name: count, type: int64}, {name: note, type: string}, {name: busy, type: bool}, {name: seen, type: timestamp}]}}
---
{api_version: falaj/v1, kind: Entity, name: zone, project: PROJECT, spec: {}}
---
{api_version: falaj/v1, kind: Entity, name: slot, project: PROJECT, spec: {type: int64}}
`

const view = `
{api_version: falaj/v1, kind: FeatureView, name: rides, project: PROJECT, spec: {source: {dataset: rides}, entities: [zone, slot], timestamp: at, features: [{name: fare, type: float64}, {name: count, type: int64}, {name: note, type: string}, {name: busy, type: bool}, {name: seen, type: timestamp}]}}
---
{api_version: falaj/v1, kind: FeatureService, name: pay, project: PROJECT, spec: {features: ["rides:seen", "rides:fare", "rides:count", "rides:note", "rides:busy"]}}
`

// TestGRPC: gRPC answers what HTTP answers, in values, statuses and times, refuses whom
// HTTP refuses, and is journaled alike.
func TestGRPC(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "nyc")
	p.Apply(manifests)
	rnd := rand.New(rand.NewPCG(3, 0))
	var csv strings.Builder
	csv.WriteString("zone,slot,at,fare,count,note,busy,seen\n")
	cell := func(text string) string {
		if rnd.IntN(4) == 0 {
			return ""
		}
		return text
	}
	for i := range 200 {
		fmt.Fprintf(&csv, "z%d,%d,2026-01-01T00:%02d:%02dZ,%s,%s,%s,%s,%s\n", rnd.IntN(6), rnd.IntN(4), i/60, i%60,
			cell(fmt.Sprint(rnd.NormFloat64())), cell(strconv.Itoa(9007199254740993+i)), cell(fmt.Sprintf("note %d ☃", i)), cell(strconv.FormatBool(i%2 == 0)), cell("2026-01-01T00:00:00.123456Z"))
	}
	p.Import("rides", csv.String())
	p.Apply(view)
	p.Materialise("rides")

	token := func(project, role string) string {
		var made client.Object
		p.Must(p.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": project, "name": role, "role": role, "expires_in": "24h"}, &made))
		return made.Text("secret")
	}
	engineer, viewer := token(p.Name, "engineer"), token(p.Name, "viewer")
	conn, err := grpc.NewClient(strings.TrimPrefix(s.URL, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	call := func(token string, ask *onlinev1.ReadRequest, options ...grpc.CallOption) (*onlinev1.ReadAnswer, error) {
		ctx, cancel := context.WithTimeout(t.Context(), live.Wait)
		defer cancel()
		var out onlinev1.ReadAnswer
		return &out, conn.Invoke(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), rpc.ReadPath, ask, &out, options...)
	}

	// 1. The same answers.
	var zones []string
	var slots []int64
	var entities []map[string]any
	for z := range 8 { // the last are not there
		for slot := range 5 {
			zones, slots = append(zones, fmt.Sprintf("z%d", z)), append(slots, int64(slot))
			entities = append(entities, map[string]any{"zone": fmt.Sprintf("z%d", z), "slot": slot})
		}
	}
	entities[3]["slot"] = nil
	ask := &onlinev1.ReadRequest{Service: "pay", FullFeatureNames: true, Keys: []*onlinev1.Keys{
		{Name: "zone", Values: &onlinev1.Keys_Strings{Strings: &onlinev1.Strings{Values: zones}}},
		{Name: "slot", Values: &onlinev1.Keys_Ints{Ints: &onlinev1.Ints{Values: slots}}, Nulls: []uint32{3}},
	}}
	engineers := s.ClientWith(t, engineer)
	same := func(ask *onlinev1.ReadRequest, body map[string]any) {
		t.Helper()
		got, err := call(engineer, ask)
		p.Must(err)
		var want struct {
			Views   []string
			Service string
			Columns []struct {
				Name, Feature, Type string
				Values              []json.RawMessage
				Statuses            []string
				Events              []*time.Time `json:"event_timestamps"`
			}
		}
		p.Must(engineers.Do(t.Context(), http.MethodPost, p.Path("features/online"), body, &want))
		if fmt.Sprint(got.GetViews()) != fmt.Sprint(want.Views) || got.GetService() != want.Service || len(got.GetColumns()) != len(want.Columns) {
			t.Fatalf("%v, and HTTP %v", got, want)
		}
		for i, c := range got.GetColumns() {
			w := want.Columns[i]
			if c.GetName() != w.Name || c.GetFeature() != w.Feature || c.GetType() != w.Type || len(c.GetStatuses()) != len(w.Statuses) || len(c.GetEvents()) != len(w.Statuses) {
				t.Fatalf("%v, and HTTP %v", c, w)
			}
			for n := range w.Statuses {
				var text string
				switch v := c.GetValues().(type) {
				case *onlinev1.Column_Ints:
					text = strconv.FormatInt(v.Ints.GetValues()[n], 10)
				case *onlinev1.Column_Doubles:
					b, _ := json.Marshal(v.Doubles.GetValues()[n])
					text = string(b)
				case *onlinev1.Column_Strings:
					b, _ := json.Marshal(v.Strings.GetValues()[n])
					text = string(b)
				case *onlinev1.Column_Bools:
					text = strconv.FormatBool(v.Bools.GetValues()[n])
				case *onlinev1.Column_Instants:
					b, _ := json.Marshal(time.UnixMicro(v.Instants.GetMicros()[n]).UTC())
					text = string(b)
				}
				if w.Statuses[n] != "PRESENT" {
					text = "null"
				}
				var event *time.Time
				if e := c.GetEvents()[n]; e.Micros != nil {
					at := time.UnixMicro(e.GetMicros()).UTC()
					event = &at
				}
				if text != string(w.Values[n]) || c.GetStatuses()[n].String() != w.Statuses[n] || fmt.Sprint(event) != fmt.Sprint(w.Events[n]) && (event == nil) != (w.Events[n] == nil) {
					t.Errorf("%s of %v: %s %s, and HTTP %s %s", c.GetName(), entities[n], text, c.GetStatuses()[n], w.Values[n], w.Statuses[n])
				}
			}
		}
	}
	same(ask, map[string]any{"service": "pay", "full_feature_names": true, "entities": entities})
	past := time.Date(2026, 1, 1, 0, 1, 30, 0, time.UTC)
	ask.AsOf = timestamppb.New(past)
	same(ask, map[string]any{"service": "pay", "full_feature_names": true, "entities": entities, "as_of": past.Format(time.RFC3339)})
	same(&onlinev1.ReadRequest{Features: []string{"rides:fare"}, Keys: []*onlinev1.Keys{
		{Name: "zone", Values: &onlinev1.Keys_Strings{Strings: &onlinev1.Strings{Values: []string{"z1"}}}},
		{Name: "slot", Values: &onlinev1.Keys_Strings{Strings: &onlinev1.Strings{Values: []string{"2"}}}},
	}}, map[string]any{"features": []string{"rides:fare"}, "entities": []map[string]any{{"zone": "z1", "slot": "2"}}})

	// 2. The same refusals.
	one := func(change func(*onlinev1.ReadRequest)) *onlinev1.ReadRequest {
		r := &onlinev1.ReadRequest{Service: "pay", Keys: []*onlinev1.Keys{
			{Name: "zone", Values: &onlinev1.Keys_Strings{Strings: &onlinev1.Strings{Values: []string{"z1"}}}},
			{Name: "slot", Values: &onlinev1.Keys_Ints{Ints: &onlinev1.Ints{Values: []int64{1}}}},
		}}
		change(r)
		return r
	}
	for what, c := range map[string]struct {
		token string
		ask   *onlinev1.ReadRequest
		code  codes.Code
		words string
		with  []grpc.CallOption
	}{
		"no token":   {"nobody", one(func(*onlinev1.ReadRequest) {}), codes.Unauthenticated, "", nil},
		"a viewer":   {viewer, one(func(*onlinev1.ReadRequest) {}), codes.PermissionDenied, "", nil},
		"no project": {s.Token, one(func(*onlinev1.ReadRequest) {}), codes.PermissionDenied, "", nil},
		"no service": {engineer, one(func(r *onlinev1.ReadRequest) { r.Service = "none" }), codes.NotFound, "none", nil},
		"unequal keys": {engineer, one(func(r *onlinev1.ReadRequest) {
			r.Keys[1].Values = &onlinev1.Keys_Ints{Ints: &onlinev1.Ints{Values: []int64{1, 2}}}
		}), codes.InvalidArgument, "has 2 values", nil},
		"a key twice":    {engineer, one(func(r *onlinev1.ReadRequest) { r.Keys[1].Name = "zone" }), codes.InvalidArgument, "duplicate join key", nil},
		"no such key":    {engineer, one(func(r *onlinev1.ReadRequest) { r.Keys[1].Name = "slat" }), codes.InvalidArgument, "slat", nil},
		"a null too far": {engineer, one(func(r *onlinev1.ReadRequest) { r.Keys[1].Nulls = []uint32{9} }), codes.InvalidArgument, "no value 9", nil},
		"compressed":     {engineer, one(func(*onlinev1.ReadRequest) {}), codes.Unimplemented, "compressed", []grpc.CallOption{grpc.UseCompressor(gzip.Name)}},
		"far too many keys": {engineer, one(func(r *onlinev1.ReadRequest) {
			r.Keys[0].Values = &onlinev1.Keys_Strings{Strings: &onlinev1.Strings{Values: make([]string, 10_001)}}
			r.Keys = r.Keys[:1]
		}), codes.OutOfRange, "limit of 10000", nil},
	} {
		_, err := call(c.token, c.ask, c.with...)
		if status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.words) {
			t.Errorf("%s: %v", what, err)
		}
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+engineer)
	if err := conn.Invoke(ctx, rpc.Prefix+"Write", ask, &onlinev1.ReadAnswer{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("another method: %v", err)
	}

	// 3. Confidential reads are on record, whichever way they came.
	said := p.Run(0, "audit", "list", "--action", "feature.online", "-o", "json")
	if n := strings.Count(said, `"keys_digest"`); n != 4 {
		t.Errorf("%d reads of confidential features are on record; two by HTTP and two by gRPC are not of the past", n)
	}
}
