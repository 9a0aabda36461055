package table

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/apache/iceberg-go"
)

// DataFile is a written data file of a snapshot.
type DataFile struct {
	URI   string
	Rows  int64
	Bytes int64
	Nulls map[int]int64 // by field ID; nil leaves the counts out
}

// Snapshot is the state of a table at one version.
type Snapshot struct {
	ID           int64
	Version      int64 // of the dataset; the sequence number
	Parent       int64 // ID of the snapshot before; 0 for none
	Time         time.Time
	Schema       Schema
	ManifestList string // URI
	Rows         int64
	Files        int
	Bytes        int64
}

// Table is what the metadata file describes.
type Table struct {
	Name       string // "nyc/weather"; the table's UUID is derived from it
	Location   string // URI that the files are under
	LastField  int    // the highest field ID ever given
	Snapshots  []Snapshot
	Next       Schema            // of what is to be written; the last snapshot's when nil
	Required   []string          // of a table that is only staged: the columns that are to hold no nulls
	Properties map[string]string // that clients set
	Now        time.Time
	Sealed     bool
}

func icebergType(f Field) iceberg.Type {
	if elem, list := f.Type.Elem(); list {
		return &iceberg.ListType{ElementID: f.Element, Element: icebergScalar(elem)}
	}
	return icebergScalar(f.Type)
}

func icebergScalar(t Type) iceberg.Type {
	switch t {
	case Int32:
		return iceberg.PrimitiveTypes.Int32
	case Int64:
		return iceberg.PrimitiveTypes.Int64
	case Float32:
		return iceberg.PrimitiveTypes.Float32
	case Float64:
		return iceberg.PrimitiveTypes.Float64
	case Bool:
		return iceberg.PrimitiveTypes.Bool
	case Timestamp:
		return iceberg.PrimitiveTypes.TimestampTz
	case Date:
		return iceberg.PrimitiveTypes.Date
	default:
		return iceberg.PrimitiveTypes.String
	}
}

func icebergSchema(id int, s Schema, required ...string) *iceberg.Schema {
	fields := make([]iceberg.NestedField, len(s))
	for i, f := range s {
		fields[i] = iceberg.NestedField{ID: f.ID, Name: f.Name, Type: icebergType(f), Required: slices.Contains(required, f.Name)}
	}
	return iceberg.NewSchema(id, fields...)
}

// WriteManifest writes the Avro file that lists a snapshot's data files. It
// carries counts, never values or bounds.
func WriteManifest(w io.Writer, uri string, snap Snapshot, files []DataFile) (iceberg.ManifestFile, error) {
	entries := make([]iceberg.ManifestEntry, len(files))
	for i, f := range files {
		b, err := iceberg.NewDataFileBuilder(*iceberg.UnpartitionedSpec, iceberg.EntryContentData, f.URI, iceberg.ParquetFile, nil, nil, nil, f.Rows, f.Bytes)
		if err != nil {
			return nil, fmt.Errorf("describing %s: %w", f.URI, err)
		}
		if f.Nulls != nil {
			values := make(map[int]int64, len(snap.Schema))
			for _, field := range snap.Schema {
				values[field.ID] = f.Rows
			}
			b.ValueCounts(values).NullValueCounts(f.Nulls)
		}
		id := snap.ID
		entries[i] = iceberg.NewManifestEntry(iceberg.EntryStatusADDED, &id, nil, nil, b.Build())
	}
	m, err := iceberg.WriteManifest(uri, w, 2, *iceberg.UnpartitionedSpec, icebergSchema(0, snap.Schema), snap.ID, entries)
	if err != nil {
		return nil, fmt.Errorf("writing the manifest: %w", err)
	}
	return m, nil
}

// WriteManifestList writes the Avro file that lists a snapshot's manifests.
func WriteManifestList(w io.Writer, snap Snapshot, manifests ...iceberg.ManifestFile) error {
	var parent *int64
	if snap.Parent != 0 {
		parent = &snap.Parent
	}
	if err := iceberg.WriteManifestList(2, w, snap.ID, parent, &snap.Version, 0, manifests); err != nil {
		return fmt.Errorf("writing the manifest list: %w", err)
	}
	return nil
}

type metadata struct {
	FormatVersion      int               `json:"format-version"`
	TableUUID          string            `json:"table-uuid"`
	Location           string            `json:"location"`
	LastSequenceNumber int64             `json:"last-sequence-number"`
	LastUpdatedMS      int64             `json:"last-updated-ms"`
	LastColumnID       int               `json:"last-column-id"`
	Schemas            []*iceberg.Schema `json:"schemas"`
	CurrentSchemaID    int               `json:"current-schema-id"`
	PartitionSpecs     []partitionSpec   `json:"partition-specs"`
	DefaultSpecID      int               `json:"default-spec-id"`
	LastPartitionID    int               `json:"last-partition-id"`
	SortOrders         []sortOrder       `json:"sort-orders"`
	DefaultSortOrderID int               `json:"default-sort-order-id"`
	Properties         map[string]string `json:"properties"`
	CurrentSnapshotID  int64             `json:"current-snapshot-id"`
	Snapshots          []snapshot        `json:"snapshots"`
	SnapshotLog        []snapshotLog     `json:"snapshot-log"`
	MetadataLog        []struct{}        `json:"metadata-log"`
	Refs               map[string]ref    `json:"refs"`
}

type partitionSpec struct {
	ID     int        `json:"spec-id"`
	Fields []struct{} `json:"fields"`
}

type sortOrder struct {
	ID     int        `json:"order-id"`
	Fields []struct{} `json:"fields"`
}

type snapshot struct {
	ID             int64             `json:"snapshot-id"`
	Parent         int64             `json:"parent-snapshot-id,omitempty"`
	SequenceNumber int64             `json:"sequence-number"`
	TimestampMS    int64             `json:"timestamp-ms"`
	ManifestList   string            `json:"manifest-list"`
	Summary        map[string]string `json:"summary"`
	SchemaID       int               `json:"schema-id"`
}

type snapshotLog struct {
	ID          int64 `json:"snapshot-id"`
	TimestampMS int64 `json:"timestamp-ms"`
}

type ref struct {
	ID   int64  `json:"snapshot-id"`
	Type string `json:"type"`
}

// WriteMetadata writes the table metadata (format version 2). Each snapshot
// replaces the one before; the last is the current one, and tag "vN" is version
// N. Equal tables give equal bytes.
func WriteMetadata(w io.Writer, t Table) error {
	var buf bytes.Buffer
	if err := json.NewEncoder(&buf).Encode(t.metadata()); err != nil {
		return fmt.Errorf("encoding the table metadata: %w", err)
	}
	_, err := w.Write(buf.Bytes())
	return err
}

// What all our tables have: no partitions, no order.
const (
	onlySpec      = 0
	onlyOrder     = 0
	lastPartition = 999 // as clients expect it where there is none
)

func (t Table) metadata() metadata {
	m := metadata{
		FormatVersion: 2, TableUUID: uuidOf(t.Name), Location: t.Location,
		LastUpdatedMS: t.Now.UnixMilli(), LastColumnID: t.LastField, LastPartitionID: lastPartition,
		PartitionSpecs: []partitionSpec{{Fields: []struct{}{}}}, SortOrders: []sortOrder{{Fields: []struct{}{}}},
		Properties: map[string]string{},
		Snapshots:  []snapshot{}, SnapshotLog: []snapshotLog{}, MetadataLog: []struct{}{}, Refs: map[string]ref{},
		Schemas: []*iceberg.Schema{}, CurrentSnapshotID: -1,
	}
	maps.Copy(m.Properties, t.Properties)
	maps.Copy(m.Properties, fixed)
	if t.Sealed {
		m.Properties[protection] = "sealed"
	}
	var schemas []Schema
	schemaID := func(s Schema) int {
		id := slices.IndexFunc(schemas, func(o Schema) bool { return slices.Equal(o, s) })
		if id < 0 {
			id = len(schemas)
			schemas = append(schemas, s)
			m.Schemas = append(m.Schemas, icebergSchema(id, s, t.Required...))
		}
		return id
	}
	for i, s := range t.Snapshots {
		id := schemaID(s.Schema)
		op := "overwrite"
		parent := int64(0)
		if i == 0 {
			op = "append"
		} else {
			parent = t.Snapshots[i-1].ID
		}
		m.Snapshots = append(m.Snapshots, snapshot{
			ID: s.ID, Parent: parent, SequenceNumber: s.Version, TimestampMS: s.Time.UnixMilli(), ManifestList: s.ManifestList, SchemaID: id,
			Summary: map[string]string{
				"operation": op, "total-records": strconv.FormatInt(s.Rows, 10), "total-data-files": strconv.Itoa(s.Files),
				"total-files-size": strconv.FormatInt(s.Bytes, 10), "total-delete-files": "0",
			},
		})
		m.SnapshotLog = append(m.SnapshotLog, snapshotLog{ID: s.ID, TimestampMS: s.Time.UnixMilli()})
		m.Refs["v"+strconv.FormatInt(s.Version, 10)] = ref{ID: s.ID, Type: "tag"}
		m.CurrentSchemaID, m.CurrentSnapshotID, m.LastSequenceNumber = id, s.ID, max(m.LastSequenceNumber, s.Version)
	}
	if m.CurrentSnapshotID > 0 {
		m.Refs[mainBranch] = ref{ID: m.CurrentSnapshotID, Type: "branch"}
	}
	if t.Next != nil || len(m.Schemas) == 0 {
		m.CurrentSchemaID = schemaID(t.Next)
	}
	return m
}

const (
	mainBranch = "main"
	protection = "falaj.protection"
)

// fixed are the properties that clients cannot set: what they write is copied
// whole, so there is nothing to merge on read, and no metadata of ours to delete.
var fixed = map[string]string{
	protection: "open", "write.format.default": "parquet",
	"write.delete.mode": "copy-on-write", "write.update.mode": "copy-on-write", "write.merge.mode": "copy-on-write",
	"write.metadata.delete-after-commit.enabled": "false",
}

// uuidOf is a version-8 UUID made from a name.
func uuidOf(name string) string {
	h := sha256.Sum256([]byte("falaj table " + name))
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}
