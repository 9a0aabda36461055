package httpapi

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/httpapi/oip"
)

// However the path of a call is written, what the gate was asked for is what is
// called: a viewer, who may read and not infer, gets no further.
func TestCallPaths(t *testing.T) {
	w := open(t)
	token, _ := w.member(t, "flights", "reader", project.Viewer)
	const call = oip.CallPrefix + "ModelInfer"
	for _, path := range []string{
		call, "/" + call, call + "/", call + "?x=/ServerLive", oip.CallPrefix + "../inference.GRPCInferenceService/ModelInfer", oip.CallPrefix + "./ModelInfer",
		oip.CallPrefix + "Model%49nfer", "/inference.GRPCInferenceService%2FModelInfer", oip.CallPrefix + "ServerLive%2F..%2FModelInfer", oip.CallPrefix + "ServerLive/../ModelInfer",
		"/inference%2eGRPCInferenceService/ModelInfer", oip.CallPrefix + "modelinfer", oip.CallPrefix + "ModelInfer%00", oip.CallPrefix,
	} {
		got := w.do(t, token, "POST", path, "\x00\x00\x00\x00\x00", "Content-Type", "application/grpc")
		told := slices.Contains([]int{http.StatusForbidden, http.StatusNotFound, http.StatusBadRequest}, got.status) || got.status == http.StatusOK && got.header.Get("Grpc-Status") == "12"
		if !told {
			t.Errorf("%s: %+v", path, got)
		}
	}
	if got := w.do(t, token, "POST", call, ""); got.status != http.StatusForbidden {
		t.Errorf("the gate: %+v", got)
	}
}

// dated is an answer that remembers until when its request is read.
type dated struct {
	*httptest.ResponseRecorder
	reads []time.Time
}

func (d *dated) SetReadDeadline(t time.Time) error {
	d.reads = append(d.reads, t)
	return nil
}

// TestRefusedInTime: who may not open a stream has no more time for the body than others.
func TestRefusedInTime(t *testing.T) {
	w := open(t)
	reader, _ := w.member(t, "flights", "reader", project.Viewer)
	deployer, _ := w.member(t, "flights", "deployer", project.Deployer)
	for _, token := range []string{reader, deployer} { // by HTTP/1 it is no stream
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, oip.CallPrefix+"ModelStreamInfer", strings.NewReader("\x00"))
		r.Host = "127.0.0.1"
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/grpc")
		answer := &dated{ResponseRecorder: httptest.NewRecorder()}
		w.server.ServeHTTP(answer, r)
		if answer.Code == http.StatusOK || slices.ContainsFunc(answer.reads, time.Time.IsZero) {
			t.Errorf("%d, read until %v", answer.Code, answer.reads)
		}
	}
}
