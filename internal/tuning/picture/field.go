package picture

import "math"

// field estimates values between points of the unit square, each the mean of all
// points weighed by the inverse of the square of their distance (Shepard, "A
// two-dimensional interpolation function for irregularly-spaced data", ACM 1968).
type field struct {
	points []spot
	cells  int
	x, y   func(u float64) float64 // from the unit square to the axes
	z      []float64
}

type spot struct{ x, y, z float64 }

func newField(points []spot, cells int, x, y func(float64) float64) *field {
	f := &field{points: points, cells: cells, x: x, y: y, z: make([]float64, cells*cells)}
	for r := range cells {
		for c := range cells {
			f.z[r*cells+c] = f.at(f.unit(c), f.unit(r))
		}
	}
	return f
}

func (f *field) unit(i int) float64 { return float64(i) / float64(f.cells-1) }

func (f *field) at(x, y float64) float64 {
	sum, weights := 0.0, 0.0
	for _, p := range f.points {
		d := (p.x-x)*(p.x-x) + (p.y-y)*(p.y-y)
		w := 1 / math.Max(d, 1e-9)
		sum, weights = sum+w*p.z, weights+w
	}
	return sum / weights
}

// Dims implements plotter.GridXYZ.
func (f *field) Dims() (c, r int) { return f.cells, f.cells }

// Z implements plotter.GridXYZ.
func (f *field) Z(c, r int) float64 { return f.z[r*f.cells+c] }

// X implements plotter.GridXYZ.
func (f *field) X(c int) float64 { return f.x(f.unit(c)) }

// Y implements plotter.GridXYZ.
func (f *field) Y(r int) float64 { return f.y(f.unit(r)) }
