package inside

// allowedHere are permitted beside allowed: none.
var allowedHere []uint32

// architecture decides about the calls that other architectures do not have.
func architecture(map[uint32]block, uint32) {}
