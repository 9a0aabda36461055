package cli

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

// labelBatch is how many labels go in one request.
const labelBatch = 5000

func (a *app) deployLabel() *cobra.Command {
	return &cobra.Command{
		Use:   "label NAME FILE",
		Short: "Send labels (ground truth) for predictions",
		Long: "FILE is CSV (.csv) with a header and the columns id, value and optionally at, or JSON lines (.jsonl) with\n" +
			"lines {\"id\": …, \"value\": …, \"at\": …}; for a request with several rows, \"values\" is a list. id is the ID of the\n" +
			"prediction, value a number, true or false, and at the time the label became known (RFC 3339). For class labels,\n" +
			"use a column class instead of value, or \"class\" and \"classes\". - reads JSON lines from standard input. Sending a\n" +
			"file again changes nothing.",
		Example: "  falaj deploy label delay outcomes.csv -p nyc", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, project, err := a.in()
			if err != nil {
				return err
			}
			r, done, err := a.labelFile(args[1])
			if err != nil {
				return err
			}
			defer done()
			next := readJSONLabels(r)
			if strings.HasSuffix(strings.ToLower(args[1]), ".csv") {
				if next, err = readCSVLabels(r); err != nil {
					return err
				}
			}
			total, err := sendLabels(cmd.Context(), next, func(ctx context.Context, labels []client.Label) (client.Labelled, error) {
				return c.Label(ctx, project, args[0], labels)
			})
			if err != nil {
				return fault.Wrap(err, "after %d labels", total.Accepted+total.Duplicates+total.Contradicts+total.Unknown+total.TooLate+total.WrongRows)
			}
			if a.output != "table" {
				total.Results = nil
				return a.printOne(total)
			}
			a.say("%d labels accepted", total.Accepted)
			for _, line := range []struct {
				n    int
				text string
			}{
				{total.Duplicates, "%d already existed"},
				{total.Contradicts, "%d contradict a label that came first, which stays"},
				{total.Unknown, "%d are of predictions that are not known yet: they wait"},
				{total.TooLate, "%d are of predictions that are too old"},
				{total.WrongRows, "%d have another number of values than the prediction has rows"},
			} {
				if line.n > 0 {
					a.say(line.text, line.n)
				}
			}
			return nil
		},
	}
}

// labelFile opens a file of labels, with a progress bar on terminals.
func (a *app) labelFile(name string) (io.Reader, func(), error) {
	if name == "-" {
		return a.Stdin, func() {}, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, fault.New(fault.Invalid, "%w", err)
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	r, done := a.progress(name, info.Size(), f)
	return r, func() {
		done()
		_ = f.Close()
	}, nil
}

// sendLabels sends labels in batches until next ends with io.EOF.
func sendLabels(ctx context.Context, next func() (client.Label, error), send func(context.Context, []client.Label) (client.Labelled, error)) (total client.Labelled, err error) {
	var batch []client.Label
	for {
		l, err := next()
		if err == nil {
			batch = append(batch, l)
		}
		if len(batch) == labelBatch || (errors.Is(err, io.EOF) && len(batch) > 0) {
			got, err := send(ctx, batch)
			if err != nil {
				return total, err
			}
			batch = batch[:0]
			total.Accepted += got.Accepted
			total.Duplicates += got.Duplicates
			total.Contradicts += got.Contradicts
			total.Unknown += got.Unknown
			total.TooLate += got.TooLate
			total.WrongRows += got.WrongRows
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// labelLine is a label as a line of JSON.
type labelLine struct {
	ID    string `json:"id"`
	Value any    `json:"value"`
	// Class and Classes are texts, in place of numbers.
	Class   string     `json:"class"`
	Classes []string   `json:"classes"`
	Values  []any      `json:"values"`
	At      *time.Time `json:"at"`
}

func readJSONLabels(r io.Reader) func() (client.Label, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 4<<20)
	number := 0
	return func() (client.Label, error) {
		for lines.Scan() {
			number++
			text := strings.TrimSpace(lines.Text())
			if text == "" {
				continue
			}
			var line labelLine
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				return client.Label{}, fault.New(fault.Invalid, "line %d: %w", number, err)
			}
			l := client.Label{ID: line.ID, At: line.At, Class: line.Class, Classes: line.Classes}
			if (l.Class != "" || l.Classes != nil) && (line.Value != nil || line.Values != nil) {
				return l, fault.New(fault.Invalid, "line %d has a value and a class", number)
			}
			if line.Value != nil {
				v, err := labelValue(line.Value)
				if err != nil {
					return l, fault.Wrap(err, "line %d", number)
				}
				l.Value = &v
			}
			for _, x := range line.Values {
				if x == nil {
					l.Values = append(l.Values, math.NaN())
					continue
				}
				v, err := labelValue(x)
				if err != nil {
					return l, fault.Wrap(err, "line %d", number)
				}
				l.Values = append(l.Values, v)
			}
			return l, nil
		}
		if err := lines.Err(); err != nil {
			return client.Label{}, fault.New(fault.Invalid, "after line %d: %w", number, err)
		}
		return client.Label{}, io.EOF
	}
}

func readCSVLabels(r io.Reader) (func() (client.Label, error), error) {
	rows := csv.NewReader(r)
	rows.ReuseRecord = true
	header, err := rows.Read()
	if err != nil {
		return nil, fault.New(fault.Invalid, "the file has no header: %w", err)
	}
	header[0] = strings.TrimPrefix(header[0], "\ufeff")
	id, value, at := slices.Index(header, "id"), slices.Index(header, "value"), slices.Index(header, "at")
	class := slices.Index(header, "class")
	if id < 0 || (value < 0) == (class < 0) {
		return nil, fault.New(fault.Invalid, "the header has no columns id and value, nor id and class, but %s", strings.Join(header, ", "))
	}
	return func() (client.Label, error) {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return client.Label{}, io.EOF
		}
		if err != nil {
			return client.Label{}, fault.New(fault.Invalid, "%w", err)
		}
		line, _ := rows.FieldPos(0)
		l := client.Label{ID: strings.Clone(row[id])}
		if class >= 0 {
			if l.Class = strings.Clone(row[class]); l.Class == "" {
				return l, fault.New(fault.Invalid, "line %d: the class is empty", line).WithHint("Omit unknown labels.")
			}
		} else {
			v, err := labelValue(row[value])
			if err != nil {
				return l, fault.Wrap(err, "line %d", line)
			}
			l.Value = &v
		}
		if at >= 0 && row[at] != "" {
			t, err := time.Parse(time.RFC3339Nano, row[at])
			if err != nil {
				return l, fault.New(fault.Invalid, "line %d: %q is not a timestamp such as 2013-05-01T12:00:00Z", line, row[at])
			}
			l.At = &t
		}
		return l, nil
	}, nil
}

// labelValue reads a number, or true or false.
func labelValue(x any) (float64, error) {
	v := math.NaN()
	switch x := x.(type) {
	case float64:
		v = x
	case bool:
		if v = 0; x {
			v = 1
		}
	case string:
		switch strings.ToLower(x) {
		case "true":
			v = 1
		case "false":
			v = 0
		default:
			if f, err := strconv.ParseFloat(x, 64); err == nil {
				v = f
			}
		}
	}
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, fault.New(fault.Invalid, "%v is neither a number nor true or false", x).WithHint("Omit unknown labels.")
	}
	return v, nil
}

// verifyAnswers compares what a deployment's models saw with what training would
// see.
func (a *app) verifyAnswers(cmd *cobra.Command, deployment string, sample int, seed uint64) error {
	c, project, err := a.in()
	if err != nil {
		return err
	}
	o, err := c.VerifyAnswers(cmd.Context(), project, deployment, sample, seed)
	if err != nil {
		return err
	}
	if a.output != "table" {
		if err := a.printOne(o); err != nil {
			return err
		}
	} else {
		a.say("%s values of %s answers compared, %s of them present: %s differ", o.Text("values"), o.Text("answers"), o.Text("present"), o.Text("mismatches"))
		for _, line := range []struct{ path, text string }{
			{"rounded", "%s differ in the last digits of a float32"}, {"defaulted", "%s use a default where training has no value either"},
		} {
			if n := o.Text(line.path); n != "" && n != "0" {
				a.say(line.text, n)
			}
		}
		if causes, ok := o["causes"].(map[string]any); ok {
			for _, cause := range keys(causes) {
				a.say("%v because of %s", causes[cause], cause)
			}
		}
		if examples := objectsAt(o, "examples"); len(examples) > 0 {
			if err := a.print(examples, []column{
				{"ANSWER", "id"}, {"ROW", "row"}, {"AT", "at"}, {"FEATURE", "feature"}, {"SAW", "logged"}, {"TRAINING", "offline"}, {"CAUSE", "cause"}, {"WHY", "detail"},
			}); err != nil {
				return err
			}
		}
	}
	if m := o.Text("mismatches"); m != "" && m != "0" {
		return fault.New(fault.Internal, "%s values differ between training and serving", m)
	}
	return nil
}

// judged writes how the newest rollout goes and how many labels there are; nothing
// where there is neither.
func (a *app) judged(cmd *cobra.Command, c *client.Client, project, name, running string) error {
	p, err := c.Rollout(cmd.Context(), project, name)
	if refused, ok := errors.AsType[*client.Error](err); ok && refused.Kind == fault.NotFound.String() {
		p, err = nil, nil
	}
	if err != nil {
		return err
	}
	if running != "" && p.Text("rollout") != running {
		a.say("")
		a.say("rollout %s: not judged yet; the judge reads the log every two seconds", running)
		return nil
	}
	if p == nil {
		return nil
	}
	a.say("")
	a.say("rollout %s: %s", p.Text("rollout"), p.Text("decision.outcome"))
	a.say("  %s", p.Text("decision.reason"))
	switch outcome := p.Text("decision.outcome"); {
	case running == "" || p.Text("concluded") != "true":
	case outcome == "hold":
		a.say("  it waits for a person: falaj deploy promote %s, or falaj deploy rollback %s", name, name)
	default:
		a.say("  decided but not completed: see the acts for the reason")
	}
	if problem := p.Text("problem"); problem != "" {
		a.say("  evaluation failed and is retried: %s", problem)
	}
	row := func(which string) client.Object {
		return client.Object{
			"version": p.Text(which + ".version"), "requests": p.Text(which + ".requests"), "errors": p.Text(which + ".errors"),
			"labels": p.Text(which + ".loss.n"), "loss": p.Text(which + ".loss.mean"),
		}
	}
	return a.print([]client.Object{row("stable"), row("candidate")}, []column{
		{"VERSION", "version"}, {"REQUESTS", "requests"}, {"ERRORS", "errors"}, {"LABELS", "labels"}, {"MEAN LOSS", "loss"},
	})
}
