package dataset

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/iceberg-go"

	"github.com/falaj-ml/falaj/internal/dataset/cell"
	"github.com/falaj-ml/falaj/internal/dataset/datafile"
	"github.com/falaj-ml/falaj/internal/dataset/expectation"
	"github.com/falaj-ml/falaj/internal/dataset/statistics"
	"github.com/falaj-ml/falaj/internal/dataset/table"
	"github.com/falaj-ml/falaj/internal/event"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/audit"
	"github.com/falaj-ml/falaj/internal/governance/identity"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/store"
)

// draft is a version being written.
type draft struct {
	project        project.Name
	name           string
	spec           Spec // the dataset's when the write began
	residency      residency.Label
	classification Classification

	rows     array.RecordReader
	snapshot int64       // its ID where another engine wrote it; 0 for none
	onto     *onto       // nil follows whatever is there
	base     int64       // version of the dataset that the rows continue; 0 for none
	read     []JobInputs // what a job could read that made the rows; nil for none
	// lineage is asked for when the rows have been read to their end.
	lineage func() (Lineage, error)
	// progress hears of the rows written so far; may be nil.
	progress func(rows int64)
	// then runs in the transaction of the version; may be nil.
	then func(ctx context.Context, tx *store.Tx, v Version) error
	// newest: only the newest version counts as one with the same content.
	newest bool
	// continues demands that an accepted version keeps the schema; nil permits any.
	continues *continues
	redacts   *Version           // that the new one stands for; nil for none
	aside     array.RecordReader // with redacts: its quarantine as it stays; nil for none
}

// continues says how a change of the schema is refused.
type continues struct{ origin, hint string }

// check compares a version with the newest accepted one. A type that the dataset declares
// and a column that it leaves out are changed on purpose.
func (c *continues) check(spec Spec, was, now Version) error {
	if c == nil {
		return nil
	}
	var expected table.Schema
	for _, f := range was.Schema {
		if slices.Contains(spec.LeaveOut, f.Name) {
			continue
		}
		for _, declared := range spec.Columns {
			if declared.Name == f.Name {
				f.Type = declared.Type
			}
		}
		expected = append(expected, f)
	}
	if err := now.Schema.Continues(expected, c.origin, was.Ref().String()); err != nil {
		return err.WithHint("%s", c.hint)
	}
	return nil
}

// write makes a version of a draft's rows: the one path by which versions come
// to be. A version with the same content, made the same way, is returned
// instead of a second one, marked Unchanged; what the dataset's name means stays.
//
// Order: field IDs and a staging row are committed, then files are written,
// then the version is committed and its staging row removed in one transaction.
// A crash in between leaves a staging row, by which Recover removes the files.
func (s *core) write(ctx context.Context, w draft) (Version, error) {
	schema, err := table.NormalSchema(w.rows.Schema())
	if err != nil {
		return Version{}, err
	}
	v := Version{
		ID: VersionID(id.New("dsv")), Project: w.project, Dataset: w.name, Protection: w.spec.Protection,
		Classification: w.classification, Residency: w.residency, CreatedBy: createdBy(identity.From(ctx)), Snapshot: w.snapshot,
		Room: room(w),
	}
	if err := s.stage(ctx, w, schema, &v); err != nil {
		return Version{}, err
	}
	kept, own := false, Staging{ID: v.ID, Project: v.Project, Dataset: v.Dataset, Room: v.Room}
	defer func() {
		if !kept {
			s.discard(ctx, own)
		}
	}()
	seal, err := s.seal(ctx, v)
	if err != nil {
		return Version{}, err
	}
	if err := s.fill(ctx, w, &v, seal); err != nil {
		return Version{}, err
	}
	if v.Lineage, err = w.lineage(); err != nil {
		return Version{}, err
	}
	if err := s.keepClass(ctx, w, &v); err != nil {
		return Version{}, err
	}
	v.Fingerprint = fingerprint(w.spec, v)
	done, err := s.commit(ctx, w, v)
	kept = err == nil && done.ID == own.ID
	return done, err
}

// keepClass gives a version the class that its content, or the file that it was imported
// from, has in any project already: the same bytes do not become less sensitive by being
// written again. A version without rows says nothing.
func (s *core) keepClass(ctx context.Context, w draft, v *Version) error {
	if v.Rows == 0 {
		return nil
	}
	digests := []string{v.ContentDigest}
	if v.Lineage.Source != nil && v.Lineage.Source.Digest != "" {
		digests = append(digests, v.Lineage.Source.Digest)
	}
	var known []Classification
	err := s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		known, err = s.cfg.Store.ClassesOf(ctx, tx, digests)
		return err
	})
	if err != nil {
		return fault.Wrap(err, "searching for identical content")
	}
	class := project.Strictest(append(known, v.Classification)...)
	if !class.Journalled() || class == v.Classification {
		return nil
	}
	if w.spec.Protection == Open {
		return fault.New(fault.PermissionDenied, "these rows are classified as %s in another dataset, and dataset %s is open to other engines", class, w.name).
			WithHint("Declare a sealed dataset, or lower the classification of the version that contains them, which needs a second approver.")
	}
	v.Classification = class
	return nil
}

// fingerprint is equal for versions made of the same content, the same way.
func fingerprint(spec Spec, v Version) string {
	l := v.Lineage
	l.Producer, l.Columns = nil, nil // what was executed has a digest
	if v.Lineage.Producer != nil {
		l.Producer = &Producer{Kind: v.Lineage.Producer.Kind, Digest: v.Lineage.Producer.Digest}
	}
	if l.Source != nil {
		l.Source = &Source{Digest: l.Source.Digest} // the same bytes under another name
	}
	b, err := json.Marshal(struct {
		Content        string          `json:"content"`
		Quarantine     string          `json:"quarantine,omitempty"`
		Spec           string          `json:"spec"`
		Lineage        Lineage         `json:"lineage"`
		Residency      residency.Label `json:"residency"`
		Classification Classification  `json:"classification"`
	}{v.ContentDigest, v.QuarantineDigest, spec.digest(), l, residency.Of(v.Residency.Zones()...), v.Classification})
	if err != nil {
		panic("dataset: a lineage does not marshal: " + err.Error())
	}
	return digestOf(b)
}

// stage commits the column IDs and the mark that files are being written.
func (s *core) stage(ctx context.Context, w draft, schema Schema, v *Version) error {
	return s.cfg.DB.Update(ctx, string(w.project), func(ctx context.Context, tx *store.Tx) error {
		d, err := s.live(ctx, tx, w.project, w.name)
		if err != nil {
			return err
		}
		var fresh bool
		v.DatasetID = d.ID
		if v.Schema, fresh = d.Fields.assign(schema, w.spec.Columns); fresh {
			if err := s.cfg.Store.PutDataset(ctx, tx, d); err != nil {
				return err
			}
		}
		if err := s.cfg.Store.InsertStaging(ctx, tx, Staging{
			ID: v.ID, Project: w.project, Dataset: w.name, Room: v.Room, Instance: s.cfg.Instance, Deadline: s.cfg.Now().Add(2 * s.limits.ImportTime),
		}); err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(w.project), Action: string(ActionImport), Object: "dataset " + w.name,
			Detail: map[string]any{"phase": "began", "version_id": v.ID},
		})
	})
}

// prefix is where a version's files are.
func prefix(p project.Name, dataset, room string, v VersionID) string {
	return path.Join("projects", string(p), "datasets", dataset, room, string(v)) + "/"
}

func (v Version) prefix() string { return prefix(v.Project, v.Dataset, v.Room, v.ID) }

// roomPrefix begins the names of rooms.
const roomPrefix = "in_"

// room is where the versions of an open dataset are that may be in the same zones
// and have the same class, below the table's location: whoever is let in by the
// file system, as jobs are, sees these and no others, also those that come later.
func room(w draft) string {
	if w.spec.Protection != Open {
		return ""
	}
	label := fmt.Sprintf("%s %s", residency.Of(w.residency.Zones()...), w.classification)
	return roomPrefix + strings.TrimPrefix(digestOf([]byte(label)), "sha256:")[:16]
}

// file names one of a version's files.
func (v Version) file(name string, form datafile.Form) datafile.File {
	if v.Protection == Open {
		form = datafile.Plain
	}
	return datafile.File{Project: v.Project, Dataset: v.Dataset, Key: v.prefix() + name, Form: form}
}

// seal is what the version's data files are encrypted with.
func (s *core) seal(ctx context.Context, v Version) (table.Seal, error) {
	if v.Protection == Open {
		return table.Seal{}, nil
	}
	key, err := s.cfg.Keys.DataKey(ctx, string(v.Project), datafile.Owner(v.Dataset), "parquet/"+string(v.ID))
	if err != nil {
		return table.Seal{}, fault.Wrap(err, "the key of %s", v.Ref())
	}
	return table.Seal{Key: key, Name: string(v.ID)}, nil
}

// heavyCells is the least batch of rows that is checked and measured in turn: about a
// millisecond of a processor.
const heavyCells = 1 << 16

// fill reads the rows to their end into data files, judging them on the way.
func (s *core) fill(ctx context.Context, w draft, v *Version, seal table.Seal) (err error) {
	defer func() { // the reader is the caller's, and may be of anything
		if p := recover(); p != nil {
			err = fault.New(fault.Internal, "%w: for %s: %v", ErrRows, w.name, p)
		}
	}()
	hide := w.classification.Journalled()
	digest, stats := cell.NewDigest(v.Schema), statistics.NewCollector(v.Schema, hide)
	check := expectation.New(w.spec.Expectations, v.Schema, s.cfg.Now(), hide, w.redacts == nil, s.limits.UniqueKeys)
	if err := s.loadReferences(ctx, w, check); err != nil {
		return err
	}
	sample := statistics.NewSampler(v.Schema)
	out := &dataWriter{s: s, ctx: ctx, v: v, seal: seal, set: v.kept(), files: &v.Files}
	defer out.abort()
	aside := &quarantine{dataWriter: dataWriter{s: s, ctx: ctx, v: v, seal: seal, set: v.aside(), files: &v.Quarantine}}
	defer aside.abort()
	turn := share.NewTurn(identity.Share(ctx, w.project))
	defer turn.End()
	for w.rows.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if next := w.rows.RecordBatch(); next.NumRows()*next.NumCols() >= heavyCells {
			if err := turn.Begin(ctx); err != nil {
				return err
			}
		}
		first := check.RowsRead() + 1
		rec, err := table.Normalize(w.rows.RecordBatch(), v.Schema, first)
		if err != nil {
			return err
		}
		err = func() error {
			defer func() { rec.Release() }()
			row := func(i int) int64 { return first + int64(i) }
			goes, err := check.Sift(rec)
			if err != nil {
				return err
			}
			if len(goes) > 0 {
				turn.End() // writing waits for the disk, or for a bucket
				stays, err := aside.take(rec, goes, row, check.Reasons)
				if err == nil {
					err = turn.Begin(ctx)
				}
				if err != nil {
					return err
				}
				all := rec
				defer all.Release()
				rec = pick(all, stays)
				row = func(i int) int64 { return first + int64(stays[i]) }
			}
			digest.Add(rec)
			stats.Add(rec)
			sample.Add(rec)
			if err := check.Add(rec, row); err != nil {
				return err
			}
			v.Rows += rec.NumRows()
			turn.End()
			return out.write(rec)
		}()
		if err != nil {
			return err
		}
		if w.progress != nil {
			w.progress(v.Rows)
		}
	}
	if err := w.rows.Err(); err != nil {
		return err
	}
	if err := out.close(); err != nil {
		return err
	}
	if err := aside.finish(v, w.aside); err != nil {
		return err
	}
	seen := sample.Sketches()
	if err := s.keepSketches(ctx, *v, seen); err != nil {
		return err
	}
	if err := s.checkDrift(ctx, w, check, seen); err != nil {
		return err
	}
	v.ContentDigest, v.Statistics, v.Expectations = digest.Sum(), stats.Summaries(), check.Results()
	v.State, v.Reason = stateByExpectations(w, *v)
	return s.sealStatistics(ctx, v)
}

// stateByExpectations is the state of a version by the results of its expectations, and why.
func stateByExpectations(w draft, v Version) (State, string) {
	if w.redacts != nil { // an accepted version stays accepted after a redaction
		return Accepted, ""
	}
	var failed []string
	more := 0
	for _, r := range v.Expectations {
		switch {
		case r.Passed:
		case len(failed) < expectation.MaxReasons:
			failed = append(failed, r.Text(v.Protection == Open))
		default:
			more++
		}
	}
	if more > 0 {
		failed = append(failed, fmt.Sprintf("and %d more expectations fail", more))
	}
	if len(failed) > 0 {
		return Rejected, strings.Join(failed, "; ")
	}
	if v.Rows == 0 && v.Quarantined > 0 {
		return Rejected, fmt.Sprintf("all %d rows are quarantined", v.Quarantined)
	}
	return Accepted, ""
}

// dataWriter writes a set of a version's rows into data files, one after the other.
type dataWriter struct {
	s     *core
	ctx   context.Context //nolint:containedctx // of one write
	v     *Version
	seal  table.Seal
	set   rowset
	files *[]DataFile // of the set, in the version

	file datafile.Writer
	pq   *table.FileWriter
	key  string
}

func (o *dataWriter) write(rec arrow.RecordBatch) error {
	if rec.NumRows() == 0 {
		return nil
	}
	if o.pq == nil {
		if err := o.begin(); err != nil {
			return err
		}
	}
	if err := o.pq.Write(rec); err != nil {
		return err
	}
	if o.pq.Bytes() >= int64(o.s.limits.DataFile) {
		return o.end()
	}
	return nil
}

func (o *dataWriter) begin() (err error) {
	n := len(*o.files)
	f := o.v.file(fmt.Sprintf("%s-%05d.parquet", o.set.name, n), datafile.SelfSealed)
	o.key = f.Key
	if o.file, err = o.s.cfg.Files.Create(o.ctx, f); err != nil {
		return err
	}
	seal := o.seal
	if len(seal.Key) > 0 {
		seal.Name = o.set.sealName(o.v.ID, n)
	}
	o.pq, err = table.NewFileWriter(o.file, o.set.schema, seal)
	return err
}

func (o *dataWriter) end() error {
	if err := o.pq.Close(); err != nil {
		return err
	}
	groups, err := o.pq.Groups()
	if err != nil {
		return err
	}
	df := DataFile{Key: o.key, Rows: o.pq.Rows(), Bytes: o.pq.Bytes(), Groups: groups}
	if err := o.file.Commit(); err != nil {
		return err
	}
	o.file, o.pq = nil, nil
	*o.files = append(*o.files, df)
	o.v.Bytes += df.Bytes
	return nil
}

// close ends the last file. There is always one, even without rows.
func (o *dataWriter) close() error {
	if o.pq == nil {
		if len(*o.files) > 0 {
			return nil
		}
		if err := o.begin(); err != nil {
			return err
		}
	}
	return o.end()
}

func (o *dataWriter) abort() {
	if o.file != nil {
		o.file.Abort()
	}
}

// maxCommits bounds the attempts to get the next number against other writers.
const maxCommits = 20

// commit gives the version its number. The metadata of an accepted version
// names the number, so it is written before, for the number that comes next,
// and again when another writer took that number meanwhile. One that is bound to
// what it follows is then refused.
func (s *core) commit(ctx context.Context, w draft, v Version) (Version, error) {
	if w.redacts != nil {
		return s.replace(ctx, w, v)
	}
	looked := false // for persons who were erased
	for range maxCommits {
		d, before, twin, err := s.look(ctx, w, v)
		if err != nil {
			return Version{}, err
		}
		if twin.ID != "" {
			twin.Unchanged = true
			if d.Accepted > 0 {
				twin.Current = Ref{Name: d.Name, Number: d.Accepted}.String()
			}
			if err := s.openStatistics(ctx, &twin); err != nil || w.then == nil {
				return twin, err
			}
			err := s.cfg.DB.Update(ctx, string(v.Project), func(ctx context.Context, tx *store.Tx) error { return w.then(ctx, tx, twin) })
			return twin, err
		}
		if w.onto != nil && d.Accepted != w.onto.base {
			return Version{}, moved(d.Name)
		}
		if !looked {
			if v.Returned, err = s.returned(ctx, v); err != nil {
				return Version{}, fault.Wrap(err, "searching for erased persons")
			}
			looked = true
		}
		v.Number = d.Latest + 1
		v.Created = s.cfg.Now().UTC().Truncate(time.Microsecond)
		metadata := ""
		if v.State == Accepted {
			if at := slices.IndexFunc(before, func(b Version) bool { return b.Number == d.Accepted }); at >= 0 {
				if err := w.continues.check(w.spec, before[at], v); err != nil {
					return Version{}, err
				}
			}
			become(&d, w.onto)
			if metadata, err = s.describe(ctx, d, before, &v); err != nil {
				return Version{}, err
			}
		}
		took := false
		err = s.cfg.DB.Update(ctx, string(v.Project), func(ctx context.Context, tx *store.Tx) error {
			took = false
			now, err := s.live(ctx, tx, v.Project, v.Dataset)
			if err != nil {
				return err
			}
			if now.ID != d.ID || now.Latest != d.Latest || now.Metadata != d.Metadata {
				return nil
			}
			if err := s.unredacted(ctx, tx, now, w.base, v); err != nil {
				return err
			}
			if err := s.requireNotErased(ctx, tx, v.Project, w.read); err != nil {
				return err
			}
			if err := s.inTurn(ctx, tx, now, v); err != nil {
				return err
			}
			addColumns(&now, v)
			now.Latest = v.Number
			if v.State == Accepted {
				now.Accepted, now.Metadata, now.Stale = v.Number, metadata, false
				become(&now, w.onto)
			}
			if err := s.insert(ctx, tx, now, v); err != nil {
				return err
			}
			if w.then != nil {
				if err := w.then(ctx, tx, v); err != nil {
					return err
				}
			}
			took = true
			return nil
		})
		if err != nil {
			return Version{}, err
		}
		if took {
			return v, nil
		}
	}
	return Version{}, fault.New(fault.Unavailable, "dataset %s has too many concurrent writers", v.Dataset).WithHint("Try again.")
}

// become is what else a dataset becomes with a version of its own.
func become(d *Dataset, to *onto) {
	d.Next = nil
	if to != nil && to.change != nil {
		to.change(d)
	}
}

func (s *core) look(ctx context.Context, w draft, v Version) (d Dataset, before []Version, twin Version, err error) {
	err = s.cfg.DB.View(ctx, func(ctx context.Context, tx *store.Tx) error {
		if d, err = s.live(ctx, tx, v.Project, v.Dataset); err != nil {
			return err
		}
		if w.newest {
			twin, err = s.newest(ctx, tx, d, v.Fingerprint)
		} else {
			twin, err = s.cfg.Store.Twin(ctx, tx, d.ID, v.Fingerprint)
		}
		if err == nil && twin.State == Rejected && v.State == Accepted {
			// What it was checked against has changed: the data that it refers to came, say.
			twin, err = Version{}, nil
		} else if err == nil || !fault.Is(err, fault.NotFound) {
			return err
		}
		before, err = s.present(ctx, tx, d.ID)
		return err
	})
	return d, before, twin, err
}

// newest is the newest version if it has the fingerprint; else fault.NotFound.
func (s *core) newest(ctx context.Context, tx *store.Tx, d Dataset, fingerprint string) (Version, error) {
	v, err := s.cfg.Store.Version(ctx, tx, d.ID, d.Latest)
	if err == nil && (v.Fingerprint != fingerprint || v.State == Deleted) {
		return Version{}, fault.New(fault.NotFound, "the newest version has another fingerprint")
	}
	return v, err
}

func (s *core) insert(ctx context.Context, tx *store.Tx, d Dataset, v Version) error {
	if err := s.cfg.Store.PutDataset(ctx, tx, d); err != nil {
		return err
	}
	if err := s.cfg.Store.InsertVersion(ctx, tx, v); err != nil {
		return err
	}
	if err := s.cfg.Store.DeleteStaging(ctx, tx, v.ID); err != nil {
		return err
	}
	detail := map[string]any{
		"state": v.State, "rows": v.Rows, "digest": v.ContentDigest, "classification": v.Classification, "residency": v.Residency.Zones(),
	}
	if v.Lineage.Source != nil {
		detail["source"] = v.Lineage.Source.Digest
	}
	if v.Quarantined > 0 {
		detail["quarantined"] = v.Quarantined
	}
	if len(v.Returned) > 0 {
		detail["returned"] = v.Returned
		if err := event.Publish(ctx, tx, string(v.Project), EventPersonReturned, PersonReturned{Name: d.Name, Version: v.ID, Number: v.Number, Returned: v.Returned}); err != nil {
			return err
		}
	}
	if len(v.Lineage.Parents) > 0 {
		refs := make([]string, len(v.Lineage.Parents))
		for i, p := range v.Lineage.Parents {
			refs[i] = p.Ref
		}
		detail["parents"] = refs
	}
	if err := audit.Append(ctx, tx, audit.Entry{
		Project: string(v.Project), Action: string(ActionImport), Object: "dataset " + v.Ref().String(), Reason: v.Reason, Detail: detail,
	}); err != nil {
		return err
	}
	return event.Publish(ctx, tx, string(v.Project), EventVersionCreated, Event{
		Dataset: d.ID, Name: d.Name, Version: v.ID, Number: v.Number, State: v.State, Rows: v.Rows, Quarantined: v.Quarantined, Digest: v.ContentDigest,
	})
}

// describe writes the Iceberg files of an accepted version: its manifest, its
// manifest list and the table's metadata with the accepted versions before it.
// It returns the metadata's key.
func (s *core) describe(ctx context.Context, d Dataset, before []Version, v *Version) (string, error) {
	if err := s.manifests(ctx, before, v); err != nil {
		return "", err
	}
	return s.describeTable(ctx, d, append([]Version{*v}, before...), *v)
}

// manifests writes a version's manifest and manifest list.
func (s *core) manifests(ctx context.Context, before []Version, v *Version) error {
	before = inOrder(before)
	snap := s.snapshot(*v)
	if len(before) > 0 {
		snap.Parent = before[0].snapshotID()
	}
	nulls := map[int]int64{}
	for i, f := range v.Schema {
		nulls[f.ID] = v.Statistics[i].Nulls
	}
	files := make([]table.DataFile, len(v.Files))
	for i, f := range v.Files {
		files[i] = table.DataFile{URI: s.cfg.Files.URI(f.Key), Rows: f.Rows, Bytes: f.Bytes}
		if len(v.Files) == 1 {
			files[i].Nulls = nulls
		}
	}
	name := fmt.Sprintf("manifest-%05d.avro", v.Number)
	var manifest iceberg.ManifestFile
	if err := datafile.Put(ctx, s.cfg.Files, v.file(name, datafile.Enveloped), func(w io.Writer) (err error) {
		manifest, err = table.WriteManifest(w, s.cfg.Files.URI(v.prefix()+name), snap, files)
		return err
	}); err != nil {
		return err
	}
	list := fmt.Sprintf("snapshot-%05d.avro", v.Number)
	v.ManifestList = v.prefix() + list
	if err := datafile.Put(ctx, s.cfg.Files, v.file(list, datafile.Enveloped), func(w io.Writer) error {
		return table.WriteManifestList(w, snap, manifest)
	}); err != nil {
		return err
	}
	return nil
}

func (s *core) snapshot(v Version) table.Snapshot {
	return table.Snapshot{
		ID: v.snapshotID(), Version: v.Number, Time: v.Created, Schema: v.Schema, ManifestList: s.cfg.Files.URI(v.ManifestList),
		Rows: v.Rows, Files: len(v.Files), Bytes: v.Bytes,
	}
}

// describeTable writes the table's metadata beside version at. newest first.
func (s *core) describeTable(ctx context.Context, d Dataset, newest []Version, at Version) (string, error) {
	t := s.table(d, newest, at)
	f := at.file(fmt.Sprintf("%05d-%s.metadata.json", at.Number, id.New("m")[2:]), datafile.Enveloped)
	err := datafile.Put(ctx, s.cfg.Files, f, func(w io.Writer) error { return table.WriteMetadata(w, t) })
	return f.Key, err
}

// table is a dataset's versions, newest first, as a table whose newest version
// is at. A table is read by one kind of reader: sealed versions are not listed
// for engines that could not open them.
func (s *core) table(d Dataset, newest []Version, at Version) table.Table {
	t := table.Table{
		Name: fmt.Sprintf("%s/%s", d.Project, d.Name), Location: s.cfg.Files.URI(location(d)), LastField: d.Fields.Last,
		Next: d.Next, Properties: d.Properties, Now: at.Created, Sealed: at.Protection == Sealed,
	}
	for _, v := range slices.Backward(inOrder(newest)) {
		if v.Protection == at.Protection {
			t.Snapshots = append(t.Snapshots, s.snapshot(v))
		}
	}
	return t
}

// location is what the keys of all a dataset's files begin with.
func location(d Dataset) string { return fmt.Sprintf("projects/%s/datasets/%s", d.Project, d.Name) }

// discard removes what a failed write left, even when ctx has ended.
func (s *core) discard(ctx context.Context, g Staging) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := s.clean(ctx, g); err != nil {
		s.cfg.Log.ErrorContext(ctx, "the files of an unfinished dataset version were not removed; the next start removes them",
			slog.String("project", string(g.Project)), slog.String("dataset", g.Dataset), slog.String("version_id", string(g.ID)), slog.Any("error", err))
	}
}

// clean removes the files under a staging's prefix, then the staging row.
func (s *core) clean(ctx context.Context, g Staging) error {
	if err := s.cfg.Files.Remove(ctx, prefix(g.Project, g.Dataset, g.Room, g.ID)); err != nil {
		return err
	}
	return s.cfg.DB.Update(ctx, string(g.Project), func(ctx context.Context, tx *store.Tx) error {
		if err := s.cfg.Store.DeleteStaging(ctx, tx, g.ID); err != nil {
			return err
		}
		return audit.Append(ctx, tx, audit.Entry{
			Project: string(g.Project), Action: actionClean, Object: "dataset " + g.Dataset,
			Detail: map[string]any{"version_id": g.ID},
		})
	})
}
