// Package scan says what the files of a model are, by their bytes and not by their
// names, and what loading them would do. It loads nothing.
//
// # Map
//
//   - scan.go: levels, the report, limits. look.go: what a file is.
//   - pickle.go: a walk through the opcodes of a pickle, without running any.
//   - imports.go: which imports of a pickle do what.
//   - onnx.go: ONNX models, by package onnxfile.
//   - archive.go: zip, tar, and what is compressed, and what is wrong with them.
//
// # Guarantees
//
// A pickle is found wherever a loader would find it: at the start of a file, one after
// another, in members of archives, behind the header of a NumPy array of objects, between
// the arrays of a joblib file. What cannot be looked through to its end is Danger, so that
// nothing hides behind a limit. Memory is bounded by Limits, whatever a file says of
// itself; time by the context.
//
// # What it cannot say
//
// A pickle of level Known may still be wrong: it makes objects of well-known libraries,
// whose constructors are theirs. Nothing here makes loading a pickle safe; Falaj does that
// in a sandbox only.
package scan

import (
	"context"
	"fmt"
	"io"
	"slices"
)

// Level is what loading a file may do, the least first.
type Level string

// The levels.
const (
	Data    Level = "data"    // nothing runs
	Known   Level = "known"   // pickles that import names of well-known libraries only
	Unknown Level = "unknown" // pickles that import other names
	Code    Level = "code"    // brings code of its own that runs: functions by value, Lambda layers
	Danger  Level = "danger"  // reaches for the system, hides something, or attacks who unpacks it
)

var levels = []Level{Data, Known, Unknown, Code, Danger}

// Over is whether l is more than most.
func (l Level) Over(most Level) bool { return slices.Index(levels, l) > slices.Index(levels, most) }

// ParseLevel reads a level.
func ParseLevel(s string) (Level, bool) { return Level(s), slices.Contains(levels, Level(s)) }

// Content is what a file, or a member of an archive, was found to be. Plain data is not
// listed.
type Content struct {
	Path     string   `json:"path" doc:"File; the member of an archive follows after !"`
	Format   string   `json:"format" doc:"pickle, zip, tar, gzip, zlib, bzip2, zstd, xz, numpy, hdf5, json, onnx, elf, pe or mach-o"`
	Level    Level    `json:"level" enum:"data,known,unknown,code,danger" doc:"Risk of loading it"`
	Protocol *int     `json:"protocol,omitempty" doc:"Protocol version of a pickle"`
	Imports  []string `json:"imports,omitempty" doc:"Imports of a pickle: module and name"`
	Reasons  []string `json:"reasons,omitempty" doc:"Reason for this level"`
}

// Report is what was found in all files of a version.
type Report struct {
	Scanner  int       `json:"scanner" doc:"Version of the rules"`
	Level    Level     `json:"level" enum:"data,known,unknown,code,danger" doc:"The highest of its contents"`
	Files    int       `json:"files" doc:"Number of scanned files"`
	Contents []Content `json:"contents" doc:"Contents that are more than plain data"`
	More     int       `json:"more,omitempty" doc:"Number of contents that are not listed"`
}

// Rules is the version of the rules; a report says by which it was made.
const Rules = 3

// Why is the worst of a report in words; empty when it is no more than most.
func (r Report) Why(most Level) string {
	for _, c := range r.Contents {
		if c.Level != r.Level || !c.Level.Over(most) {
			continue
		}
		why := "is a " + c.Format
		if len(c.Reasons) > 0 {
			why = c.Reasons[0]
		}
		return c.Path + ": " + why
	}
	if r.Level.Over(most) {
		return "one of its files"
	}
	return ""
}

// Limits bound one file. The zero value has none: use Default.
type Limits struct {
	Members  int   // of an archive, those of archives in it included
	Depth    int   // archives in archives
	Expanded int64 // bytes that all that is compressed in it expands to
	Ratio    int64 // how many times over its size something may expand once it is over Free
	Free     int64
	InMemory int64 // bytes of an archive in an archive
	Steps    int64 // opcodes of its pickles
	Stack    int   // values on a pickle's stack, and in its memo
	Strings  int64 // bytes of strings that are kept
	Listed   int   // contents of a report
	Imports  int   // of a pickle that are listed
}

// Default are the limits that Falaj has: a vocabulary of some millions of words passes, and nothing
// takes more than 500 MiB of memory.
var Default = Limits{
	Members: 100_000, Depth: 4, Expanded: 256 << 30, Ratio: 200, Free: 1 << 30, InMemory: 64 << 20,
	Steps: 500_000_000, Stack: 8 << 20, Strings: 192 << 20, Listed: 500, Imports: 200,
}

// File is what is looked at. Open may be called more than once.
type File struct {
	Path string
	Size int64
	Open func(ctx context.Context) (io.ReadCloser, error)
}

// Files looks at all files of a model. Errors are those of reading; what is in a file is
// no error.
func Files(ctx context.Context, files []File, l Limits) (Report, error) {
	r := Report{Scanner: Rules, Level: Data, Contents: []Content{}}
	for _, f := range files {
		s := &scanner{limits: l, report: &r, size: f.Size}
		if err := s.file(ctx, f); err != nil {
			return r, fmt.Errorf("scanning %s: %w", f.Path, err)
		}
		r.Files++
	}
	return r, nil
}

// scanner looks at one file and what is in it.
type scanner struct {
	limits   Limits
	report   *Report
	size     int64 // of the file
	members  int
	expanded int64
	steps    int64
}

// found adds a content, unless it is plain data.
func (s *scanner) found(c Content) {
	if c.Level == Data {
		return
	}
	if c.Level.Over(s.report.Level) {
		s.report.Level = c.Level
	}
	switch {
	case len(s.report.Contents) < s.limits.Listed:
		s.report.Contents = append(s.report.Contents, c)
		return
	case c.Level == Danger: // takes the place of a lesser one
		for i, o := range s.report.Contents {
			if o.Level != Danger {
				s.report.Contents[i] = c
				break
			}
		}
	}
	s.report.More++
}

// danger is a content that nothing good has.
func (s *scanner) danger(path, format, reason string, args ...any) {
	s.found(Content{Path: path, Format: format, Level: Danger, Reasons: []string{fmt.Sprintf(reason, args...)}})
}
