package prediction

// For tests of the codec.
var (
	AppendRecord = appendRecord
	DecodeRecord = decodeRecord
)

// RollSize is the size at which a segment is full.
const RollSize = rollSize
