package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

func TestReadLabels(t *testing.T) {
	for _, test := range []struct{ name, in, want, refused string }{
		{name: "csv", in: "at,id,value,more\n2013-05-01T12:00:00Z,a,1,x\n,b,false,\n", want: "a=1@12 b=0"},
		{name: "csv with a mark", in: "\ufeffid,value\na,0.5\n", want: "a=0.5"},
		{name: "csv", in: "id\na\n", refused: "no columns id and value"},
		{name: "csv", in: "id,class,at\na,cat,\nb,1,2013-05-01T12:00:00Z\n", want: "a=cat b=1@12"},
		{name: "csv", in: "id,class\na,\n", refused: "line 2"},
		{name: "csv", in: "id,class,value\na,cat,1\n", refused: "nor id and class"},
		{name: "jsonl", in: "{\"id\":\"a\",\"class\":\"cat\"}\n{\"id\":\"b\",\"classes\":[\"cat\",\"dog\"]}\n", want: "a=cat b=[cat dog]"},
		{name: "jsonl", in: "{\"id\":\"a\",\"class\":\"cat\",\"value\":1}", refused: "line 1"},
		{name: "csv", in: "", refused: "no header"},
		{name: "csv", in: "id,value\na,late\n", refused: "line 2"},
		{name: "csv", in: "id,value,at\na,1,noon\n", refused: "line 2"},
		{name: "csv", in: "id,value\na,1,2\n", refused: "wrong number of fields"},
		{name: "jsonl", in: "{\"id\":\"a\",\"value\":true}\n\n{\"id\":\"b\",\"values\":[1,false],\"at\":\"2013-05-01T12:00:00Z\"}\n", want: "a=1 b=[1 0]@12"},
		{name: "jsonl", in: "{\"id\":\"a\",\"values\":[null,1]}\n{\"id\":\"b\",\"classes\":[\"cat\",null]}\n", want: "a=[NaN 1] b=[cat ]"},
		{name: "jsonl", in: "{\"id\":\"a\",\"value\":{}}", refused: "line 1"},
		{name: "jsonl", in: "\n{", refused: "line 2"},
	} {
		next := readJSONLabels(strings.NewReader(test.in))
		var err error
		if strings.HasPrefix(test.name, "csv") {
			next, err = readCSVLabels(strings.NewReader(test.in))
		}
		var got []string
		for err == nil {
			var l client.Label
			if l, err = next(); err != nil {
				break
			}
			text := l.ID + "="
			switch {
			case l.Value != nil:
				text += fmt.Sprint(*l.Value)
			case l.Class != "":
				text += l.Class
			case l.Classes != nil:
				text += fmt.Sprint(l.Classes)
			default:
				text += fmt.Sprint(l.Values)
			}
			if l.At != nil {
				text += fmt.Sprint("@", l.At.Hour())
			}
			got = append(got, text)
		}
		switch {
		case test.refused != "":
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), test.refused) {
				t.Errorf("%q: %v, want %q", test.in, err, test.refused)
			}
		case !errors.Is(err, io.EOF) || strings.Join(got, " ") != test.want:
			t.Errorf("%q: %v %v, want %s", test.in, got, err, test.want)
		}
	}
}

func TestSendLabels(t *testing.T) {
	left := 12_001
	var sizes []int
	total, err := sendLabels(t.Context(), func() (client.Label, error) {
		if left == 0 {
			return client.Label{}, io.EOF
		}
		left--
		return client.Label{ID: "a"}, nil
	}, func(_ context.Context, labels []client.Label) (client.Labelled, error) {
		sizes = append(sizes, len(labels))
		return client.Labelled{Accepted: len(labels)}, nil
	})
	if err != nil || total.Accepted != 12_001 || fmt.Sprint(sizes) != "[5000 5000 2001]" {
		t.Errorf("%+v %v %v", total, sizes, err)
	}
}

func FuzzReadLabels(f *testing.F) {
	f.Add("id,value\na,1\n")
	f.Add(`{"id":"a","value":true}`)
	f.Fuzz(func(_ *testing.T, s string) { // it fails when it panics
		drain := func(next func() (client.Label, error), err error) {
			for range 1000 {
				if err != nil {
					return
				}
				_, err = next()
			}
		}
		drain(readJSONLabels(strings.NewReader(s)), nil)
		drain(readCSVLabels(strings.NewReader(s)))
	})
}
