package onnxfile

import (
	"encoding/binary"
	"math"

	"github.com/falaj-ml/falaj/internal/fault"
)

// This file reads the messages of ONNX. A message that is written in several parts is one,
// as everywhere in protobuf: each part is read into the same value.

func (d *decoder) model() (*Model, error) {
	m := &Model{opsets: map[string]int64{}}
	d.out = m
	if d.size == 0 {
		return m, fault.New(fault.Invalid, "the model file is empty")
	}
	err := d.fields(d.size, 0, func(f *field) error {
		switch f.number {
		case 1:
			return f.int(&m.version)
		case 7:
			return d.graph(f, &m.Graph, 0, true)
		case 8:
			return d.opset(f)
		case 20:
			return f.message(func(f *field) error {
				if f.number != 1 && f.number != 2 {
					return nil
				}
				g := &Graph{}
				m.training = append(m.training, g)
				return d.graph(f, g, 0, false)
			})
		case 25:
			return d.function(f)
		}
		return nil
	})
	return m, err
}

func (d *decoder) opset(f *field) error {
	var domain string
	version := int64(0)
	if err := f.message(func(f *field) error {
		switch f.number {
		case 1:
			return f.string(&domain)
		case 2:
			return f.int(&version)
		}
		return nil
	}); err != nil {
		return err
	}
	d.out.opsets[standard(domain)] = version
	return d.charge(64)
}

// standard is the one name of a domain.
func standard(domain string) string {
	if domain == "ai.onnx" {
		return ""
	}
	return domain
}

// graph reads a graph that is nested within others; its inputs and outputs are counted when
// they are the model's.
func (d *decoder) graph(f *field, g *Graph, nested int, main bool) error {
	if nested > MaxGraphs {
		return fault.New(fault.Invalid, "the model has graphs nested more than %d deep", MaxGraphs).
			WithHint("Flatten the If, Loop and Scan nodes of the model.")
	}
	if err := d.charge(256); err != nil {
		return err
	}
	return f.message(func(f *field) error {
		switch f.number {
		case 1:
			n, err := d.node(f, nested)
			if n != nil {
				n.at = len(g.nodes)
			}
			g.nodes = append(g.nodes, n)
			g.bytes += f.size
			return err
		case 5:
			t := &tensor{}
			g.initializers = append(g.initializers, t)
			return d.tensor(f, t, maxKept)
		case 15:
			s := &sparse{}
			g.sparse = append(g.sparse, s)
			return d.sparse(f, s)
		case 11:
			return d.port(f, &g.Inputs, main)
		case 12:
			return d.port(f, &g.Outputs, main)
		case 13:
			if main {
				return d.port(f, &g.between, false)
			}
		}
		return nil
	})
}

func (d *decoder) port(f *field, to *[]Port, main bool) error {
	if main && len(*to) == MaxPorts {
		return fault.New(fault.Invalid, "the model has more than %d inputs or outputs", MaxPorts)
	}
	if err := d.charge(128); err != nil {
		return err
	}
	*to = append(*to, Port{})
	p := &(*to)[len(*to)-1]
	return f.message(func(f *field) error {
		switch f.number {
		case 1:
			return f.string(&p.Name)
		case 2:
			return f.message(func(f *field) error { // TypeProto: tensor 1, sequence 4, map 5, opaque 7, sparse 8, optional 9
				switch f.number {
				case 1:
					if p.Kind != Dense {
						p.Kind, p.Element, p.Shape = Dense, 0, nil
					}
					return d.tensorType(f, p)
				case 4, 5, 7, 8, 9:
					p.Kind = Other
				}
				return nil
			})
		}
		return nil
	})
}

func (d *decoder) tensorType(f *field, p *Port) error {
	return f.message(func(f *field) error {
		switch f.number {
		case 1:
			p.Element = f.value
			return f.is(wireVarint)
		case 2:
			if p.Shape == nil {
				p.Shape = []int64{}
			}
			return f.message(func(f *field) error {
				if f.number != 1 {
					return nil
				}
				if len(p.Shape) == maxRank {
					return fault.New(fault.Invalid, "value %q has more than %d dimensions", p.Name, maxRank)
				}
				size := int64(-1)
				err := f.message(func(f *field) error {
					switch f.number {
					case 1:
						size = max(-1, int64(f.value)) //nolint:gosec // G115: a negative int64 is written as the large uint64
						return f.is(wireVarint)
					case 2:
						size = -1
					}
					return nil
				})
				p.Shape = append(p.Shape, size)
				return err
			})
		}
		return nil
	})
}

func (d *decoder) function(f *field) error {
	if err := d.charge(256); err != nil {
		return err
	}
	fn := &Function{bytes: f.size}
	d.out.Functions = append(d.out.Functions, fn)
	return f.message(func(f *field) error {
		switch f.number {
		case 1:
			return f.string(&fn.name)
		case 4:
			return f.strings(&fn.inputs)
		case 5:
			return f.strings(&fn.outputs)
		case 6:
			return f.strings(&fn.attributes)
		case 7:
			n, err := d.node(f, 0)
			if n != nil {
				n.at = len(fn.nodes)
			}
			fn.nodes = append(fn.nodes, n)
			return err
		case 10:
			return f.string(&fn.domain)
		case 11:
			a := &attribute{}
			fn.defaults = append(fn.defaults, a)
			return d.attribute(f, a, 0)
		case 13:
			return f.string(&fn.overload)
		}
		return nil
	})
}

func (d *decoder) node(f *field, nested int) (*node, error) {
	if d.nodes++; d.nodes > MaxNodes {
		return nil, fault.New(fault.Invalid, "the model has more than %d nodes", MaxNodes)
	}
	if err := d.charge(256); err != nil {
		return nil, err
	}
	n := &node{}
	return n, f.message(func(f *field) error {
		switch f.number {
		case 1:
			return f.strings(&n.inputs)
		case 2:
			return f.strings(&n.outputs)
		case 3:
			return f.string(&n.name)
		case 4:
			return f.string(&n.op)
		case 5:
			a := &attribute{}
			n.attributes = append(n.attributes, a)
			return d.attribute(f, a, nested)
		case 7:
			return f.string(&n.domain)
		case 8:
			return f.string(&n.overload)
		}
		return nil
	})
}

// The types of attributes, which are the bits of attribute.has, too.
const (
	typeFloat = 1 + iota
	typeInt
	typeString
	typeTensor
	typeGraph
	typeFloats
	typeInts
	typeStrings
	typeTensors
	typeGraphs
	typeSparse
	typeSparses
)

func (d *decoder) attribute(f *field, a *attribute, nested int) error {
	if err := d.charge(256); err != nil {
		return err
	}
	return f.message(func(f *field) error {
		has := func(kind int) { a.has |= 1 << kind }
		switch f.number {
		case 1:
			return f.string(&a.name)
		case 2:
			has(typeFloat)
			a.f = float(f.value, false)
			return f.is(wire32)
		case 3:
			has(typeInt)
			return f.int(&a.i)
		case 4:
			has(typeString)
			return f.string(&a.s)
		case 5:
			has(typeTensor)
			if a.tensor == nil {
				a.tensor = &tensor{}
			}
			return d.tensor(f, a.tensor, maxKept)
		case 6:
			has(typeGraph)
			if a.graph == nil {
				a.graph = &Graph{}
			}
			return d.graph(f, a.graph, nested+1, false)
		case 7:
			has(typeFloats)
			n, err := f.fixed(false, 64-len(a.floats), func(v float64) { a.floats = append(a.floats, v) })
			a.nfloats += n
			return err
		case 8:
			has(typeInts)
			if a.ints == nil {
				a.ints = &numbers{}
			}
			return f.varints(func(v uint64) error {
				a.ints.add(int64(v)) //nolint:gosec // G115: a negative int64 is written as the large uint64
				return d.charge(4)
			})
		case 9:
			has(typeStrings)
			if a.strings == nil {
				a.strings = &words{}
			}
			before := d.memory
			s, err := f.bytes()
			if known := a.strings.add(s); known && err == nil {
				d.memory = before + 1
			}
			return err
		case 10:
			has(typeTensors)
			a.tensors++
			return d.tensor(f, &tensor{}, 0)
		case 11:
			has(typeGraphs)
			g := &Graph{}
			a.graphs = append(a.graphs, g)
			return d.graph(f, g, nested+1, false)
		case 20:
			a.kind = f.value
			return f.is(wireVarint)
		case 21:
			return f.string(&a.ref)
		case 22:
			has(typeSparse)
			if a.sparse == nil {
				a.sparse = &sparse{}
			}
			return d.sparse(f, a.sparse)
		case 23:
			has(typeSparses)
			s := &sparse{}
			a.sparses = append(a.sparses, s)
			return d.sparse(f, s)
		}
		return nil
	})
}

func (d *decoder) sparse(f *field, s *sparse) error {
	return f.message(func(f *field) error {
		switch f.number {
		case 1:
			return d.tensor(f, &s.values, 0)
		case 2:
			return d.tensor(f, &s.indices, MaxSparse)
		case 3:
			return d.dims(f, &s.dims)
		}
		return nil
	})
}

func (d *decoder) dims(f *field, to *[]int64) error {
	return f.varints(func(v uint64) error {
		if len(*to) == maxRank {
			return fault.New(fault.Invalid, "a tensor has more than %d dimensions", maxRank)
		}
		*to = append(*to, int64(v)) //nolint:gosec // G115: a negative int64 is written as the large uint64
		return nil
	})
}

// The counted lists of a tensor.
const (
	floatData = iota
	int32Data
	int64Data
	doubleData
	uint64Data
)

// tensor reads a tensor and, when it has at most keep elements, its values.
func (d *decoder) tensor(f *field, t *tensor, keep int) error {
	if err := d.charge(384); err != nil {
		return err
	}
	outside := func() {
		t.external = true
	}
	whole := func(list int) error {
		return f.varints(func(v uint64) error {
			if t.counts[list]++; t.counts[list] <= keep {
				t.words = append(t.words, int64(v)) //nolint:gosec // G115: a negative int64 is written as the large uint64
				return d.charge(8)
			}
			return nil
		})
	}
	was := t.external
	var at string
	err := f.message(func(g *field) error {
		f = g
		switch f.number {
		case 1:
			return d.dims(f, &t.dims)
		case 2:
			t.element = f.value
			return f.is(wireVarint)
		case 4, 10:
			list := floatData
			if f.number == 10 {
				list = doubleData
			}
			n, err := f.fixed(f.number == 10, min(keep, 64)-len(t.reals), func(v float64) { t.reals = append(t.reals, v) })
			t.counts[list] += n
			return err
		case 5:
			return whole(int32Data)
		case 6:
			t.strings++
			return f.is(wireBytes)
		case 7:
			return whole(int64Data)
		case 11:
			return whole(uint64Data)
		case 8:
			return f.string(&t.name)
		case 9:
			t.raw, t.size, t.data = true, f.size, nil
			if f.wire != wireBytes {
				return ErrMalformed
			}
			if f.size <= 8*int64(keep) {
				if err := d.charge(2 * f.size); err != nil {
					return err
				}
				b, err := f.take()
				t.data = b
				return err
			}
		case 13:
			outside()
			return d.entry(f, &at)
		case 14:
			if f.value != 0 {
				outside()
			}
			return f.is(wireVarint)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if t.external {
		if !was {
			d.out.outside = append(d.out.outside, t.name)
		}
		if at != "" {
			d.out.locations = append(d.out.locations, at)
		}
	}
	t.values()
	return nil
}

// take copies the bytes of a field.
func (f *field) take() ([]byte, error) {
	b, err := f.d.take(f.size)
	return append([]byte{}, b...), err
}

// entry reads a StringStringEntryProto of external data.
func (d *decoder) entry(f *field, location *string) error {
	var key, value string
	err := f.message(func(f *field) error {
		switch f.number {
		case 1:
			return f.string(&key)
		case 2:
			return f.string(&value)
		}
		return nil
	})
	if key == "location" {
		*location = value
	}
	return err
}

// widths are how many bits an element has, by TensorProto.DataType; 0: not a number.
var widths = [...]int64{
	1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 8: 0, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128, 16: 16,
	17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2,
}

const textElement = 8 // TensorProto.STRING

// values reads what the kept data say: integers, or floats.
func (t *tensor) values() {
	n, ok := product(t.dims)
	t.ints, t.floats = nil, nil
	if !ok {
		return
	}
	if !t.raw {
		switch {
		case int64(len(t.words)) == n && (t.element == 2 || t.element == 3 || t.element == 4 || t.element == 5 || t.element == 6 || t.element == 7 || t.element == 9 || t.element == 12 || t.element == 13):
			t.ints = t.words
		case int64(len(t.reals)) == n && (t.element == 1 || t.element == 11):
			t.floats = t.reals
		}
		return
	}
	if t.data == nil && t.size > 0 || t.element >= uint64(len(widths)) || int64(len(t.data))*8 != n*widths[t.element] {
		return
	}
	le := binary.LittleEndian
	for i := range int(n) {
		b := t.data
		switch t.element {
		case 1:
			t.floats = append(t.floats, float64(math.Float32frombits(le.Uint32(b[4*i:]))))
		case 11:
			t.floats = append(t.floats, math.Float64frombits(le.Uint64(b[8*i:])))
		case 2, 9:
			t.ints = append(t.ints, int64(b[i]))
		case 3:
			t.ints = append(t.ints, int64(int8(b[i]))) //nolint:gosec // as it is stored
		case 4:
			t.ints = append(t.ints, int64(le.Uint16(b[2*i:])))
		case 5:
			t.ints = append(t.ints, int64(int16(le.Uint16(b[2*i:])))) //nolint:gosec // as it is stored
		case 6:
			t.ints = append(t.ints, int64(int32(le.Uint32(b[4*i:])))) //nolint:gosec // as it is stored
		case 12:
			t.ints = append(t.ints, int64(le.Uint32(b[4*i:])))
		case 7, 13:
			t.ints = append(t.ints, int64(le.Uint64(b[8*i:]))) //nolint:gosec // as it is stored
		}
	}
	if n == 0 && t.element != 1 && t.element != 11 {
		t.ints = []int64{}
	}
}

// product is how many elements a shape has, when it is one and they can be counted. As in
// runtimes, a size may not overflow beside a zero either.
func product(dims []int64) (int64, bool) {
	n, zero := int64(1), false
	for _, d := range dims {
		switch {
		case d < 0 || d > MaxElements:
			return 0, false
		case d == 0:
			zero = true
			continue
		case n > MaxElements/d:
			return 0, false
		}
		n *= d
	}
	if zero {
		return 0, true
	}
	return n, true
}
