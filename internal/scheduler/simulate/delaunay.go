package simulate

import (
	"math"
	"slices"
)

// point is a measured configuration (nodes, replicas, local batch) and its times
// in seconds.
type point struct {
	at         [3]float64
	step, sync float64
}

// interpolate gives the times at q, piecewise linear over the Delaunay
// triangulation of the points; ok is false outside their convex hull.
//
// Delaunay's simplices are the lower facets of the hull of the points lifted to a
// paraboloid (Brown 1979), so the weights of the corners around q solve a linear
// programme: of all convex combinations of the points whose mean is q, they have
// the least mean squared distance from q. Nothing is triangulated: the programme
// has four rows and is solved by the simplex method, by Bland's rule, because grids
// are degenerate everywhere.
//
// Points on one empty sphere, such as the corners of a box, can be divided in
// several ways, all of them Delaunay's. A second cost chooses one, the same for
// all queries. None is right: qhull's choice, on which the published numbers
// rest, comes from the order in which it met the points. This cost divides the
// few boxes through which the published runs pass as qhull did.
func interpolate(points []point, q [3]float64) (step, sync float64, ok bool) {
	n := len(points)
	// Columns 0..n-1 are the points, n..n+3 artificial; the last is the right side.
	var a [rows][]float64
	for r := range a {
		a[r] = make([]float64, n+rows+1)
		a[r][n+r] = 1
	}
	// Costs in order of weight: artificial, squared distance, tie.
	var cost [3][]float64
	for k := range cost {
		cost[k] = make([]float64, n+rows+1)
	}
	for i, p := range points {
		for r := range 3 {
			d := p.at[r] - q[r]
			a[r][i] = d
			cost[1][i] += d * d
		}
		a[3][i] = 1
		cost[2][i] = -p.at[2] * math.Abs(p.at[0]-3*p.at[1]/7)
	}
	a[3][n+rows] = 1
	tolerance := [3]float64{1e-9, 1e-12 * max(1, slices.Max(cost[1])), 1e-9}
	var basis [rows]int
	for r := range basis {
		basis[r] = n + r
		for i := range n + rows + 1 {
			if i < n || i == n+rows {
				cost[0][i] -= a[r][i]
			}
		}
	}
	for range 10_000 {
		enter := -1
		for i := range n {
			if worth(cost, tolerance, i) {
				enter = i
				break
			}
		}
		if enter < 0 {
			break
		}
		leave := leaving(&a, &basis, enter)
		if leave == none {
			return 0, 0, false // cannot be: the costs are bounded below
		}
		pivot(a[leave], enter)
		for r := range a {
			if r != leave {
				eliminate(a[r], a[leave], enter)
			}
		}
		for k := range cost {
			eliminate(cost[k], a[leave], enter)
		}
		basis[leave] = enter
	}
	for r, i := range basis {
		weight := a[r][n+rows]
		if i >= n {
			if weight > eps {
				return 0, 0, false
			}
			continue
		}
		step += weight * points[i].step
		sync += weight * points[i].sync
	}
	return step, sync, true
}

const (
	rows = 4 // of the programme: three coordinates, and weights that sum to 1
	none = rows
	eps  = 1e-9
)

// leaving is the row whose variable column enter drives to zero first; of equals
// the one with the least index.
func leaving(a *[rows][]float64, basis *[rows]int, enter int) int {
	leave, least, index := none, math.Inf(1), 0
	for r, row := range a {
		if row[enter] <= eps {
			continue
		}
		ratio := row[len(row)-1] / row[enter]
		if ratio < least-eps || ratio <= least+eps && basis[r] < index {
			leave, least, index = r, min(ratio, least), basis[r]
		}
	}
	return leave
}

// worth says whether column i lowers the costs, the first that is not zero.
func worth(cost [3][]float64, tolerance [3]float64, i int) bool {
	for k := range cost {
		if v := cost[k][i]; math.Abs(v) > tolerance[k] {
			return v < 0
		}
	}
	return false
}

func pivot(row []float64, col int) {
	by := row[col]
	for i := range row {
		row[i] /= by
	}
}

func eliminate(row, by []float64, col int) {
	if f := row[col]; f != 0 {
		for i := range row {
			row[i] -= f * by[i]
		}
		row[col] = 0
	}
}
