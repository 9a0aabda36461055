package harness

import (
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Print prints rows for a terminal.
func Print(out io.Writer, res Result) error {
	show := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return strconv.FormatFloat(*v, 'f', -1, 64)
	}
	w := tabwriter.NewWriter(out, 2, 0, 2, ' ', 0)
	fmt.Fprintln(w, "measurement\tours\ttheirs\tunit\tbetter\tratio\taim")
	for _, r := range res.Rows {
		ratio, goal := "-", "-"
		if v, ok := r.Ratio(); ok {
			ratio = fmt.Sprintf("%.2f", v)
		}
		if met, known := r.AimMet(); known {
			goal = map[bool]string{true: "met", false: "missed"}[met]
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, show(r.Ours), show(r.Theirs), r.Unit, r.Better, ratio, goal)
	}
	return w.Flush()
}

// Table is rows as the Markdown of bench/README.md, without details, a table for each
// machine.
func Table(res Result) string {
	var machines []Machine
	rows := map[int][]Row{}
	for _, r := range res.Rows {
		m := res.Machine
		for _, k := range res.Kept {
			if k.Step == r.Step && k.Machine != nil {
				m = *k.Machine
			}
		}
		i := slices.IndexFunc(machines, m.like)
		if i < 0 {
			i, machines = len(machines), append(machines, m)
		}
		rows[i] = append(rows[i], r)
	}
	var b strings.Builder
	for i, m := range machines {
		if i > 0 {
			b.WriteByte('\n')
		}
		kernel, _, _ := strings.Cut(m.Kernel, "-") // the rest names a build
		fmt.Fprintf(&b, "On %d cores (%s), %d GiB, kernel %s, %s; losses included.\n\n", m.Cores, m.CPU, m.MemoryGiB, kernel, m.Go)
		tableOf(&b, rows[i])
	}
	return b.String()
}

func tableOf(b *strings.Builder, rows []Row) {
	b.WriteString("| measurement | ours | peer | unit | aim |\n|---|---|---|---|---|\n")
	show := func(v *float64) string {
		if v == nil {
			return "-"
		}
		return strconv.FormatFloat(*v, 'g', -1, 64)
	}
	for _, r := range rows {
		if r.Detail {
			continue
		}
		peer, goal := "-", "-"
		switch {
		case r.Theirs != nil:
			peer = show(r.Theirs) + ": " + r.Peer
		case r.Peer != "":
			peer = "not measured: " + r.Peer
		}
		sign := map[string]string{Lower: "≤ ", Higher: "≥ "}[r.Better]
		switch {
		case r.Aim == nil:
		case r.Aim.Value != nil:
			goal = sign + show(r.Aim.Value)
		case r.Aim.Ratio != nil && *r.Aim.Ratio < 1: // it may be worse, by so much
			part := *r.Aim.Ratio
			if r.Better == Lower {
				part = math.Round(100/part) / 100
			}
			goal = sign + show(&part) + " × the peer's"
		case r.Aim.Ratio != nil:
			goal = show(r.Aim.Ratio) + " × better"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", r.Name, show(r.Ours), peer, r.Unit, goal)
	}
}

// putTable replaces what is between the area's marks in a file.
func putTable(path, area string, res Result) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	from, to, err := tableIn(string(text), area)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(string(text[:from])+"\n"+Table(res)+"\n"+string(text[to:])), 0o600) //nolint:gosec // G703: the README below the root that the user named
}

// tableIn is where the area's table is in a text.
func tableIn(text, area string) (from, to int, err error) {
	begin, end := "<!-- table "+area+" -->\n", "<!-- end "+area+" -->"
	from, to = strings.Index(text, begin), strings.Index(text, end)
	if from < 0 || to < from {
		return 0, 0, fmt.Errorf("the marks %q and %q are not there", strings.TrimSpace(begin), end)
	}
	return from + len(begin), to, nil
}
