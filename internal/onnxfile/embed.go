package onnxfile

import (
	"math"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Embed puts the data that tensors of a file have in other files into the file, which is
// then all of the model. Read gives one of the other files, which it knows by the location
// as it is written in the model; it decides where a location may lead. The result is of at
// most so many bytes. A file that cannot be read is given as it is: loading it says why.
// Errors: fault.Invalid, fault.TooLarge, and those of read.
func Embed(file []byte, read func(location string) ([]byte, error), most int64) ([]byte, error) {
	m, malformed := (&decoder{buf: file, size: int64(len(file))}).model()
	if whole := malformed != nil || len(m.outside) == 0; whole { // else it is well-formed, and within the limits
		return file, nil
	}
	e := &embedder{read: read, files: map[string][]byte{}, left: min(most, math.MaxInt32) - int64(len(file))}
	out, err := e.message(modelMessage, file)
	if err != nil {
		return nil, err
	}
	whole := make([]byte, 0, out.size)
	for _, p := range out.parts {
		whole = append(whole, p...)
	}
	_, err = Parse(whole) // what a message in several parts has elsewhere is still elsewhere
	return whole, err
}

// message is a kind of message that has tensors within it.
type message uint8

const (
	noMessage message = iota
	modelMessage
	trainingMessage
	graphMessage
	nodeMessage
	attributeMessage
	functionMessage
	sparseMessage
	tensorMessage
)

// holders are the fields by which a message leads to its tensors.
var holders = map[message]map[protowire.Number]message{
	modelMessage:     {7: graphMessage, 20: trainingMessage, 25: functionMessage},
	trainingMessage:  {1: graphMessage, 2: graphMessage},
	graphMessage:     {1: nodeMessage, 5: tensorMessage, 15: sparseMessage},
	nodeMessage:      {5: attributeMessage},
	attributeMessage: {5: tensorMessage, 6: graphMessage, 10: tensorMessage, 11: graphMessage, 22: sparseMessage, 23: sparseMessage},
	functionMessage:  {7: nodeMessage, 11: attributeMessage},
	sparseMessage:    {1: tensorMessage, 2: tensorMessage},
}

// Fields of a TensorProto.
const (
	tensorName     protowire.Number = 8
	tensorRaw      protowire.Number = 9
	tensorExternal protowire.Number = 13
	tensorLocation protowire.Number = 14
)

type embedder struct {
	read  func(location string) ([]byte, error)
	files map[string][]byte
	left  int64 // bytes that there is room for
}

// written is a message as parts of what was read: weights are copied once, at the end.
type written struct {
	parts [][]byte
	size  int
}

func (w *written) add(b []byte) {
	if len(b) > 0 {
		w.parts, w.size = append(w.parts, b), w.size+len(b)
	}
}

// message rewrites b. What did not change is one part.
func (e *embedder) message(kind message, b []byte) (written, error) {
	if kind == tensorMessage {
		return e.tensor(b)
	}
	var out written
	from := 0 // what is not written yet
	for at := 0; at < len(b); {
		number, wire, n := protowire.ConsumeTag(b[at:])
		if n < 0 {
			return out, ErrMalformed
		}
		size := protowire.ConsumeFieldValue(number, wire, b[at+n:])
		if size < 0 {
			return out, ErrMalformed
		}
		end := at + n + size
		inner := holders[kind][number]
		if inner == noMessage || wire != protowire.BytesType {
			at = end
			continue
		}
		value, _ := protowire.ConsumeBytes(b[at+n:])
		changed, err := e.message(inner, value)
		if err != nil {
			return out, err
		}
		if len(changed.parts) != 1 || changed.size != len(value) || changed.size > 0 && &changed.parts[0][0] != &value[0] {
			out.add(b[from:at])
			out.add(protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.BytesType), uint64(changed.size))) //nolint:gosec // never negative
			for _, p := range changed.parts {
				out.add(p)
			}
			from = end
		}
		at = end
	}
	out.add(b[from:])
	return out, nil
}

// tensor gives a tensor its data, if they are elsewhere.
func (e *embedder) tensor(b []byte) (written, error) {
	var out, unchanged written
	unchanged.add(b)
	var entries map[string]string
	var name string
	elsewhere := false
	for at := 0; at < len(b); {
		number, wire, n := protowire.ConsumeTag(b[at:])
		if n < 0 {
			return out, ErrMalformed
		}
		size := protowire.ConsumeFieldValue(number, wire, b[at+n:])
		if size < 0 {
			return out, ErrMalformed
		}
		field, value := b[at:at+n+size], b[at+n:at+n+size]
		at += n + size
		switch {
		case number == tensorExternal && wire == protowire.BytesType:
			if entries == nil {
				entries = map[string]string{}
			}
			entry, _ := protowire.ConsumeBytes(value)
			if err := entryOf(entry, entries); err != nil {
				return out, err
			}
			continue
		case number == tensorLocation && wire == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			elsewhere = v == 1
			continue
		case number == tensorName && wire == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(value)
			name = string(v)
		case number == tensorRaw:
			continue
		}
		out.add(field)
	}
	if !elsewhere || entries["location"] == "" {
		return unchanged, nil
	}
	data, err := e.data(name, entries)
	if err != nil {
		return out, err
	}
	out.add(protowire.AppendVarint(protowire.AppendTag(nil, tensorRaw, protowire.BytesType), uint64(len(data))))
	out.add(data)
	return out, nil
}

// entryOf reads a StringStringEntryProto.
func entryOf(b []byte, into map[string]string) error {
	var text [3]string
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return ErrMalformed
		}
		size := protowire.ConsumeFieldValue(number, wire, b[n:])
		if size < 0 {
			return ErrMalformed
		}
		if (number == 1 || number == 2) && wire == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b[n:])
			text[number] = string(v)
		}
		b = b[n+size:]
	}
	into[text[1]] = text[2]
	return nil
}

// data is the part of another file that a tensor has its data in.
func (e *embedder) data(name string, entries map[string]string) ([]byte, error) {
	location := entries["location"]
	file, ok := e.files[location]
	if !ok {
		var err error
		if file, err = e.read(location); err != nil {
			return nil, fault.Wrap(err, "the data of tensor %.100q", name)
		}
		e.files[location] = file
	}
	number := func(key string, none uint64) (uint64, error) {
		text := entries[key]
		if text == "" {
			return none, nil
		}
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			return 0, fault.New(fault.Invalid, "tensor %.100q has its data at %s %.40q of %.100q, which is not a number", name, key, text, location)
		}
		return n, nil
	}
	size := uint64(len(file))
	offset, err := number("offset", 0)
	if err != nil {
		return nil, err
	}
	length, err := number("length", size-min(offset, size))
	if err != nil {
		return nil, err
	}
	if offset > size || length > size-offset {
		return nil, fault.New(fault.Invalid, "tensor %.100q has its data at %d to %d of %.100q, which has %d bytes", name, offset, offset+length, location, size).
			WithHint("The two files do not match. Save the model again, and register both.")
	}
	if e.left -= int64(length); e.left < 0 { //nolint:gosec // not more than a file has
		return nil, fault.New(fault.TooLarge, "the model and its tensor data exceed the size limit").
			WithHint("The limit of ONNX models is 2 GiB. Reduce the model with `falaj model optimize`.")
	}
	return file[offset : offset+length], nil
}
