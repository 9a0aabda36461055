package blob

import (
	"context"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Sized is a driver that knows the stored sizes of objects without opening them.
type Sized interface {
	// Sizes is List with the stored bytes of each object.
	Sizes(ctx context.Context, prefix Key, yield func(key Key, stored int64) error) error
	// Size is the stored bytes of an object. Error: fault.NotFound.
	Size(ctx context.Context, key Key) (int64, error)
}

// Sizes lists a driver's objects with their stored bytes.
func Sizes(ctx context.Context, d Driver, prefix Key, yield func(key Key, stored int64) error) error {
	if s, ok := d.(Sized); ok {
		return s.Sizes(ctx, prefix, yield)
	}
	return d.List(ctx, prefix, func(key Key) error {
		size, there, err := SizeOf(ctx, d, key)
		if err != nil || !there { // deleted meanwhile
			return err
		}
		return yield(key, size)
	})
}

// SizeOf is the stored bytes of an object, if it is there.
func SizeOf(ctx context.Context, d Driver, key Key) (stored int64, there bool, err error) {
	if s, ok := d.(Sized); ok {
		stored, err = s.Size(ctx, key)
	} else {
		var o Object
		if o, err = d.Open(ctx, key); err == nil {
			stored, err = o.Size(), o.Close()
		}
	}
	if fault.Is(err, fault.NotFound) {
		return 0, false, nil
	}
	return stored, err == nil, err
}

// Of an object whose name is used once, the record that names it is committed after the object is
// stored. A sweep on another server sees the object first, and must not take it for what a killed
// server left. So the one is bounded, and the other waits longer.
const (
	// RecordWithin bounds the time from the choice of such a name to the commit of its record.
	RecordWithin = 20 * time.Hour
	// Unrecorded is the age, by the time in its name, from which such an object without a record
	// is deleted: none will ever name it.
	Unrecorded = 24 * time.Hour
)

// Written is when an object was put, as far as the driver knows. Errors: fault.NotFound;
// fault.Unsupported.
func Written(ctx context.Context, d Driver, key Key) (time.Time, error) {
	aged, ok := d.(interface {
		Written(ctx context.Context, key Key) (time.Time, error)
	})
	if !ok {
		return time.Time{}, fault.New(fault.Unsupported, "this store does not record when objects were written")
	}
	return aged.Written(ctx, key)
}
