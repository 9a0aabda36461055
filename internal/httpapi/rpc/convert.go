package rpc

import (
	"encoding/json"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/feature"
	"github.com/falaj-ml/falaj/internal/feature/online"
	"github.com/falaj-ml/falaj/internal/feature/value"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/httpapi/rpc/onlinev1"
)

// Limits of a request, before anything is made of it.
const (
	maxKeys     = 64
	maxEntities = 10_000 // of feature, too
)

// request is what the message asks of the service.
func request(p project.Name, m *onlinev1.ReadRequest) (feature.OnlineRequest, error) {
	r := feature.OnlineRequest{Project: p, Selection: feature.Selection{Service: m.GetService(), Features: m.GetFeatures(), FullNames: m.GetFullFeatureNames()}}
	if at := m.GetAsOf(); at != nil {
		if err := at.CheckValid(); err != nil {
			return r, fault.New(fault.Invalid, "as_of: %v", err)
		}
		r.AsOf = at.AsTime()
	}
	if len(m.GetKeys()) > maxKeys {
		return r, fault.New(fault.Invalid, "%d join keys are over the limit of %d", len(m.GetKeys()), maxKeys)
	}
	seen := map[string]bool{}
	for i, k := range m.GetKeys() {
		n, at := column(k)
		switch {
		case n > maxEntities:
			return r, fault.New(fault.TooLarge, "%d entities are over the limit of %d", n, maxEntities).WithHint("Split the request.")
		case seen[k.GetName()]:
			return r, fault.New(fault.Invalid, "duplicate join key %.80q", k.GetName())
		case i > 0 && n != len(r.Columns[0].Values):
			return r, fault.New(fault.Invalid, "the join key %.80q has %d values, and %.80q %d", k.GetName(), n, m.GetKeys()[0].GetName(), len(r.Columns[0].Values))
		}
		seen[k.GetName()] = true
		values := make([]any, n)
		for e := range values {
			values[e] = at(e)
		}
		for _, e := range k.GetNulls() {
			if int(e) >= n {
				return r, fault.New(fault.Invalid, "the join key %.80q has no value %d", k.GetName(), e)
			}
			values[e] = nil
		}
		r.Columns = append(r.Columns, feature.EntityColumn{Name: k.GetName(), Values: values})
	}
	return r, nil
}

// column is how many values a join key has, and each of them.
func column(k *onlinev1.Keys) (n int, at func(i int) any) {
	switch v := k.GetValues().(type) {
	case *onlinev1.Keys_Strings:
		return len(v.Strings.GetValues()), func(i int) any { return v.Strings.GetValues()[i] }
	case *onlinev1.Keys_Ints:
		return len(v.Ints.GetValues()), func(i int) any { return json.Number(strconv.FormatInt(v.Ints.GetValues()[i], 10)) }
	case *onlinev1.Keys_Bools:
		return len(v.Bools.GetValues()), func(i int) any { return v.Bools.GetValues()[i] }
	}
	return 0, nil
}

// answer is the service's as a message.
func answer(got feature.OnlineAnswer) (*onlinev1.ReadAnswer, error) {
	out := &onlinev1.ReadAnswer{AsOf: timestamppb.New(got.AsOf), Views: got.Views, Service: got.Service, Columns: make([]*onlinev1.Column, len(got.Columns))}
	for i, c := range got.Columns {
		m := &onlinev1.Column{
			Name: c.Name, Feature: c.Feature, Type: c.Type,
			Statuses: make([]onlinev1.Status, len(c.Statuses)), Events: make([]*onlinev1.Time, len(c.EventTimes)),
		}
		for n, s := range c.Statuses {
			m.Statuses[n] = statuses[s]
		}
		for n, t := range c.EventTimes {
			m.Events[n] = &onlinev1.Time{}
			if t != nil {
				micros := t.UnixMicro()
				m.Events[n].Micros = &micros
			}
		}
		if err := values(m, c.Values); err != nil {
			return nil, fault.Wrap(err, "feature %s", c.Feature)
		}
		out.Columns[i] = m
	}
	return out, nil
}

var statuses = map[online.Status]onlinev1.Status{
	online.Present: onlinev1.Status_PRESENT, online.NullValue: onlinev1.Status_NULL_VALUE,
	online.NotFound: onlinev1.Status_NOT_FOUND, online.OutsideMaxAge: onlinev1.Status_OUTSIDE_MAX_AGE,
	online.Invalid: onlinev1.Status_INVALID, online.Masked: onlinev1.Status_MASKED,
}

// values fills the list of the column's type.
func values(m *onlinev1.Column, in []value.Value) error {
	switch m.GetType() {
	case value.Int64.String(), value.Int32.String():
		list := make([]int64, len(in))
		for i, v := range in {
			list[i] = v.Int()
		}
		m.Values = &onlinev1.Column_Ints{Ints: &onlinev1.Ints{Values: list}}
	case value.Float64.String(), value.Float32.String():
		list := make([]float64, len(in))
		for i, v := range in {
			list[i] = v.Float()
		}
		m.Values = &onlinev1.Column_Doubles{Doubles: &onlinev1.Doubles{Values: list}}
	case value.String.String():
		list := make([]string, len(in))
		for i, v := range in {
			list[i] = v.Str()
		}
		m.Values = &onlinev1.Column_Strings{Strings: &onlinev1.Strings{Values: list}}
	case value.Bool.String():
		list := make([]bool, len(in))
		for i, v := range in {
			list[i] = v.Bool()
		}
		m.Values = &onlinev1.Column_Bools{Bools: &onlinev1.Bools{Values: list}}
	case value.Timestamp.String():
		list := make([]int64, len(in))
		for i, v := range in {
			list[i] = v.Int()
		}
		m.Values = &onlinev1.Column_Instants{Instants: &onlinev1.Instants{Micros: list}}
	default:
		list := make([]string, len(in))
		for i, v := range in {
			b, err := json.Marshal(v)
			if err != nil {
				return err
			}
			list[i] = string(b)
		}
		m.Values = &onlinev1.Column_Json{Json: &onlinev1.Strings{Values: list}}
	}
	return nil
}
