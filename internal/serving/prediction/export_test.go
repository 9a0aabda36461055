package prediction

// For tests of the codec.
var (
	AppendRecord = appendRecord
	DecodeRecord = decodeRecord
)

// RollSize is the size at which a segment is full.
const RollSize = rollSize

// Journals counts the deployments of which the log keeps an entry in memory.
func (l *Log) Journals() int { return len(l.open()) }
