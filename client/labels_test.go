package client_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/falaj-ml/falaj/client"
)

// TestLabelOfSomeRows: rows without a label are null, whatever the others have.
func TestLabelOfSomeRows(t *testing.T) {
	half := 0.5
	for want, l := range map[string]client.Label{
		`{"id":"a","value":0.5}`:         {ID: "a", Value: &half},
		`{"id":"a","value":"cat"}`:       {ID: "a", Class: "cat"},
		`{"id":"a","values":[null,1]}`:   {ID: "a", Values: []float64{math.NaN(), 1}},
		`{"id":"a","values":["x",null]}`: {ID: "a", Classes: []string{"x", ""}},
	} {
		if got, err := json.Marshal(l); err != nil || string(got) != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
}
