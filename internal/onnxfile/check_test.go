package onnxfile_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/onnxfile"
	. "github.com/falaj-ml/falaj/internal/onnxfile/onnxfiletest"
)

// in is a graph's input of floats, out its output, and weight an initializer of zeros.
func in(name string, dims ...int64) []byte { return Part(GraphInput, Port(name, Floats, dims...)) }

func out(name string, dims ...int64) []byte { return Part(GraphOutput, Port(name, Floats, dims...)) }

func weight(name string, dims ...uint64) []byte {
	n := uint64(4)
	for _, d := range dims {
		n *= d
	}
	return Part(GraphInitializer, Tensor(name, Floats, make([]byte, n), dims...))
}

// whole is an initializer of integers.
func whole(name string, values ...int64) []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, values)
	return Part(GraphInitializer, Tensor(name, Integers, b, uint64(len(values))))
}

// ints, floats and texts are attributes.
func ints(name string, values ...int64) []byte {
	b := Word(1, name)
	for _, v := range values {
		b = append(b, Count(8, uint64(v))...)
	}
	return append(b, Count(20, 7)...)
}

func floats(name string, n int) []byte {
	return slices.Concat(Word(1, name), Part(7, make([]byte, 4*n)), Count(20, 6))
}

func float(name string, v float32) []byte {
	return slices.Concat(Word(1, name), Float(2, math.Float32bits(v)), Count(20, 1))
}

func word(name, s string) []byte { return slices.Concat(Word(1, name), Word(4, s), Count(20, 3)) }

func words(name string, values ...string) []byte {
	b := Word(1, name)
	for _, v := range values {
		b = append(b, Word(9, v)...)
	}
	return append(b, Count(20, 8)...)
}

func graph(name string, fields ...[]byte) []byte {
	return slices.Concat(Word(1, name), Part(6, fields...), Count(20, 5))
}

// of is a node of inputs a b c… that makes y, and is called n.
func of(op string, inputs int, attributes ...[]byte) []byte {
	names := make([]string, inputs)
	for i := range names {
		names[i] = string(rune('a' + i))
	}
	return Part(GraphNode, Op(op, names, []string{"y"}, attributes...), Word(3, "n"))
}

// ml puts a node into another domain.
func domain(node []byte, name string) []byte {
	_, _, n := protowire.ConsumeTag(node)
	b, _ := protowire.ConsumeBytes(node[n:])
	return Part(GraphNode, b, Word(7, name))
}

func ml(node []byte) []byte { return domain(node, "ai.onnx.ml") }
func ms(node []byte) []byte { return domain(node, "com.microsoft") }

// function is one of domain f.
func function(name string, nodes ...[]byte) []byte {
	return Part(ModelFunctions, Word(1, name), Word(4, "a"), Word(5, "y"), Word(10, "f"), slices.Concat(nodes...))
}

// calls is a node of a function that calls others, one after another.
func calls(names ...string) []byte {
	var b []byte
	from := "a"
	for i, name := range names {
		to := fmt.Sprintf("m%d", i)
		if i == len(names)-1 {
			to = "y"
		}
		b = append(b, Part(7, Op(name, []string{from}, []string{to}), Word(7, "f"))...)
		from = to
	}
	return b
}

// trees are the attributes of a small tree; change alters one of them.
func trees(change string, to ...int64) [][]byte {
	list := map[string][]int64{
		"nodes_treeids": {0, 0, 0}, "nodes_nodeids": {0, 1, 2}, "nodes_featureids": {1, 0, 0}, "nodes_truenodeids": {1, 0, 0}, "nodes_falsenodeids": {2, 0, 0},
		"target_treeids": {0, 0}, "target_nodeids": {1, 2}, "target_ids": {0, 0},
	}
	if _, ok := list[change]; ok {
		list[change] = to
	}
	attributes := [][]byte{floats("nodes_values", 3), words("nodes_modes", "BRANCH_LEQ", "LEAF", "LEAF"), floats("target_weights", 2)}
	for name, values := range list {
		attributes = append(attributes, ints(name, values...))
	}
	return attributes
}

var identity = of("Identity", 1)

// TestRefused: each model is wrong in one way and refused with the node's name; the text is
// what a user reads.
func TestRefused(t *testing.T) {
	image, kernel := in("a", 1, 4, 8, 8), weight("b", 2, 4, 3, 3)
	sequence := in("a", 2, 1, 3)
	lstm := func(w, r uint64, attributes ...[]byte) []byte {
		return Model(of("LSTM", 3, append(attributes, Number("hidden_size", 5))...), sequence, weight("b", 1, w, 3), weight("c", 1, r, 5), out("y"))
	}
	simple := func(fields ...[]byte) []byte { return Model(append(fields, out("y"))...) }
	deep := of("Identity", 1)
	for range 20 {
		deep = Part(GraphNode, Op("If", []string{"a"}, []string{"y"}, graph("then_branch", deep, out("y")), graph("else_branch", of("Identity", 1), out("y"))))
	}
	laughs := simple(Part(GraphNode, Op("F30", []string{"a"}, []string{"y"}), Word(7, "f")), in("a", 1))
	laughs = append(laughs, function("F1", Part(7, Op("Identity", []string{"a"}, []string{"y"})))...)
	for i := 2; i <= 30; i++ {
		laughs = append(laughs, function(fmt.Sprintf("F%d", i), calls(fmt.Sprintf("F%d", i-1), fmt.Sprintf("F%d", i-1)))...)
	}
	chain := simple(Part(GraphNode, Op("F80", []string{"a"}, []string{"y"}), Word(7, "f")), in("a", 1))
	chain = append(chain, function("F1", Part(7, Op("Identity", []string{"a"}, []string{"y"})))...)
	for i := 2; i <= 80; i++ {
		chain = append(chain, function(fmt.Sprintf("F%d", i), calls(fmt.Sprintf("F%d", i-1)))...)
	}
	heavy := simple(in("a", 1))
	heavy = append(heavy, function("F1", Part(7, Op("Constant", nil, []string{"y"}, slices.Concat(Word(1, "value"), Part(5, Tensor("", Floats, make([]byte, 4<<20), 1<<20))))))...)
	for i := 2; i <= 11; i++ {
		heavy = append(heavy, function(fmt.Sprintf("F%d", i), calls(fmt.Sprintf("F%d", i-1), fmt.Sprintf("F%d", i-1)))...)
	}
	heavy = append(heavy, Part(ModelGraph, Part(GraphNode, Op("F11", []string{"a"}, []string{"y"}), Word(7, "f")))...)
	bound := simple(Part(GraphNode, Op("Strided", []string{"a"}, []string{"y"}, ints("by", 0, 0)), Word(7, "f")), image)
	bound = append(bound, Part(ModelFunctions, Word(1, "Strided"), Word(4, "a"), Word(5, "y"), Word(6, "by"), Word(10, "f"),
		Part(7, Op("MaxPool", []string{"a"}, []string{"y"}, ints("kernel_shape", 2, 2), slices.Concat(Word(1, "strides"), Count(20, 7), Word(21, "by")))))...)
	recursive := append(simple(identity, in("a", 1)), function("F", calls("F"))...)
	mutual := append(append(simple(identity, in("a", 1)), function("F", calls("G"))...), function("G", calls("F"))...)
	n := `node "n" (`

	for name, c := range map[string]struct {
		model []byte
		want  string
	}{
		"stride":             {simple(of("Conv", 2, ints("strides", 0, 0)), image, kernel), n + "Conv): attribute strides has 0 at 0; it must be 1 or more"},
		"negative stride":    {simple(of("Conv", 2, ints("strides", 1, -1)), image, kernel), n + "Conv): attribute strides has -1 at 1; it must be 1 or more"},
		"huge stride":        {simple(of("Conv", 2, ints("strides", 1, 1<<40)), image, kernel), n + "Conv): attribute strides has 1099511627776 at 1; it must be 1 to 2147483647"},
		"dilation":           {simple(of("Conv", 2, ints("dilations", 0, 1)), image, kernel), n + "Conv): attribute dilations has 0 at 0; it must be 1 or more"},
		"pads":               {simple(of("Conv", 2, ints("pads", -1, 0, 0, 0)), image, kernel), n + "Conv): attribute pads has -1 at 0; it must be 0 or more"},
		"few pads":           {simple(of("Conv", 2, ints("pads", 1, 1)), image, kernel), n + "Conv): attribute pads has 2 numbers, and its weights have shape [2 4 3 3]"},
		"strides of another": {simple(of("Conv", 2, ints("strides", 1, 1, 1)), image, kernel), n + "Conv): attribute strides has 3 numbers, and its weights have shape [2 4 3 3]"},
		"kernel":             {simple(of("Conv", 2, ints("kernel_shape", 5, 5)), image, kernel), n + "Conv): attribute kernel_shape is [5 5], and its weights have shape [2 4 3 3]"},
		"group":              {simple(of("Conv", 2, Number("group", 0)), image, kernel), n + "Conv): attribute group is 0; it must be 1 or more"},
		"groups":             {simple(of("Conv", 2, Number("group", 3)), image, kernel), n + "Conv): its weights have shape [2 4 3 3], and 2 is not a multiple of its group 3"},
		"channels":           {simple(of("Conv", 2, Number("group", 2)), image, kernel), n + "Conv): its input has 4 channels, and its weights of shape [2 4 3 3] take 8"},
		"bias":               {simple(of("Conv", 3), image, kernel, weight("c", 5)), n + "Conv): its bias has shape [5]; it must be [2]"},
		"rank":               {simple(of("Conv", 2), image, weight("b", 2, 4)), n + "Conv): its weights have shape [2 4]; they need 3 dimensions or more"},
		"empty weights":      {simple(of("Conv", 2), image, weight("b", 0, 4, 1, 1)), n + "Conv): its weights have shape [0 4 1 1], with a dimension of 0"},
		"attribute's type":   {simple(of("Conv", 2, Number("strides", 1)), image, kernel), n + "Conv): attribute strides is not a list of integers"},
		"padding's name":     {simple(of("Conv", 2, word("auto_pad", "x")), image, kernel), n + `Conv): attribute auto_pad is "x"; it must be one of NOTSET, SAME_UPPER, SAME_LOWER, VALID`},
		"twice":              {simple(of("Conv", 2, Number("group", 1), Number("group", 0)), image, kernel), n + "Conv): attribute group is set twice"},
		"transposed":         {simple(of("ConvTranspose", 2, Number("group", 0)), image, weight("b", 4, 2, 3, 3)), n + "ConvTranspose): attribute group is 0; it must be 1 or more"},
		"transposed groups":  {simple(of("ConvTranspose", 2, Number("group", 3)), image, weight("b", 4, 2, 3, 3)), n + "ConvTranspose): its weights have shape [4 2 3 3], and 4 is not a multiple of its group 3"},
		"transposed output":  {simple(of("ConvTranspose", 2, ints("output_shape", 0, 0)), image, weight("b", 4, 2, 3, 3)), n + "ConvTranspose): attribute output_shape has 0 at 0; it must be 1 or more"},
		"quantized":          {simple(of("QLinearConv", 8, Number("group", 0)), image, kernel, weight("c"), weight("d"), weight("e"), weight("f"), weight("g"), weight("h")), n + "QLinearConv): attribute group is 0; it must be 1 or more"},
		"integers":           {simple(of("ConvInteger", 2, ints("strides", 0, 0)), image, kernel), n + "ConvInteger): attribute strides has 0 at 0; it must be 1 or more"},
		"fused":              {simple(ms(of("FusedConv", 2, ints("strides", 0, 0))), image, kernel), n + "com.microsoft.FusedConv): attribute strides has 0 at 0; it must be 1 or more"},
		"internal":           {simple(domain(of("Conv", 2), "com.microsoft.nchwc"), image, kernel), n + "com.microsoft.nchwc.Conv): its operator is internal to ONNX Runtime"},
		"pool":               {simple(of("MaxPool", 1, ints("kernel_shape", 0, 2)), image), n + "MaxPool): attribute kernel_shape has 0 at 0; it must be 1 or more"},
		"pool's stride":      {simple(of("AveragePool", 1, ints("kernel_shape", 2, 2), ints("strides", 0, 0)), image), n + "AveragePool): attribute strides has 0 at 0; it must be 1 or more"},
		"pool's pads":        {simple(of("AveragePool", 1, ints("kernel_shape", 2, 2), ints("pads", 2, 0, 0, 0)), image), n + "AveragePool): attribute pads has 2 at 0; it must be less than the kernel's 2"},
		"pool's norm":        {simple(of("LpPool", 1, ints("kernel_shape", 2, 2), Number("p", 0)), image), n + "LpPool): attribute p is 0; it must be 1 or more"},
		"global norm":        {simple(of("GlobalLpPool", 1, Number("p", 0)), image), n + "GlobalLpPool): attribute p is 0; it must be 1 or more"},
		"no kernel":          {simple(of("MaxPool", 1), image), n + "MaxPool): attribute kernel_shape is missing"},
		"unpool":             {simple(of("MaxUnpool", 2, ints("kernel_shape", 2, 2), ints("strides", 0, 1)), image, whole("b", 1)), n + "MaxUnpool): attribute strides has 0 at 0; it must be 1 or more"},
		"regions":            {simple(of("MaxRoiPool", 2, ints("pooled_shape", 0, 0)), image, weight("b", 1, 5)), n + "MaxRoiPool): attribute pooled_shape has 0 at 0; it must be 1 or more"},
		"aligned":            {simple(of("RoiAlign", 3, Number("output_height", 0)), image, weight("b", 1, 4), whole("c", 0)), n + "RoiAlign): attribute output_height is 0; it must be 1 or more"},
		"sampling":           {simple(of("RoiAlign", 3, Number("sampling_ratio", math.MaxUint64)), image, weight("b", 1, 4), whole("c", 0)), n + "RoiAlign): attribute sampling_ratio is -1; it must be 0 or more"},

		"LSTM's W":           {lstm(15, 20), n + "LSTM): its input W has shape [1 15 3]; with hidden_size 5 and 1 directions it must be [1 20 3]"},
		"LSTM's R":           {lstm(20, 15), n + "LSTM): its input R has shape [1 15 5]; with hidden_size 5 and 1 directions it must be [1 20 5]"},
		"LSTM's directions":  {lstm(20, 20, word("direction", "bidirectional")), n + "LSTM): its input W has shape [1 20 3]; with hidden_size 5 and 2 directions it must be [2 20 3]"},
		"LSTM's direction":   {lstm(20, 20, word("direction", "sideways")), n + `LSTM): attribute direction is "sideways"; it must be one of forward, reverse, bidirectional`},
		"LSTM's layout":      {lstm(20, 20, Number("layout", 2)), n + "LSTM): attribute layout is 2; it must be 0 to 1"},
		"LSTM's activations": {lstm(20, 20, words("activations", "Tanh")), n + "LSTM): attribute activations has 1 texts; it takes 3"},
		"hidden size":        {simple(of("GRU", 3, Number("hidden_size", 0)), sequence, weight("b", 1, 6, 3), weight("c", 1, 6, 2)), n + "GRU): attribute hidden_size is 0; it must be 1 to 16777216"},
		"no hidden size":     {simple(of("RNN", 3), sequence, weight("b", 1, 2, 3), weight("c", 1, 2, 2)), n + "RNN): attribute hidden_size is missing"},
		"GRU's W":            {simple(of("GRU", 3, Number("hidden_size", 2)), sequence, weight("b", 1, 5, 3), weight("c", 1, 6, 2)), n + "GRU): its input W has shape [1 5 3]; with hidden_size 2 and 1 directions it must be [1 6 3]"},
		"RNN's B":            {simple(of("RNN", 4, Number("hidden_size", 2)), sequence, weight("b", 1, 2, 3), weight("c", 1, 2, 2), weight("d", 1, 2)), n + "RNN): its input B has shape [1 2]; with hidden_size 2 and 1 directions it must be [1 4]"},
		"lengths":            {simple(of("RNN", 5, Number("hidden_size", 2)), sequence, weight("b", 1, 2, 3), weight("c", 1, 2, 2), weight("d", 1, 4), whole("e", 7)), n + "RNN): its input sequence_lens has 7, and X has [2] steps"},
		"initial state":      {simple(of("RNN", 6, Number("hidden_size", 2)), sequence, weight("b", 1, 2, 3), weight("c", 1, 2, 2), weight("d", 1, 4), whole("e", 2), weight("f", 1, 1, 1)), n + "RNN): its input initial_h has shape [1 1 1]; with hidden_size 2 and 1 directions it must be [1 1 2]"},
		"peepholes":          {simple(of("LSTM", 8, Number("hidden_size", 1)), sequence, weight("b", 1, 4, 3), weight("c", 1, 4, 1), weight("d", 1, 8), whole("e", 2), weight("f", 1, 1, 1), weight("g", 1, 1, 1), weight("h", 1, 2)), n + "LSTM): its input P has shape [1 2]; with hidden_size 1 and 1 directions it must be [1 3]"},
		"quantized LSTM":     {simple(ms(of("DynamicQuantizeLSTM", 3, Number("hidden_size", 5))), sequence, weight("b", 1, 3, 15), weight("c", 1, 5, 20)), n + "com.microsoft.DynamicQuantizeLSTM): its input W has shape [1 3 15]; with hidden_size 5 and 1 directions it must be [1 3 20]"},
		"through nodes": {simple(
			Part(GraphNode, Op("Reshape", []string{"w", "s"}, []string{"v"})), Part(GraphNode, Op("Identity", []string{"v"}, []string{"b"})), of("LSTM", 3, Number("hidden_size", 5)),
			sequence, weight("w", 15, 3), whole("s", 1, -1, 3), weight("c", 1, 20, 5),
		), n + "LSTM): its input W has shape [1 15 3]; with hidden_size 5 and 1 directions it must be [1 20 3]"},
		"made weights": {simple(
			of("LSTM", 3, Number("hidden_size", 5)), Part(GraphNode, Op("ConstantOfShape", []string{"s"}, []string{"b"})), sequence, whole("s", 1, 15, 3), weight("c", 1, 20, 5),
		), n + "LSTM): its input W has shape [1 15 3]; with hidden_size 5 and 1 directions it must be [1 20 3]"},

		"attention":         {simple(ms(of("Attention", 2, Number("num_heads", 0))), in("a", 1, 2, 6), weight("b", 6, 18)), n + "com.microsoft.Attention): attribute num_heads is 0; it must be 1 or more"},
		"attention weights": {simple(ms(of("QAttention", 3, Number("num_heads", 4))), in("a", 1, 2, 6), weight("b", 6, 18), weight("c", 18)), n + "com.microsoft.QAttention): its weights have shape [6 18]; their columns must be a multiple of 3 × num_heads 4"},
		"no heads":          {simple(ms(of("MultiHeadAttention", 1)), in("a", 1, 2, 6)), n + "com.microsoft.MultiHeadAttention): attribute num_heads is missing"},
		"grouped heads":     {simple(ms(of("GroupQueryAttention", 1, Number("num_heads", 4), Number("kv_num_heads", 3))), in("a", 1, 2, 6)), n + "com.microsoft.GroupQueryAttention): 4 heads are not a multiple of attribute kv_num_heads 3"},
		"few bits":          {simple(ms(of("MatMulNBits", 3, Number("K", 32), Number("N", 2), Number("bits", 4), Number("block_size", 16))), in("a", 1, 32), Part(GraphInitializer, Tensor("b", 2, make([]byte, 8), 1, 1, 8)), weight("c", 4)), n + "com.microsoft.MatMulNBits): its weights have 8 bytes; for N 2, K 32 and 4 bits in blocks of 16 they have 32"},
		"blocks":            {simple(ms(of("MatMulNBits", 3, Number("K", 32), Number("N", 2), Number("bits", 4), Number("block_size", 0))), in("a", 1, 32), weight("b", 1), weight("c", 4)), n + "com.microsoft.MatMulNBits): attribute block_size is 0; it must be 1 to 1048576"},

		"block size":       {simple(of("DepthToSpace", 1, Number("blocksize", 0)), image), n + "DepthToSpace): attribute blocksize is 0; it must be 1 to 32768"},
		"depth":            {simple(of("DepthToSpace", 1, Number("blocksize", 3)), image), n + "DepthToSpace): its input has 4 channels, which is not a multiple of 3 × 3"},
		"space":            {simple(of("SpaceToDepth", 1, Number("blocksize", 0)), image), n + "SpaceToDepth): attribute blocksize is 0; it must be 1 to 32768"},
		"norm groups":      {simple(of("GroupNormalization", 3, Number("num_groups", 0)), image, weight("b", 4), weight("c", 4)), n + "GroupNormalization): attribute num_groups is 0; it must be 1 or more"},
		"instances":        {simple(of("InstanceNormalization", 3), image, weight("b", 3), weight("c", 3)), n + "InstanceNormalization): its input has 4 channels, and its weights are for 3"},
		"batches":          {simple(of("BatchNormalization", 5), image, weight("b", 4), weight("c", 4), weight("d", 4), weight("e", 2)), n + "BatchNormalization): input 4 has 2 numbers, and others have 4"},
		"response":         {simple(of("LRN", 1, Number("size", 0)), image), n + "LRN): attribute size is 0; it must be 1 or more"},
		"step":             {simple(of("Slice", 5), image, whole("b", 0), whole("c", 1), whole("d", 0), whole("e", 0)), n + "Slice): its steps are [0]; a step must not be 0"},
		"parts":            {simple(of("Split", 1, Number("num_outputs", 0)), image), n + "Split): attribute num_outputs is 0, and it has 1 outputs"},
		"negative part":    {simple(of("Split", 2), image, whole("b", -1)), n + "Split): its sizes are [-1]; a size must be 0 or more"},
		"index":            {simple(of("Gather", 2), in("a", 3, 2), whole("b", 3)), n + "Gather): its indices have 3, and the axis has 3"},
		"scattered":        {simple(of("ScatterElements", 3), in("a", 3), whole("b", -4), weight("c", 1)), n + "ScatterElements): its indices have -4, and the axis has 3"},
		"tuples":           {simple(of("GatherND", 2), in("a", 3), whole("b", 0, 1)), n + "GatherND): its indices of shape [2] have more numbers than its data of shape [3] have dimensions"},
		"batch dimensions": {simple(of("GatherND", 2, Number("batch_dims", 1<<63)), in("a", 3), whole("b", 0)), n + "GatherND): attribute batch_dims is -9223372036854775808; it must be 0 to 32"},
		"axis":             {simple(of("Softmax", 1, Number("axis", 7)), image), n + "Softmax): attribute axis is 7; the input has 4 dimensions"},
		"axes":             {simple(of("Unsqueeze", 2), image, whole("b", 9)), n + "Unsqueeze): axes has 9, which is not an axis of 5 dimensions"},
		"axes twice":       {simple(of("Squeeze", 1, ints("axes", 0, 0)), image), n + "Squeeze): axes has the duplicate 0"},
		"order":            {simple(of("Transpose", 1, ints("perm", 0, 0, 1, 2)), image), n + "Transpose): attribute perm is [0 0 1 2], which is not an order of the axes"},
		"shape":            {simple(of("Reshape", 2), image, whole("b", -1, -1)), n + "Reshape): its shape [-1 -1] has -1 more than once"},
		"negative shape":   {simple(of("Reshape", 2), image, whole("b", -2)), n + "Reshape): its shape [-2] has a dimension below -1, or more than 2147483648 elements"},
		"bomb":             {simple(of("ConstantOfShape", 1), whole("a", 1<<20, 1<<20)), n + "ConstantOfShape): shape is [1048576 1048576], which is negative or has more than 268435456 elements"},
		"expanded":         {simple(of("Expand", 2), in("a", 1), whole("b", 1<<40)), n + "Expand): shape is [1099511627776], which is negative or has more than 268435456 elements"},
		"repeats":          {simple(of("Tile", 2), in("a", 1), whole("b", -1)), n + "Tile): a number of its repeats is -1; it must be 0 or more"},
		"odd pads":         {simple(of("Pad", 2), in("a", 1), whole("b", 1, 1, 1)), n + "Pad): it has 3 pads; each axis takes two"},
		"best":             {simple(of("TopK", 2), in("a", 1), whole("b", -1)), n + "TopK): the number that it takes is -1; it must be 0 or more"},
		"one of many":      {simple(of("OneHot", 3), in("a", 1), whole("b", -1), weight("c", 2)), n + "OneHot): its depth is -1; it must be 0 or more"},
		"scale":            {simple(of("Upsample", 2), image, Part(GraphInitializer, Tensor("b", Floats, make([]byte, 16), 4))), n + "Upsample): its scales are [0 0 0 0]; a scale must be more than 0 and finite"},
		"scales":           {simple(of("Resize", 3), image, weight("b", 0), Part(GraphInitializer, Tensor("c", Floats, bytes.Repeat([]byte{0, 0, 0xc0, 0x7f}, 4), 4))), n + "Resize): its scales are [NaN NaN NaN NaN]; a scale must be more than 0 and finite"},
		"range":            {simple(of("Range", 3), Part(GraphInitializer, Tensor("a", Integers, make([]byte, 8))), Part(GraphInitializer, Tensor("b", Integers, make([]byte, 8))), Part(GraphInitializer, Tensor("c", Integers, make([]byte, 8)))), n + "Range): its step is 0"},
		"divisor":          {simple(of("Mod", 2), Part(GraphInput, Port("a", Integers, 1)), whole("b", 0)), n + "Mod): it divides integers by a constant that has 0"},
		"random":           {simple(of("RandomUniformLike", 1, float("low", 2)), image), n + "RandomUniformLike): attribute low is 2 and high is 1; low must be less"},
		"not a number":     {simple(of("RandomNormalLike", 1, float("scale", float32(math.NaN()))), image), n + "RandomNormalLike): attribute scale is NaN; it must be 0 to 1e+30"},
		"product":          {simple(of("MatMul", 2), in("a", 1, 4), weight("b", 3, 2)), n + "MatMul): it multiplies shapes [1 4] and [3 2]"},
		"matrix":           {simple(of("Gemm", 2), in("a", 1, 4), weight("b", 4)), n + "Gemm): its weights have shape [4]; they must be a matrix"},
		"scales of axis":   {simple(of("DequantizeLinear", 2, Number("axis", 1)), image, weight("b", 3)), n + "DequantizeLinear): its scale has 3 numbers, and axis 1 of its input has 4"},
		"element type":     {simple(of("Cast", 1, Number("to", 99)), image), n + "Cast): attribute to is 99; it must be 1 to 26"},
		"n-grams":          {simple(of("TfIdfVectorizer", 1, word("mode", "TF"), Number("min_gram_length", 1), Number("max_gram_length", 1), Number("max_skip_count", 0), ints("ngram_counts", 5), ints("ngram_indexes", 0), ints("pool_int64s", 1)), image), n + "TfIdfVectorizer): attribute ngram_counts has 5 at 0, which does not begin grams of 1 parts in a pool of 1"},
		"n-gram indexes":   {simple(of("TfIdfVectorizer", 1, word("mode", "TF"), Number("min_gram_length", 1), Number("max_gram_length", 1), Number("max_skip_count", 0), ints("ngram_counts", 0), ints("ngram_indexes", -1), ints("pool_int64s", 1)), image), n + "TfIdfVectorizer): attribute ngram_indexes has -1 at 0; it must be 0 to 268435456"},
		"letters":          {simple(of("StringNormalizer", 1, word("case_change_action", "up")), Part(GraphInput, Port("a", Texts, 1))), n + `StringNormalizer): attribute case_change_action is "up"; it must be one of LOWER, UPPER, NONE`},
		"no branch":        {simple(of("If", 1, graph("then_branch", of("Identity", 1), out("y"))), in("a", 1)), n + "If): attribute else_branch is missing"},
		"no body":          {simple(of("Loop", 2), in("a", 1), whole("b", 1)), n + "Loop): attribute body is missing"},
		"loop's body":      {simple(of("Loop", 3, graph("body", Part(GraphNode, Op("Identity", []string{"i"}, []string{"z"})), in("i"), out("z"))), in("a", 1), whole("b", 1), weight("c", 1)), n + "Loop): its body takes 1 inputs; for 1 carried values it takes 3"},
		"scan's inputs":    {simple(of("Scan", 1, Number("num_scan_inputs", 9), graph("body", Part(GraphNode, Op("Identity", []string{"i"}, []string{"z"})), in("i"), out("z"))), in("a", 1)), n + "Scan): attribute num_scan_inputs is 9, and it has 1 inputs"},
		"in a branch":      {simple(of("If", 1, graph("then_branch", Part(GraphNode, Op("LRN", []string{"b"}, []string{"z"}, Number("size", 0))), out("z")), graph("else_branch", Part(GraphNode, Op("Identity", []string{"b"}, []string{"z"})), out("z"))), in("a", 1), in("b", 1)), n + "If): then_branch: node 0 (LRN): attribute size is 0; it must be 1 or more"},
		"in a function":    {bound, "node 0 (f.Strided): function f.Strided, node 0 (MaxPool): attribute strides has 0 at 0; it must be 1 or more"},
		"uncalled":         {append(simple(identity, in("a", 1)), function("F", Part(7, Op("LRN", []string{"a"}, []string{"y"}, Number("size", 0))))...), "function f.F, node 0 (LRN): attribute size is 0; it must be 1 or more"},

		"tree's child":    {simple(ml(of("TreeEnsembleRegressor", 1, trees("nodes_truenodeids", 9, 0, 0)...)), in("a", 1, 2)), n + "ai.onnx.ml.TreeEnsembleRegressor): node 0 of tree 0 has node 9 below it, which does not exist"},
		"tree's cycle":    {simple(ml(of("TreeEnsembleRegressor", 1, trees("nodes_truenodeids", 0, 0, 0)...)), in("a", 1, 2)), n + "ai.onnx.ml.TreeEnsembleRegressor): node 0 of tree 0 is below itself, or more than 4096 deep"},
		"tree's feature":  {simple(ml(of("TreeEnsembleRegressor", 1, trees("nodes_featureids", 2, 0, 0)...)), in("a", 1, 2)), n + "ai.onnx.ml.TreeEnsembleRegressor): node 0 of tree 0 asks for feature 2, and its input has [2]"},
		"tree's target":   {simple(ml(of("TreeEnsembleRegressor", 1, trees("target_ids", 0, 1)...)), in("a", 1, 2)), n + "ai.onnx.ml.TreeEnsembleRegressor): attribute target_ids has 1, and there are 1"},
		"tree's leaf":     {simple(ml(of("TreeEnsembleRegressor", 1, trees("target_nodeids", 1, 7)...)), in("a", 1, 2)), n + "ai.onnx.ml.TreeEnsembleRegressor): attribute target_nodeids has node 7 of tree 0, which does not exist"},
		"tree's lists":    {simple(ml(of("TreeEnsembleRegressor", 1, trees("nodes_featureids", 1)...)), in("a", 1, 2)), n + "ai.onnx.ml.TreeEnsembleRegressor): attribute nodes_featureids has 1 values; for 3 nodes it takes as many"},
		"twin nodes":      {simple(ml(of("TreeEnsembleRegressor", 1, trees("nodes_nodeids", 0, 1, 1)...)), in("a", 1, 2)), n + "ai.onnx.ml.TreeEnsembleRegressor): duplicate node 1 of tree 0"},
		"coefficients":    {simple(ml(of("LinearRegressor", 1, floats("coefficients", 3))), in("a", 1, 4)), n + "ai.onnx.ml.LinearRegressor): it has coefficients for 3 columns, and its input has 4"},
		"class labels":    {simple(ml(of("LinearClassifier", 1, floats("coefficients", 6), floats("intercepts", 3), ints("classlabels_ints", 0, 1))), in("a", 1, 2)), n + "ai.onnx.ml.LinearClassifier): it has 2 class labels and 3 intercepts"},
		"support vectors": {simple(ml(of("SVMRegressor", 1, floats("coefficients", 2), floats("rho", 1), Number("n_supports", 2), floats("support_vectors", 3))), in("a", 1, 2)), n + "ai.onnx.ml.SVMRegressor): attribute support_vectors has 3 numbers, which is not a multiple of n_supports 2"},
		"classes":         {simple(ml(of("SVMClassifier", 1, floats("coefficients", 2), floats("rho", 1), ints("vectors_per_class", 1, 1), floats("support_vectors", 4), ints("classlabels_ints", 0))), in("a", 1, 2)), n + "ai.onnx.ml.SVMClassifier): it has 1 class labels, and attribute vectors_per_class is for 2"},
		"column":          {simple(ml(of("ArrayFeatureExtractor", 2)), in("a", 1, 2), whole("b", 2)), n + "ai.onnx.ml.ArrayFeatureExtractor): it takes column 2 of an input that has 2"},

		"short data":      {simple(identity, Part(GraphInitializer, Tensor("a", Floats, make([]byte, 4), 2))), `tensor "a": its shape [2] takes 8 bytes and it has 4`},
		"long data":       {simple(identity, Part(GraphInitializer, Tensor("a", Floats, make([]byte, 12), 2))), `tensor "a": its shape [2] takes 8 bytes and it has 12`},
		"few numbers":     {simple(identity, Part(GraphInitializer, Count(1, 3), Count(2, Integers), Word(TensorName, "a"), Count(7, 1))), `tensor "a": its shape [3] takes 3 numbers and it has 1`},
		"few texts":       {simple(identity, Part(GraphInitializer, Count(1, 3), Count(2, Texts), Word(TensorName, "a"), Word(6, "x"))), `tensor "a": its shape [3] takes 3 texts and it has 1`},
		"negative":        {simple(identity, Part(GraphInitializer, Tensor("a", Floats, nil, math.MaxUint64))), `tensor "a": its shape [-1] has a negative dimension`},
		"overflow":        {simple(identity, Part(GraphInitializer, Tensor("a", Floats, nil, 1<<32, 1<<32))), `tensor "a": its shape [4294967296 4294967296] has more than 2147483648 elements`},
		"no such type":    {simple(identity, Part(GraphInitializer, Tensor("a", 99, nil, 0))), `tensor "a": its element type 99 does not exist`},
		"dimensions":      {simple(identity, Part(GraphInitializer, bytes.Repeat(Count(1, 1), 33))), "a tensor has more than 32 dimensions"},
		"constant's data": {simple(of("Constant", 0, slices.Concat(Word(1, "value"), Part(5, Tensor("", Floats, nil, 2))))), n + "Constant): attribute value: its shape [2] takes 8 bytes and it has 0"},
		"sparse bomb":     {simple(identity, Part(GraphSparseInitializer, Part(1, Tensor("a", Floats, make([]byte, 4), 1)), Part(2, Tensor("", Integers, make([]byte, 8), 1)), Count(3, 1<<30))), `sparse tensor "a": its shape [1073741824] is negative or has more than 268435456 elements`},
		"sparse index":    {simple(identity, Part(GraphSparseInitializer, Part(1, Tensor("a", Floats, make([]byte, 4), 1)), Part(2, Tensor("", Integers, []byte{9, 0, 0, 0, 0, 0, 0, 0}, 1)), Count(3, 4))), `sparse tensor "a": index 9 is not within its shape [4]`},

		"unknown name":    {simple(of("Identity", 1)), n + `Identity): it reads "a", which no node produces`},
		"unknown in body": {simple(of("If", 1, graph("then_branch", Part(GraphNode, Op("Identity", []string{"q"}, []string{"z"})), out("z")), graph("else_branch", Part(GraphNode, Op("Identity", []string{"a"}, []string{"z"})), out("z"))), in("a", 1)), n + `If): a graph of it reads "q", which no node produces`},
		"no output":       {Model(identity, in("a", 1), out("z")), `output "z" is produced by no node`},
		"cycle":           {simple(Part(GraphNode, Op("Identity", []string{"y"}, []string{"b"})), Part(GraphNode, Op("Identity", []string{"b"}, []string{"y"}))), `node 0 (Identity): it depends on its own output through other nodes`},
		"made twice":      {simple(identity, Part(GraphNode, Op("Identity", []string{"a"}, []string{"y"})), in("a", 1)), `node 1 (Identity): it produces "y", which node "n" (Identity) also produces`},
		"made of input":   {simple(Part(GraphNode, Op("Identity", []string{"y"}, []string{"a"})), in("a", 1), in("y", 1)), `node 0 (Identity): it produces "a", which is also an input or initializer`},
		"no operator":     {simple(of("", 1), in("a", 1)), n + "): it has no operator"},
		"operator set":    {append(simple(identity, in("a", 1)), Part(ModelOpsets, Count(2, 0))...), `the model imports version 0 of the operators of domain "", and versions start at 1`},

		"recursion":        {recursive, "function f.F calls itself"},
		"mutual recursion": {mutual, "calls itself"},
		"deep calls":       {chain, "the model has function calls nested more than 64 deep"},
		"billion laughs":   {laughs, "the model has more than 500000 nodes when its functions are expanded"},
		"heavy functions":  {heavy, "the nodes of the model have more than 1024 MiB when its functions are expanded"},
		"twin functions":   {append(append(simple(identity, in("a", 1)), function("F", calls("G"))...), function("F", calls("G"))...), "the model has a duplicate function f.F"},
		"deep graphs":      {simple(deep, in("a", 1)), "the model has graphs nested more than 16 deep"},
		"memory":           {simple(identity, in("a", 1), Part(GraphNode, Op("Identity", []string{"a"}, nil), bytes.Repeat(Part(5), 400_000))), "the names, nodes and attributes of the model take more than"},
		"many nodes":       {simple(bytes.Repeat(Part(GraphNode), 500_001)), "take more than"},
		"empty":            {nil, "the model file is empty"},
		"not protobuf":     {[]byte("hello"), "the file is not a well-formed ModelProto"},
		"data elsewhere":   {simple(identity, Part(GraphInitializer, Word(TensorName, "a"), Part(TensorExternalData, Word(1, "location"), Word(2, "/etc/passwd")))), `tensor "a" stores its data in another file, and a model must be complete in its signed files`},
	} {
		t.Run(name, func(t *testing.T) {
			err := onnxfile.Check(c.model)
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			if name == "data elsewhere" {
				return
			}
			m, streamed := onnxfile.Read(iotest.HalfReader(bytes.NewReader(c.model)), int64(len(c.model)))
			if streamed == nil {
				streamed = m.Check()
			}
			if streamed == nil || !strings.Contains(streamed.Error(), c.want) {
				t.Errorf("as a stream: %v", streamed)
			}
		})
	}
}

// TestAccepted: what is unusual and not wrong passes.
func TestAccepted(t *testing.T) {
	for name, model := range map[string][]byte{
		"nodes in no order":       Model(Part(GraphNode, Op("Identity", []string{"b"}, []string{"y"})), Part(GraphNode, Op("Identity", []string{"a"}, []string{"b"})), in("a", 1), out("y")),
		"an outer name in a body": Model(of("If", 1, graph("then_branch", Part(GraphNode, Op("Identity", []string{"b"}, []string{"z"})), out("z")), graph("else_branch", Part(GraphNode, Op("Identity", []string{"a"}, []string{"z"})), out("z"))), Part(GraphNode, Op("Identity", []string{"a"}, []string{"b"})), in("a", 1), out("y")),
		"an unknown operator":     Model(of("Soon", 1, ints("strides", 0)), in("a", 1), out("y")),
		"an unknown domain":       Model(domain(of("Conv", 1, ints("strides", 0)), "org.example"), in("a", 1), out("y")),
		"an unknown shape":        Model(of("LSTM", 3, Number("hidden_size", 5)), Part(GraphNode, Op("Soon", []string{"a"}, []string{"b"})), in("a", -1, -1, -1), weight("c", 1, 20, 5), out("y")),
		// The default says nothing of what a request gives.
		"a default":            Model(of("Tile", 2), in("a", 2), Part(GraphInput, Port("b", Integers, 1)), Part(GraphInitializer, Tensor("b", Integers, bytes.Repeat([]byte{255}, 8), 1)), out("y")),
		"a weight as an input": Model(of("Conv", 2), in("a", 1, 4, 8, 8), in("b", 2, 4, 3, 3), weight("b", 2, 4, 3, 3), out("y")),
		"a tensor of nothing":  Model(identity, Part(GraphInitializer, Tensor("a", Floats, nil, 0)), out("y")),
		"four bits":            Model(identity, Part(GraphInitializer, Tensor("a", 22, make([]byte, 2), 3)), out("y")),
		"a tree":               Model(ml(of("TreeEnsembleRegressor", 1, trees("")...)), in("a", 1, 2), out("y")),
		"a sparse weight":      Model(identity, Part(GraphSparseInitializer, Part(1, Tensor("a", Floats, make([]byte, 4), 1)), Part(2, Tensor("", Integers, []byte{3, 0, 0, 0, 0, 0, 0, 0}, 1)), Count(3, 4)), out("y")),
	} {
		if err := onnxfile.Check(model); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// corpus are ONNX's own backend tests, from Debian's package libonnx-testdata, and the models
// in this repository.
func corpus(tb testing.TB) (files []string) {
	tb.Helper()
	for _, pattern := range []string{"/usr/share/libonnx-testdata/data/*/*/model.onnx", "../*/*/*/testdata/*.onnx", "../../test/*/testdata/*.onnx"} {
		some, err := filepath.Glob(pattern)
		if err != nil {
			tb.Fatal(err)
		}
		files = append(files, some...)
	}
	return files
}

// TestCorpus: no model of others is refused.
func TestCorpus(t *testing.T) {
	files := corpus(t)
	if len(files) < 5 {
		t.Fatal("the models of this repository are missing")
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// Data in other files are embedded, as in a signed version.
		beside := func(location string) ([]byte, error) {
			return os.ReadFile(filepath.Join(filepath.Dir(file), filepath.Clean(location)))
		}
		if b, err = onnxfile.Embed(b, beside, 1<<30); err == nil {
			err = onnxfile.Check(b)
		}
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	t.Logf("%d models", len(files))
}

// TestMemory: checking takes no more memory than its limit, whatever the file.
func TestMemory(t *testing.T) {
	for name, model := range map[string][]byte{
		"attributes":   Model(Part(GraphNode, bytes.Repeat(Part(5), 1<<20))),
		"nodes":        Model(bytes.Repeat(Part(GraphNode), 1<<20)),
		"tensors":      Model(bytes.Repeat(Part(GraphInitializer), 1<<20)),
		"ports":        Model(Part(GraphNode, Part(5, Part(6, bytes.Repeat(Part(GraphInput), 1<<20))))),
		"names":        Model(Part(GraphNode, bytes.Repeat(Part(1), 1<<20))),
		"integers":     Model(Part(GraphNode, Part(5, Part(8, make([]byte, 4<<20))))),
		"texts":        Model(Part(GraphNode, Part(5, bytes.Repeat(Part(9), 1<<20)))),
		"functions":    bytes.Repeat(Part(ModelFunctions), 1<<20),
		"operator set": bytes.Repeat(Part(ModelOpsets, Word(1, "a")), 1<<19),
		"training":     bytes.Repeat(Part(20, Part(1)), 1<<19),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_ = onnxfile.Check(model)
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > 3*(64<<20+8*uint64(len(model))) {
				t.Errorf("%d MiB for a file of %d", took>>20, len(model)>>20)
			}
		})
	}
}

// TestReadError: an error of the reader is not one of the model.
func TestReadError(t *testing.T) {
	b := Model(identity, in("a", 1), out("y"))
	_, err := onnxfile.Read(io.MultiReader(bytes.NewReader(b[:10]), iotest.ErrReader(io.ErrClosedPipe)), int64(len(b)))
	if err != io.ErrClosedPipe { //nolint:errorlint // as it is
		t.Error(err)
	}
	if _, err := onnxfile.Read(bytes.NewReader(b[:10]), int64(len(b))); err != onnxfile.ErrMalformed { //nolint:errorlint // as it is
		t.Error(err)
	}
}

// FuzzCheck: whatever a file holds, checking ends, and in memory it says what it says of a
// stream.
func FuzzCheck(f *testing.F) {
	for _, file := range corpus(f) {
		if b, err := os.ReadFile(file); err == nil && len(b) < 4096 {
			f.Add(b)
		}
	}
	f.Add(Model(ml(of("TreeEnsembleRegressor", 1, trees("")...)), in("a", 1, 2), out("y")))
	f.Add(append(Model(Part(GraphNode, Op("F", []string{"a"}, []string{"y"}), Word(7, "f")), in("a", 1), out("y")), function("F", Part(7, Op("Identity", []string{"a"}, []string{"y"})))...))
	f.Fuzz(func(t *testing.T, file []byte) {
		err := onnxfile.Check(file)
		if err != nil && !fault.Is(err, fault.Invalid) {
			t.Fatal(err)
		}
		m, streamed := onnxfile.Read(iotest.HalfReader(bytes.NewReader(file)), int64(len(file)))
		if streamed == nil && len(m.Locations()) == 0 {
			streamed = m.Check()
		}
		if (streamed == nil) != (err == nil) && !strings.Contains(err.Error(), "another file") {
			t.Fatalf("%v, and as a stream %v", err, streamed)
		}
	})
}
