package diagnosis

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/internal/compute/engine"
)

// ended is the input that a cause and a word make.
func ended(c Cause, w Word) Input {
	st := engine.Status{State: engine.Ended, Started: time.Unix(1, 0), ExitCode: map[Word]int{Zero: 0, Again: TempFail, Empty: TempFail, Other: 1}[w]}
	in := Input{Saved: w == Again, Outcome: "the end"}
	switch c {
	case Nothing:
		st.Reason = engine.Exited
	case Preemption:
		st.Reason = engine.Preempted
	case Reclaim:
		st.Reason = engine.Reclaimed
	case Timeout:
		st.Reason = engine.TimedOut
	case Outside:
		st.Reason = engine.Stopped
	case Eviction:
		st.Reason, st.Message = engine.Preempted, ownDisk[0]
	case Memory:
		st.Reason = engine.OutOfMemory
	case Disk:
		st.Reason = engine.OutOfDisk
	case Tasks:
		st.Reason = engine.OutOfTasks
	case Unstarted:
		st.Reason = engine.NotStarted
	case Vanished:
		st.State = engine.Lost
	case Resize, Move, Silence, Slowness, Cancelling:
		st.Reason = engine.Stopped
		for class, cause := range asked {
			if cause == c {
				in.Asked = class
			}
		}
	}
	in.Status = st
	return in
}

// TestEnds walks over the whole table: every cause, every word, and what follows.
func TestEnds(t *testing.T) {
	for _, row := range Ends {
		for i, word := range Words {
			in := ended(row.Cause, word)
			got := Find(in)
			want := row.Classes[i]
			if want == "" {
				want = map[Cause]Class{Nothing: UserError, Unstarted: Environment}[row.Cause]
			}
			if got.Class != want {
				t.Errorf("%s and %s: %s, want %s", row.Cause, word, got.Class, want)
			}
			rule, known := After[got.Class]
			switch failed := got.Class != Done && got.Class != Unwanted; {
			case !known:
				t.Errorf("%s and %s: class %s has no rule", row.Cause, word, got.Class)
			case got.Class == Done && (got.Hint != "" || got.Words != ""):
				t.Errorf("%s and %s: a success has words %q and hint %q", row.Cause, word, got.Words, got.Hint)
			case failed && got.Words == "":
				t.Errorf("%s and %s: no words", row.Cause, word)
			case failed && !rule.Again && got.Hint == "" && row.Cause != Unstarted:
				t.Errorf("%s and %s: it does not run again, and no hint says what to do", row.Cause, word)
			}
		}
	}
}

// TestSuccessIsWhatTheProgramSays: whatever asks a program to stop, but a cancellation and
// limits that kill, an end with 0 is a success, and nobody who saved is thrown away.
func TestSuccessIsWhatTheProgramSays(t *testing.T) {
	kills := []Cause{Cancelling, Memory, Disk, Tasks, Unstarted, Vanished}
	for _, row := range Ends {
		if slices.Contains(kills, row.Cause) {
			continue
		}
		if row.Classes[0] != Done {
			t.Errorf("%s: an end with 0 is %s", row.Cause, row.Classes[0])
		}
		if saved := row.Classes[1]; !After[saved].Again {
			t.Errorf("%s: a job that saved and asked to run again does not (%s)", row.Cause, saved)
		}
	}
}

// TestHintOfATimeout does not tell a program to do what it did.
func TestHintOfATimeout(t *testing.T) {
	if f := Find(ended(Timeout, Empty)); strings.Contains(f.Hint, "exit with code 75") {
		t.Errorf("it left with 75: %s", f.Hint)
	}
	if f := Find(ended(Timeout, Other)); !strings.Contains(f.Hint, "75") {
		t.Errorf("no word of 75: %s", f.Hint)
	}
}

// TestTheGuideHasTheTable: docs/design/compute.md has the same table.
func TestTheGuideHasTheTable(t *testing.T) {
	b, err := os.ReadFile("../../../docs/design/compute.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.Trim(strings.TrimSpace(cells[i]), "`")
		}
		rows[cells[0]] = cells[1:]
	}
	for _, row := range Ends {
		cells := rows[string(row.Cause)]
		for i, class := range row.Classes {
			if class == "" {
				class = "by its error"
			}
			if len(cells) != len(row.Classes) || cells[i] != string(class) {
				t.Errorf("the row %q is %q, want %q for %s", row.Cause, cells, class, Words[i])
				break
			}
		}
	}
	for class, rule := range After {
		again := ""
		for name, cells := range rows {
			if slices.Contains(strings.Split(name, "`, `"), string(class)) && len(cells) == 2 {
				again = cells[1]
			}
		}
		if rule.Again != strings.HasPrefix(again, "at once") && rule.Again != strings.HasPrefix(again, "after a pause") || again == "" {
			t.Errorf("class %s: the table says %q, the rule %+v", class, again, rule)
		}
	}
}
