package onnx

/*
#include <stdlib.h>
#include "ort.h"
*/
import "C"

import (
	"unsafe"

	"github.com/falaj-ml/falaj/internal/fault"
	serving "github.com/falaj-ml/falaj/internal/serving/runtime"
	"github.com/falaj-ml/falaj/internal/serving/runtime/lane"
)

// What C says of a lane's layout is what package lane says.
var (
	_ [lane.TensorSize]byte = [C.sizeof_lane_tensor]byte{}
	_ lane.Native           = (*session)(nil)
)

// answerer answers a lane by a loop in C: between a question and its answer there is no
// scheduler of ours. It takes no slot: there are no more lanes than runs that may be.
type answerer struct {
	session *session
	call    *call
	lane    *C.lane
	names   []*C.char
}

// Lane implements lane.Native.
func (s *session) Lane(p *lane.Place) (lane.Answerer, error) {
	c, err := s.model.begin()
	if err != nil {
		return nil, err
	}
	l := (*C.lane)(C.calloc(1, C.sizeof_lane))
	outputs := s.model.names[s.model.most:]
	names := (**C.char)(C.calloc(C.size_t(len(outputs)+1), C.size_t(unsafe.Sizeof(uintptr(0)))))
	a := &answerer{session: s, call: c, lane: l, names: unsafe.Slice(names, len(outputs))}
	copy(a.names, outputs)
	l.memory = (*C.char)(unsafe.Pointer(unsafe.SliceData(p.Memory()))) // not of Go's heap
	l.session, l.call, l.names = s.model.session, c.c, names
	s.runs.Add(1)
	return a, nil
}

// Answer implements lane.Answerer.
func (a *answerer) Answer() (id uint64, out []serving.Tensor, err error, ok bool) {
	s, tight := a.session, C.int(0)
	if s.runtime.tight.Swap(false) {
		tight = 1
	}
	if C.lane_answer(a.lane, tight) == 0 {
		return 0, nil, nil, false
	}
	id = uint64(a.lane.id)
	defer a.call.empty()
	if f := a.lane.failure; f.message != nil {
		cancelled := uint64(a.lane.cancelled) == id
		err := failed(f)
		if cancelled {
			return id, nil, fault.New(fault.Timeout, "the model did not answer in the request's time"), true
		}
		said := kindOf(err)
		if fault.Is(said, fault.Exhausted) {
			s.runtime.tight.Store(true)
		}
		return id, nil, said, true
	}
	// The outputs are too large for the lane, or have no form in it.
	var wanted []int
	var outputs []string
	for _, name := range unsafe.Slice(a.call.c.output_names, a.call.c.wanted) {
		for i, n := range a.names {
			if n == name {
				wanted, outputs = append(wanted, i), append(outputs, s.meta.Outputs[i].Name)
			}
		}
	}
	out, err = s.answer(a.call, a.call.bytes(), wanted, outputs)
	return id, out, err, true
}

// Cancel implements lane.Answerer.
func (a *answerer) Cancel(id uint64) { C.lane_cancel(a.lane, C.uint64_t(id)) }

// Stop implements lane.Answerer.
func (a *answerer) Stop() { C.lane_stop(a.lane) }

// Free implements lane.Answerer.
func (a *answerer) Free() {
	a.session.model.end(a.call)
	C.free(unsafe.Pointer(a.lane.names))
	C.free(unsafe.Pointer(a.lane))
	a.session.runs.Done()
}
