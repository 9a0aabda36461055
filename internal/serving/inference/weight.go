package inference

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What parts of a message take here beside their bytes on the wire.
const (
	messageCost = 256 // the largest, InferTensorContents, and a pointer to it
	textCost    = 24
)

// Weigh is about how many bytes a message takes when it is read. It may be two
// hundred times as many as it has: empty messages and texts have two, numbers one. A
// message that is none weighs what can be read of it.
func Weigh(b []byte, d protoreflect.MessageDescriptor) int {
	sum := len(b)
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return sum
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return sum
		}
		if f := d.Fields().ByNumber(number); f != nil {
			sum += Beside(b[:n], kind, f)
			if f.Kind() == protoreflect.MessageKind {
				in, _ := protowire.ConsumeBytes(b[:n])
				sum += Weigh(in, f.Message()) - len(in)
			}
		}
		b = b[n:]
	}
	return sum
}

// Beside is about how many bytes a field takes beside those that it has, its value as it
// is on the wire; what is within a message is not counted.
func Beside(b []byte, kind protowire.Type, f protoreflect.FieldDescriptor) int {
	size := 8
	switch f.Kind() { //nolint:exhaustive // the others have up to eight bytes
	case protoreflect.MessageKind:
		return messageCost
	case protoreflect.BytesKind, protoreflect.StringKind:
		return textCost
	case protoreflect.BoolKind:
		size = 1
	case protoreflect.Int32Kind, protoreflect.Uint32Kind, protoreflect.Sint32Kind, protoreflect.EnumKind:
		size = 4
	case protoreflect.FloatKind, protoreflect.DoubleKind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind, protoreflect.Sfixed32Kind, protoreflect.Sfixed64Kind:
		if kind == protowire.BytesType {
			return 0 // packed as they are here
		}
	}
	if kind != protowire.BytesType {
		return size
	}
	packed, _ := protowire.ConsumeBytes(b)
	n := 0
	for _, c := range packed {
		if c < 0x80 { // it ends a number
			n++
		}
	}
	return n*size - len(packed)
}
