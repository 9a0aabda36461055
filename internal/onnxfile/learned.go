package onnxfile

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

var transforms = strings.Fields("NONE SOFTMAX LOGISTIC SOFTMAX_ZERO PROBIT")

// learned are operators of ai.onnx.ml that have demands.
var learned = map[string][]demand{
	"TreeEnsembleClassifier": {text("post_transform", transforms...), trees("class")},
	"TreeEnsembleRegressor":  {text("post_transform", transforms...), text("aggregate_function", "AVERAGE", "SUM", "MIN", "MAX"), one(1, MaxUnpacked, "n_targets"), trees("target")},
	"TreeEnsemble":           {one(1, MaxUnpacked, "n_targets"), one(0, 4, "post_transform"), one(0, 3, "aggregate_function"), ensemble},
	"LinearClassifier":       {required("coefficients"), text("post_transform", transforms...), linearClassifier},
	"LinearRegressor":        {text("post_transform", transforms...), one(1, MaxUnpacked, "targets"), linearRegressor},
	"SVMClassifier":          {text("post_transform", transforms...), text("kernel_type", "LINEAR", "POLY", "RBF", "SIGMOID"), support},
	"SVMRegressor":           {text("post_transform", transforms...), text("kernel_type", "LINEAR", "POLY", "RBF", "SIGMOID"), one(0, large, "n_supports"), one(0, 1, "one_class"), supported},
	"Scaler":                 {columns("offset", "scale")},
	"Normalizer":             {text("norm", "MAX", "L1", "L2")},
	"Imputer":                {oneOf("imputed_value_floats", "imputed_value_int64s"), columns("imputed_value_floats")},
	"OneHotEncoder":          {oneOf("cats_int64s", "cats_strings")},
	"ZipMap":                 {oneOf("classlabels_int64s", "classlabels_strings")},
	"DictVectorizer":         {oneOf("int64_vocabulary", "string_vocabulary")},
	"CategoryMapper":         {alike("cats_int64s", "cats_strings")},
	"LabelEncoder":           {alike("keys_strings", "keys_int64s", "keys_floats", "values_strings", "values_int64s", "values_floats")},
	"FeatureVectorizer":      {each(0, large, "inputdimensions"), vectorized},
	"ArrayFeatureExtractor":  {inputs(2), extracted},
}

// count is how many values an attribute has, of whatever type; -1: it is not there.
func (c *call) count(name string) int64 {
	a := c.attribute(name)
	switch {
	case a == nil:
		return -1
	case a.tensor != nil:
		n, _ := product(a.tensor.dims)
		return n
	case a.strings != nil:
		return int64(a.strings.n)
	}
	return int64(a.ints.len() + a.nfloats)
}

// either is how many values the first attribute has that is there and not empty; 0: none.
func (c *call) either(names ...string) int64 {
	for _, name := range names {
		if n := c.count(name); n > 0 {
			return n
		}
	}
	return 0
}

func oneOf(names ...string) demand {
	return func(c *call) error {
		n := 0
		for _, name := range names {
			if c.count(name) > 0 {
				n++
			}
			if c.unknown(name) {
				return nil
			}
		}
		if n != 1 {
			return invalid("it takes one of the attributes %s, and has %d", strings.Join(names, ", "), n)
		}
		return nil
	}
}

// alike demands that the lists that are there are as long as each other.
func alike(names ...string) demand {
	return func(c *call) error {
		first := ""
		for _, name := range names {
			n := c.count(name)
			switch {
			case n < 1:
			case first == "":
				first = name
			case n != c.count(first):
				return invalid("attribute %s has %d values, and %s has %d", name, n, first, c.count(first))
			}
		}
		return nil
	}
}

// features is how many columns the input has; -1: unknown.
func (c *call) features() int64 {
	x := c.in(0)
	if r := x.rank(); r == 1 || r == 2 {
		return x.size(r - 1)
	}
	return -1
}

// columns demands lists of one number, or of one for each column of the input.
func columns(names ...string) demand {
	return func(c *call) error {
		for _, name := range names {
			n, want := c.count(name), c.features()
			if n == 0 || n > 1 && want >= 0 && n != want {
				return invalid("attribute %s has %d numbers, and its input has %d columns", name, n, want)
			}
		}
		return alikeOrOne(c, names)
	}
}

func alikeOrOne(c *call, names []string) error {
	for _, name := range names[1:] {
		if a, b := c.count(names[0]), c.count(name); a > 1 && b > 1 && a != b {
			return invalid("attribute %s has %d numbers, and %s has %d", names[0], a, name, b)
		}
	}
	return nil
}

func vectorized(c *call) error {
	if n := c.count("inputdimensions"); n >= 0 && n != int64(len(c.node.inputs)) {
		return invalid("attribute inputdimensions has %d numbers, and it has %d inputs", n, len(c.node.inputs))
	}
	return nil
}

func extracted(c *call) error {
	x := c.in(0)
	if x.rank() < 1 {
		return nil
	}
	n := x.size(x.rank() - 1)
	for _, i := range c.in(1).ints {
		if n >= 0 && (i < 0 || i >= n) {
			return invalid("it takes column %d of an input that has %d", i, n)
		}
	}
	return nil
}

// coefficients demands as many as there are rows times columns.
func (c *call) coefficients(rows int64) error {
	n, width := c.count("coefficients"), c.features()
	switch {
	case n < 1 || rows < 1:
		return invalid("it has %d coefficients for %d rows", max(0, n), rows)
	case n%rows != 0:
		return invalid("it has %d coefficients, which is not a multiple of %d", n, rows)
	case width >= 0 && n/rows < width:
		return invalid("it has coefficients for %d columns, and its input has %d", n/rows, width)
	}
	return nil
}

func linearClassifier(c *call) error {
	if c.unknown("coefficients") {
		return nil
	}
	classes, labels := c.count("intercepts"), c.either("classlabels_ints", "classlabels_strings")
	if classes < 1 {
		classes = max(1, labels)
	}
	if labels > 0 && labels != classes && (labels != 2 || classes != 1) {
		return invalid("it has %d class labels and %d intercepts", labels, classes)
	}
	return c.coefficients(classes)
}

func linearRegressor(c *call) error {
	if c.unknown("coefficients") || c.unknown("targets") {
		return nil
	}
	targets := c.integer("targets", 1)
	if n := c.count("intercepts"); n > 0 && n != targets {
		return invalid("it has %d intercepts for %d targets", n, targets)
	}
	return c.coefficients(targets)
}

// support checks SVMClassifier.
func support(c *call) error {
	if n := c.count("kernel_params"); n > 0 && n != 3 {
		return invalid("attribute kernel_params has %d numbers; it takes 3", n)
	}
	if err := each(0, large, "vectors_per_class")(c); err != nil || c.unknown("coefficients") {
		return err
	}
	per, labels := c.list("vectors_per_class"), c.either("classlabels_ints", "classlabels_strings")
	classes, vectors := int64(len(per)), int64(0)
	for _, n := range per {
		vectors += n
	}
	if vectors == 0 { // a linear one, with coefficients for each class
		if labels == 0 {
			return invalid("it has no class labels")
		}
		n := c.count("coefficients")
		if n < labels && n < 1 || n%labels != 0 {
			return invalid("it has %d coefficients for %d class labels", max(0, n), labels)
		}
		if r := c.count("rho"); r < 1 {
			return invalid("attribute rho is missing")
		}
		return nil
	}
	n, pairs := c.count("support_vectors"), classes*(classes-1)/2
	switch {
	case n < 1 || n%vectors != 0:
		return invalid("attribute support_vectors has %d numbers, which is not a multiple of the %d vectors", max(0, n), vectors)
	case c.features() >= 0 && n/vectors < c.features():
		return invalid("its support vectors have %d columns, and its input has %d", n/vectors, c.features())
	case labels > 0 && labels != classes:
		return invalid("it has %d class labels, and attribute vectors_per_class is for %d", labels, classes)
	case c.count("coefficients") != vectors*(classes-1):
		return invalid("it has %d coefficients; for %d vectors of %d classes it takes %d", c.count("coefficients"), vectors, classes, vectors*(classes-1))
	case c.count("rho") < pairs:
		return invalid("attribute rho has %d numbers; for %d classes it takes %d", c.count("rho"), classes, pairs)
	}
	for _, name := range []string{"prob_a", "prob_b"} {
		if k := c.count(name); k > 0 && k < pairs {
			return invalid("attribute %s has %d numbers; for %d classes it takes %d", name, k, classes, pairs)
		}
	}
	return alike("prob_a", "prob_b")(c)
}

// supported checks SVMRegressor.
func supported(c *call) error {
	if n := c.count("kernel_params"); n > 0 && n != 3 {
		return invalid("attribute kernel_params has %d numbers; it takes 3", n)
	}
	if c.unknown("coefficients") || c.unknown("n_supports") {
		return nil
	}
	if c.count("rho") < 1 {
		return invalid("attribute rho is missing")
	}
	supports, n := c.integer("n_supports", 0), c.count("support_vectors")
	if supports == 0 {
		return c.coefficients(1)
	}
	switch {
	case n < 1 || n%supports != 0:
		return invalid("attribute support_vectors has %d numbers, which is not a multiple of n_supports %d", max(0, n), supports)
	case c.features() >= 0 && n/supports < c.features():
		return invalid("its support vectors have %d columns, and its input has %d", n/supports, c.features())
	case c.count("coefficients") != supports:
		return invalid("it has %d coefficients for %d support vectors", c.count("coefficients"), supports)
	}
	return nil
}

// maxTreeDepth bounds trees: runtimes go down them by recursion.
const maxTreeDepth = 4096

// trees checks TreeEnsembleClassifier and TreeEnsembleRegressor: lists as long as each other,
// children that exist, no cycles, features of the input, and targets within their number.
func trees(of string) demand {
	return func(c *call) error {
		names := map[string]*attribute{}
		for _, name := range []string{
			"nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids", "nodes_missing_value_tracks_true", of + "_treeids", of + "_nodeids", of + "_ids",
		} {
			if c.unknown(name) {
				return nil
			}
			a, err := c.given(name, typeInts)
			if err != nil {
				return err
			}
			if a == nil {
				a = &attribute{}
			}
			names[name] = a
		}
		n := names["nodes_nodeids"].ints.len()
		if n == 0 {
			return invalid("it has no nodes of trees")
		}
		for _, name := range []string{"nodes_treeids", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids", "nodes_modes", "nodes_values"} {
			have := c.count(name)
			if name == "nodes_values" && have <= 0 {
				have = c.count("nodes_values_as_tensor")
			}
			if have != int64(n) {
				return invalid("attribute %s has %d values; for %d nodes it takes as many", name, max(0, have), n)
			}
		}
		for _, name := range []string{"nodes_hitrates", "nodes_hitrates_as_tensor", "nodes_missing_value_tracks_true"} {
			if have := c.count(name); have > 0 && have != int64(n) {
				return invalid("attribute %s has %d values; for %d nodes it takes as many", name, have, n)
			}
		}
		modes := c.attribute("nodes_modes").strings
		if modes == nil || modes.many {
			return invalid("attribute nodes_modes has invalid modes")
		}
		for _, m := range modes.distinct {
			if !slices.Contains([]string{"LEAF", "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"}, m) {
				return invalid("attribute nodes_modes has the invalid mode %q", clip(m))
			}
		}
		tree, id := names["nodes_treeids"].ints, names["nodes_nodeids"].ints
		order := make([]int32, n)
		for i := range order {
			order[i] = int32(i)
		}
		by := func(i int32, t, k int64) int {
			return cmp.Or(cmp.Compare(tree.at(int(i)), t), cmp.Compare(id.at(int(i)), k))
		}
		ascending := func(a, b int32) int { return by(a, tree.at(int(b)), id.at(int(b))) }
		if !slices.IsSortedFunc(order, ascending) {
			slices.SortFunc(order, ascending)
		}
		for i := 1; i < n; i++ {
			if ascending(order[i-1], order[i]) == 0 {
				return invalid("duplicate node %d of tree %d", id.at(int(order[i])), tree.at(int(order[i])))
			}
		}
		find := func(t, k int64) int32 {
			at, ok := slices.BinarySearchFunc(order, struct{}{}, func(i int32, _ struct{}) int { return by(i, t, k) })
			if !ok {
				return -1
			}
			return order[at]
		}
		width := c.features()
		children := make([]int32, 2*n)
		for i := range n {
			children[2*i], children[2*i+1] = -1, -1
			if modes.at(i) == "LEAF" {
				continue
			}
			if f := names["nodes_featureids"].ints.at(i); f < 0 || width >= 0 && f >= width {
				return invalid("node %d of tree %d asks for feature %d, and its input has %s", id.at(i), tree.at(i), f, pattern([]int64{width}))
			}
			for k, name := range []string{"nodes_truenodeids", "nodes_falsenodeids"} {
				to := names[name].ints.at(i)
				if children[2*i+k] = find(tree.at(i), to); children[2*i+k] < 0 {
					return invalid("node %d of tree %d has node %d below it, which does not exist", id.at(i), tree.at(i), to)
				}
			}
		}
		if at := below(children); at >= 0 {
			return invalid("node %d of tree %d is below itself, or more than %d deep", id.at(at), tree.at(at), maxTreeDepth)
		}
		return c.targets(of, names, find)
	}
}

// below gives a node that is below itself or has too many below it; -1: there is none.
func below(children []int32) int {
	n := len(children) / 2
	parents, depth := make([]int32, n), make([]int32, n)
	for _, k := range children {
		if k >= 0 {
			parents[k]++
		}
	}
	ready := make([]int32, 0, n)
	for i := range n {
		if parents[i] == 0 {
			ready = append(ready, int32(i))
		}
	}
	for at := 0; at < len(ready); at++ {
		i := ready[at]
		for _, k := range children[2*i : 2*i+2] {
			if k < 0 {
				continue
			}
			if depth[k] = max(depth[k], depth[i]+1); depth[k] > maxTreeDepth {
				return int(k)
			}
			if parents[k]--; parents[k] == 0 {
				ready = append(ready, k)
			}
		}
	}
	if len(ready) < n {
		return slices.IndexFunc(parents, func(p int32) bool { return p > 0 })
	}
	return -1
}

// targets checks the weights of the leaves.
func (c *call) targets(of string, names map[string]*attribute, find func(t, k int64) int32) error {
	weights := c.either(of+"_weights", of+"_weights_as_tensor")
	n := names[of+"_ids"].ints.len()
	if names[of+"_treeids"].ints.len() != n || names[of+"_nodeids"].ints.len() != n || weights != int64(n) {
		return invalid("attributes %[1]s_ids, %[1]s_treeids, %[1]s_nodeids and %[1]s_weights have %d, %d, %d and %d values; they take the same number", of,
			n, names[of+"_treeids"].ints.len(), names[of+"_nodeids"].ints.len(), weights)
	}
	most := c.integer("n_targets", 1)
	if of == "class" {
		if most = c.either("classlabels_int64s", "classlabels_strings"); most == 0 {
			return invalid("it has no class labels")
		}
	}
	if b := c.either("base_values", "base_values_as_tensor"); b > 1 && b != most {
		return invalid("attribute base_values has %d numbers for %d outputs", b, most)
	}
	for i := range n {
		if k := names[of+"_ids"].ints.at(i); k < 0 || k >= most {
			return invalid("attribute %s_ids has %d, and there are %d", of, k, most)
		}
		if t, k := names[of+"_treeids"].ints.at(i), names[of+"_nodeids"].ints.at(i); find(t, k) < 0 {
			return invalid("attribute %s_nodeids has node %d of tree %d, which does not exist", of, k, t)
		}
	}
	return nil
}

// ensemble checks TreeEnsemble, whose nodes and leaves are numbered by their places.
func ensemble(c *call) error {
	lists := map[string]*numbers{}
	for _, name := range []string{
		"nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids", "nodes_trueleafs", "nodes_falseleafs", "nodes_missing_value_tracks_true", "leaf_targetids", "tree_roots",
	} {
		if c.unknown(name) {
			return nil
		}
		a, err := c.given(name, typeInts)
		if err != nil {
			return err
		}
		if a != nil {
			lists[name] = a.ints
		}
	}
	n, leaves := lists["nodes_featureids"].len(), lists["leaf_targetids"].len()
	for _, name := range []string{"nodes_truenodeids", "nodes_falsenodeids", "nodes_trueleafs", "nodes_falseleafs"} {
		if lists[name].len() != n {
			return invalid("attribute %s has %d values; for %d nodes it takes as many", name, lists[name].len(), n)
		}
	}
	for _, name := range []string{"nodes_splits", "nodes_modes"} {
		if have := c.count(name); have != int64(n) {
			return invalid("attribute %s has %d values; for %d nodes it takes as many", name, max(0, have), n)
		}
	}
	if have := c.count("leaf_weights"); have != int64(leaves) {
		return invalid("attribute leaf_weights has %d values; for %d leaves it takes as many", max(0, have), leaves)
	}
	if a := c.attribute("nodes_modes"); a != nil && a.tensor != nil {
		for _, m := range a.tensor.ints {
			if m < 0 || m > 6 {
				return invalid("attribute nodes_modes has the invalid mode %d", m)
			}
		}
	}
	width, targets := c.features(), c.integer("n_targets", 1)
	children := make([]int32, 2*n)
	for i := range n {
		if f := lists["nodes_featureids"].at(i); f < 0 || width >= 0 && f >= width {
			return invalid("tree node %d asks for feature %d, and its input has %s", i, f, pattern([]int64{width}))
		}
		for k, side := range []string{"true", "false"} {
			to, leaf := lists["nodes_"+side+"nodeids"].at(i), lists["nodes_"+side+"leafs"].at(i) != 0
			most := n
			if leaf {
				most = leaves
			}
			if to < 0 || to >= int64(most) {
				return invalid("tree node %d has %d below it, which does not exist", i, to)
			}
			if children[2*i+k] = -1; !leaf {
				children[2*i+k] = int32(min(to, math.MaxInt32))
			}
		}
	}
	// A root whose tree is a single leaf has the same leaf on both sides.
	if at := below(children); at >= 0 {
		return invalid("tree node %d is below itself, or more than %d deep", at, maxTreeDepth)
	}
	for i := range lists["tree_roots"].len() {
		if r := lists["tree_roots"].at(i); r < 0 || r >= int64(n) {
			return invalid("attribute tree_roots has %d, and there are %d nodes", r, n)
		}
	}
	for i := range leaves {
		if t := lists["leaf_targetids"].at(i); t < 0 || t >= targets {
			return invalid("attribute leaf_targetids has %d, and there are %d targets", t, targets)
		}
	}
	return nil
}

// grams checks TfIdfVectorizer.
func grams(c *call) error {
	for _, d := range []demand{
		required("mode", "min_gram_length", "max_gram_length", "max_skip_count", "ngram_counts", "ngram_indexes"), text("mode", "TF", "IDF", "TFIDF"),
		one(1, 1<<20, "min_gram_length", "max_gram_length"), one(0, large, "max_skip_count"), each(0, large, "ngram_counts"), each(0, MaxUnpacked, "ngram_indexes"),
		oneOf("pool_int64s", "pool_strings"),
	} {
		if err := d(c); err != nil {
			return err
		}
	}
	if slices.ContainsFunc([]string{"ngram_counts", "ngram_indexes", "max_gram_length", "min_gram_length"}, c.unknown) {
		return nil
	}
	least, most := c.integer("min_gram_length", 1), c.integer("max_gram_length", 1)
	if least > most {
		return invalid("attribute min_gram_length is %d and max_gram_length is %d", least, most)
	}
	counts, pool := c.attribute("ngram_counts").ints, c.either("pool_int64s", "pool_strings")
	if int64(counts.len()) > most || int64(counts.len()) < least || counts.len() == 0 {
		return invalid("attribute ngram_counts has %d numbers, and its grams have %d to %d parts", counts.len(), least, most)
	}
	total := int64(0)
	for i := range counts.len() {
		from, to := counts.at(i), pool
		if i+1 < counts.len() {
			to = counts.at(i + 1)
		}
		size := int64(i + 1)
		if from > to || to > pool || (to-from)%size != 0 {
			return invalid("attribute ngram_counts has %d at %d, which does not begin grams of %d parts in a pool of %d", from, i, size, pool)
		}
		total += (to - from) / size
	}
	if n := int64(c.attribute("ngram_indexes").ints.len()); n != total {
		return invalid("attribute ngram_indexes has %d numbers for %d grams", n, total)
	}
	if n := c.count("weights"); n > 0 && n != total {
		return invalid("attribute weights has %d numbers for %d grams", n, total)
	}
	return nil
}
