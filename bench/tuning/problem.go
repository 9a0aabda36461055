package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"github.com/falaj-ml/falaj/internal/tuning/space"
)

// problem is something to minimise whose least value is 0; peer.py has the same.
type problem struct {
	name  string
	space space.Space
	loss  func(space.Params) float64
}

// functions are known from papers on optimisation, and two in the shape of what is tuned.
func functions() []problem {
	category := func(name string, choices ...any) space.Parameter {
		return space.Parameter{Name: name, Type: space.Categorical, Choices: choices}
	}
	only := func(p space.Parameter, parent string, value any) space.Parameter {
		p.When = &space.Condition{Parameter: parent, In: space.Choices{value}}
		return p
	}
	rate := space.Parameter{Name: "lr", Type: space.Float, Low: 1e-5, High: 1, Log: true}
	return []problem{
		{"branin", space.Space{Parameters: []space.Parameter{
			{Name: "x0", Type: space.Float, Low: -5, High: 10}, {Name: "x1", Type: space.Float, Low: 0, High: 15},
		}}, branin},
		{"hartmann6", cube(6, 0, 1), hartmann6},
		{"ackley", cube(5, -15, 30), ackley},
		{"rosenbrock", cube(4, -5, 10), rosenbrock},
		{"mixed", space.Space{Parameters: []space.Parameter{
			rate,
			{Name: "dropout", Type: space.Float, High: 0.9, Step: 0.05},
			{Name: "layers", Type: space.Int, Low: 1, High: 10},
			{Name: "units", Type: space.Int, Low: 8, High: 1024, Log: true},
			category("activation", "relu", "tanh", "gelu", "sigmoid"),
			category("norm", true, false),
		}}, mixed},
		{"conditional", space.Space{Parameters: []space.Parameter{
			category("model", "linear", "tree", "net"),
			only(space.Parameter{Name: "c", Type: space.Float, Low: 1e-3, High: 1e3, Log: true}, "model", "linear"),
			only(space.Parameter{Name: "depth", Type: space.Int, Low: 1, High: 20}, "model", "tree"),
			only(space.Parameter{Name: "leaf", Type: space.Int, Low: 1, High: 256, Log: true}, "model", "tree"),
			only(rate, "model", "net"),
			only(space.Parameter{Name: "dropout", Type: space.Float, High: 0.9}, "model", "net"),
			only(space.Parameter{Name: "layers", Type: space.Int, Low: 1, High: 2}, "model", "net"),
			only(space.Parameter{Name: "units2", Type: space.Int, Low: 4, High: 512, Log: true}, "layers", int64(2)),
		}}, conditional},
	}
}

func cube(n int, low, high float64) (s space.Space) {
	for i := range n {
		s.Parameters = append(s.Parameters, space.Parameter{Name: "x" + strconv.Itoa(i), Type: space.Float, Low: low, High: high})
	}
	return s
}

// number is a value of a float or int.
func number(p space.Params, name string) float64 {
	switch v := p[name].(type) {
	case int64:
		return float64(v)
	case float64:
		return v
	}
	return math.NaN()
}

func vector(p space.Params) []float64 {
	x := make([]float64, len(p))
	for i := range x {
		x[i] = number(p, "x"+strconv.Itoa(i))
	}
	return x
}

func square(x float64) float64 { return x * x }

func branin(p space.Params) float64 {
	x, y := number(p, "x0"), number(p, "x1")
	return square(y-5.1/(4*math.Pi*math.Pi)*x*x+5/math.Pi*x-6) + 10*(1-1/(8*math.Pi))*math.Cos(x) + 10 - 0.39788735772973816
}

func hartmann6(p space.Params) float64 {
	a := [4][6]float64{{10, 3, 17, 3.5, 1.7, 8}, {0.05, 10, 17, 0.1, 8, 14}, {3, 3.5, 1.7, 10, 17, 8}, {17, 8, 0.05, 10, 0.1, 14}}
	c := [4][6]float64{{1312, 1696, 5569, 124, 8283, 5886}, {2329, 4135, 8307, 3736, 1004, 9991}, {2348, 1451, 3522, 2883, 3047, 6650}, {4047, 8828, 8732, 5743, 1091, 381}}
	w := [4]float64{1, 1.2, 3, 3.2}
	out := 3.322368011415515
	for i := range a {
		sum := 0.0
		for j, x := range vector(p) {
			sum += a[i][j] * square(x-c[i][j]*1e-4)
		}
		out -= w[i] * math.Exp(-sum)
	}
	return out
}

func ackley(p space.Params) float64 {
	var squares, cosines float64
	for _, x := range vector(p) {
		squares += x * x
		cosines += math.Cos(2 * math.Pi * x)
	}
	n := float64(len(p))
	return -20*math.Exp(-0.2*math.Sqrt(squares/n)) - math.Exp(cosines/n) + 20 + math.E
}

func rosenbrock(p space.Params) float64 {
	x, sum := vector(p), 0.0
	for i := range len(x) - 1 {
		sum += 100*square(x[i+1]-x[i]*x[i]) + square(1-x[i])
	}
	return sum
}

func mixed(p space.Params) float64 {
	layers, dropout := number(p, "layers"), 0.1
	if p["activation"] == "relu" {
		dropout = 0.3
	}
	activation, _ := p["activation"].(string)
	out := square(math.Log10(number(p, "lr"))+3+0.25*(layers-4)) + 4*square(number(p, "dropout")-dropout) + square(layers-4)/8 +
		square(math.Log2(number(p, "units"))-7)/4 + map[string]float64{"tanh": 0.3, "gelu": 0.1, "sigmoid": 1}[activation]
	if p["norm"] != true {
		out += 0.2
	}
	return out
}

func conditional(p space.Params) float64 {
	switch p["model"] {
	case "linear":
		return 0.6 + square(math.Log10(number(p, "c"))-1)/10
	case "tree":
		return 0.2 + square(number(p, "depth")-7)/40 + square(math.Log2(number(p, "leaf"))-3)/20
	}
	out := square(math.Log10(number(p, "lr"))+2.5)/4 + square(number(p, "dropout")-0.2)
	if number(p, "layers") == 1 {
		return out + 0.15
	}
	return out + square(math.Log2(number(p, "units2"))-6)/10
}

// tables are those that the peer wrote: what networks reached with each combination of
// choices, the mean of their seeds, over what the best did.
func (b *bench) tables() ([]problem, error) {
	text, err := os.ReadFile(filepath.Join(b.Dir, "tables.json"))
	if err != nil {
		return nil, err
	}
	var tables []struct {
		Name       string   `json:"name"`
		Parameters []string `json:"parameters"`
		Sizes      []int    `json:"sizes"`
		Ordered    []bool   `json:"ordered"` // numbers; the others are names
	}
	if err := json.Unmarshal(text, &tables); err != nil {
		return nil, err
	}
	var out []problem
	for _, t := range tables {
		p := problem{name: t.Name}
		count := 1
		for i, name := range t.Parameters {
			q := space.Parameter{Name: name, Type: space.Int, High: float64(t.Sizes[i] - 1)}
			if !t.Ordered[i] {
				q = space.Parameter{Name: name, Type: space.Categorical}
				for c := range t.Sizes[i] {
					q.Choices = append(q.Choices, "choice "+strconv.Itoa(c))
				}
			}
			p.space.Parameters = append(p.space.Parameters, q)
			count *= t.Sizes[i]
		}
		raw, err := os.ReadFile(filepath.Join(b.Dir, t.Name+".f64"))
		if err != nil {
			return nil, err
		}
		if len(raw) != count*8 {
			return nil, fmt.Errorf("the table %s has %d bytes, not %d values", t.Name, len(raw), count)
		}
		values := make([]float64, count)
		if err := binary.Read(bytes.NewReader(raw), binary.LittleEndian, values); err != nil {
			return nil, err
		}
		p.loss = func(params space.Params) float64 {
			at := 0
			for i, q := range p.space.Parameters {
				x, err := q.Encode(params[q.Name])
				if err != nil {
					return math.NaN()
				}
				at = at*t.Sizes[i] + int(x)
			}
			return values[at]
		}
		out = append(out, p)
	}
	return out, nil
}
