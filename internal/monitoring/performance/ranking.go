package performance

import (
	"cmp"
	"math"
	"slices"
)

const (
	// MaxExact is how many rows are kept as they came; above, scores are rounded
	// to 1/8192.
	MaxExact = 10_000
	steps    = 8192
)

// ranking is scores in [0, 1] with the weight of positive and negative rows.
type ranking struct {
	rows []group   // nil once there are too many
	pos  []float64 // then by score·steps
	neg  []float64
}

// group is a score and how many rows have it.
type group struct{ score, pos, neg float64 }

func (r *ranking) add(score, pos, neg float64) {
	if r.pos == nil && len(r.rows) < MaxExact {
		r.rows = append(r.rows, group{score, pos, neg})
		return
	}
	if r.pos == nil {
		r.pos, r.neg = make([]float64, steps+1), make([]float64, steps+1)
		for _, g := range r.rows {
			r.put(g)
		}
		r.rows = nil
	}
	r.put(group{score, pos, neg})
}

func (r *ranking) put(g group) {
	at := int(math.Round(g.score * steps))
	r.pos[at] += g.pos
	r.neg[at] += g.neg
}

// groups are the different scores, ascending.
func (r *ranking) groups() []group {
	var out []group
	if r.pos != nil {
		for i := range r.pos {
			if r.pos[i]+r.neg[i] > 0 {
				out = append(out, group{float64(i) / steps, r.pos[i], r.neg[i]})
			}
		}
		return out
	}
	sorted := slices.SortedFunc(slices.Values(r.rows), func(a, b group) int { return cmp.Compare(a.score, b.score) })
	for _, g := range sorted {
		if n := len(out); n > 0 && out[n-1].score == g.score {
			out[n-1].pos += g.pos
			out[n-1].neg += g.neg
			continue
		}
		out = append(out, g)
	}
	return out
}

// area is the area under the ROC curve: the chance that a positive row has a
// higher score than a negative one, equal scores counting half; with the interval
// of DeLong, DeLong and Clarke-Pearson (1988) on the logit scale. Weights may be
// fractions.
func area(groups []group) Metric {
	var pos, neg float64
	for _, g := range groups {
		pos += g.pos
		neg += g.neg
	}
	if pos == 0 || neg == 0 {
		return undefined(AUC, "every row has the same label")
	}
	below := 0.0
	auc := 0.0
	for _, g := range groups {
		auc += g.pos * (below + g.neg/2) / (pos * neg)
		below += g.neg
	}
	auc = math.Min(1, auc)
	m := Metric{Name: AUC, Value: auc, Low: math.NaN(), High: math.NaN()}
	if pos < 2 || neg < 2 {
		m.Note = "an interval requires two rows per label"
		return m
	}
	var spreadPos, spreadNeg float64
	below, above := 0.0, pos
	for _, g := range groups {
		above -= g.pos
		dp := (below+g.neg/2)/neg - auc
		dn := (above+g.pos/2)/pos - auc
		spreadPos += g.pos * dp * dp
		spreadNeg += g.neg * dn * dn
		below += g.neg
	}
	se := math.Sqrt(spreadPos/(pos-1)/pos + spreadNeg/(neg-1)/neg)
	switch {
	case se == 0 || auc <= 0 || auc >= 1:
		// All pairs agree, which says as much as so many independent pairs.
		edge := 1 - math.Pow(0.025, 1/math.Min(pos, neg))
		m.Low, m.High = math.Max(0, auc-edge), math.Min(1, auc+edge)
	default:
		logit, h := math.Log(auc/(1-auc)), z*se/(auc*(1-auc))
		m.Low, m.High = 1/(1+math.Exp(h-logit)), 1/(1+math.Exp(-h-logit))
	}
	return m
}
