package diagnosis_test

import (
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine"
	. "github.com/falaj-ml/falaj/internal/training/diagnosis"
)

// TestLastException: what ended a program is what its last traceback says, wherever it
// stands in a line, whatever its exception is called, and whatever the program mentioned
// and survived before.
func TestLastException(t *testing.T) {
	const frame = "  File \"train.py\", line 3, in <module>\n    main()\n"
	trace := func(exception string) string {
		return "Traceback (most recent call last):\n" + frame + exception + "\n"
	}
	bar := "\r 44%|####      | 44/100 [00:10<00:12,  4.4it/s]\r 45%|####      | 45/100 [00:10<00:12,  4.4it/s]"
	label := func(label, text string) string {
		return label + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+label) + "\n"
	}
	launcher := "E1129 10:00:00.000000 31 api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 40) of binary: /usr/bin/python3\n" +
		trace("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"+strings.Repeat("=", 60)+"\ntrain.py FAILED")
	for name, c := range map[string]struct {
		log   string
		words string
		class Class // empty is user_error
	}{
		"behind a bar":                     {bar + trace("ValueError: 3 is not 4"), "ValueError: 3 is not 4", ""},
		"a bar erased":                     {bar + "\r      \r" + trace("ValueError: 3 is not 4"), "ValueError: 3 is not 4", ""},
		"behind a bar that ends":           {bar + "\n" + trace("ValueError: 3 is not 4"), "ValueError: 3 is not 4", ""},
		"lines of Windows":                 {strings.ReplaceAll(trace("ValueError: 3 is not 4"), "\n", "\r\n"), "ValueError: 3 is not 4", ""},
		"a bar after it":                   {trace("ValueError: 3 is not 4") + bar + "\n", "ValueError: 3 is not 4", ""},
		"colours":                          {"\x1b[A\x1b[A" + trace("\x1b[1;35mValueError\x1b[0m: \x1b[35m3 is not 4\x1b[0m"), "ValueError: 3 is not 4", ""},
		"a rank's label":                   {label("[rank1]: ", trace("ValueError: 3 is not 4")), "exited with code 1: ValueError: 3 is not 4", ""},
		"a launcher's label":               {label("[default0]:", trace("ValueError: 3 is not 4")), "exited with code 1: ValueError: 3 is not 4", ""},
		"a label behind a bar":             {bar + "\r" + label("[rank1]: ", trace("ValueError: 3 is not 4")), "exited with code 1: ValueError: 3 is not 4", ""},
		"a label of mpirun":                {label("[1,0]<stderr>:", trace("ValueError: 3 is not 4")), "exited with code 1: ValueError: 3 is not 4", ""},
		"a label of srun":                  {label("3: ", trace("ValueError: 3 is not 4")), "exited with code 1: ValueError: 3 is not 4", ""},
		"a label of Ray":                   {label("\x1b[36m(train pid=7, ip=10.0.0.1)\x1b[0m ", trace("ValueError: 3 is not 4")), "exited with code 1: ValueError: 3 is not 4", ""},
		"ranks that mix":                   {"[rank0]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n[rank0]:   File \"a.py\", line 1\n[rank1]:   File \"b.py\", line 2\n[rank1]: Late: 2\n[rank0]: Early: 1\n", "exited with code 1: Late: 2", ""},
		"any name":                         {trace("Diverged: loss is 1e9 at step 40"), "exited with code 1: Diverged: loss is 1e9 at step 40", ""},
		"a name alone":                     {trace("Diverged"), "exited with code 1: Diverged", ""},
		"a name of a module":               {trace("my_models.loops.Diverged: at 40"), "exited with code 1: my_models.loops.Diverged: at 40", ""},
		"a name of a function":             {trace("main.<locals>.Diverged: at 40"), "exited with code 1: main.<locals>.Diverged: at 40", ""},
		"a name of other letters":          {trace("Überlauf: bei 40"), "exited with code 1: Überlauf: bei 40", ""},
		"without a message":                {trace("Diverged:"), "exited with code 1: Diverged:", ""},
		"others write within it":           {"Traceback (most recent call last):\n  File \"a.py\", line 1\nepoch: 3\n  File \"b.py\", line 2\nDiverged: at 40\n", "exited with code 1: Diverged: at 40", ""},
		"another writes before its name":   {"Traceback (most recent call last):\n  File \"a.py\", line 1\n3 of 4 done\nValueError: 3 is not 4\n", "exited with code 1: ValueError: 3 is not 4", ""},
		"a syntax error":                   {"  File \"train.py\", line 1\n    a b\n      ^\n" + trace("  File \"train.py\", line 1\n    a b\n      ^\nSyntaxError: invalid syntax"), "SyntaxError: invalid syntax", ""},
		"a script that is no Python":       {"  File \"train.py\", line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n", "exited with code 1: SyntaxError: invalid syntax", ""},
		"an indentation":                   {"  File \"train.py\", line 2\n    x = 1\nIndentationError: unexpected indent\n", "exited with code 1: IndentationError: unexpected indent", ""},
		"tabs and spaces":                  {"  File \"train.py\", line 3\n    x = 1\nTabError: inconsistent use of tabs and spaces in indentation\n", "exited with code 1: TabError: inconsistent use of tabs", ""},
		"of an imported file":              {"Traceback (most recent call last):\n  File \"train.py\", line 1, in <module>\n    import other\n  File \"other.py\", line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n", "exited with code 1: SyntaxError: invalid syntax", ""},
		"a syntax error of a rank":         {label("[rank1]: ", "  File \"train.py\", line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n") + launcher, "exited with code 1: SyntaxError: invalid syntax", ""},
		"a syntax error that was handled":  {"  File \"a.py\", line 1\n    x = = 1\n        ^\nSyntaxError: invalid syntax\n" + trace("KeyError: 'x'"), "exited with code 1: KeyError: 'x'", ""},
		"a group":                          {"  + Exception Group Traceback (most recent call last):\n  |   File \"a.py\", line 1, in <module>\n  | ExceptionGroup: two (2 sub-exceptions)\n  +-+---------------- 1 ----------------\n    | ValueError: 1\n    +---------------- 2 ----------------\n    | TypeError: 2\n    +------------------------------------\n", "exited with code 1: ExceptionGroup: two (2 sub-exceptions)", ""},
		"of rich":                          {"╭──── Traceback (most recent call last) ────╮\n│ /work/train.py:3 in <module>              │\n╰───────────────────────────────────────────╯\nDiverged: at 40\nValueError: 3 is not 4\n", "exited with code 1: ValueError: 3 is not 4", ""},
		"a warning that was handled":       {"CUDA out of memory. Trying a smaller batch.\n" + trace("ValueError: 3 is not 4"), "exited with code 1: ValueError: 3 is not 4", ""},
		"refused, and tried again":         {"retrying: [Errno 111] Connection refused\n" + trace("Diverged: at 40"), "exited with code 1: Diverged: at 40", ""},
		"a traceback that was handled":     {trace("ConnectionRefusedError: [Errno 111] Connection refused") + "tries again\n" + trace("KeyError: 'x'"), "exited with code 1: KeyError: 'x'", ""},
		"handled, then a lost connection":  {trace("KeyError: 'x'") + trace("ConnectionResetError: [Errno 104] Connection reset by peer"), "exited with code 1: ConnectionResetError", Infrastructure},
		"while handling":                   {trace("torch.OutOfMemoryError: CUDA out of memory.") + "\nDuring handling of the above exception, another exception occurred:\n\n" + trace("KeyError: 'x'"), "exited with code 1: KeyError: 'x'", ""},
		"raised from":                      {trace("torch.OutOfMemoryError: CUDA out of memory.") + "\nThe above exception was the direct cause of the following exception:\n\n" + trace("Failure: of the step"), "exited with code 1: Failure: of the step: out of accelerator memory", OutOfMemory},
		"what follows it":                  {trace("KeyError: 'x'") + "tries again\nterminate called after throwing an instance of 'std::bad_alloc'\n", "out of memory", OutOfMemory},
		"of the process, not the launcher": {label("[rank1]: ", trace("ValueError: 3 is not 4")) + launcher, "exited with code 1: ValueError: 3 is not 4", ""},
		"of the rank that was first": {
			label("[rank1]: ", trace("ValueError: 3 is not 4")) + label("[rank0]: ", trace("RuntimeError: [1] Connection closed by peer [10.0.0.1]:14514")) + launcher,
			"exited with code 1: ValueError: 3 is not 4", "",
		},
		"all ranks lost others": {label("[rank0]: ", trace("RuntimeError: Connection closed by peer [10.0.0.1]:14514")) + launcher, "Connection closed by peer", Infrastructure},
		"a launcher alone":      {"failed (exitcode: -9) local_rank: 0\n" + launcher, "killed by signal 9", Killed},
		"accelerate":            {trace("ValueError: 3 is not 4") + trace("subprocess.CalledProcessError: Command '['python3', 'train.py']' returned non-zero exit status 1."), "exited with code 1: ValueError: 3 is not 4", ""},
		"a command of its own":  {trace("KeyError: 'x'") + "tries again\n" + trace("subprocess.CalledProcessError: Command '['false']' returned non-zero exit status 1."), "exited with code 1: subprocess.CalledProcessError", ""},
	} {
		for _, gang := range []bool{false, true} {
			log, in := c.log, Input{Status: exited(1), Outcome: "exited with code 1"}
			words := c.words
			if gang {
				log = label("[1] ", strings.ReplaceAll(strings.ReplaceAll(c.log, "\r\n", "\n"), "\r", "\n"))
				in.Members = []engine.Member{member(0, exited(0), 2), member(1, exited(1), 1)}
				words = strings.Replace(words, "exited with code 1", "worker 1 on node n2 exited with code 1", 1)
				if strings.Contains(name, "behind a bar") || strings.Contains(name, "Windows") { // the gang's own reader ends the bar's lines
					continue
				}
			}
			var err error
			if in.Log, err = Read(strings.NewReader(log), gang); err != nil {
				t.Fatal(err)
			}
			if c.class == "" {
				c.class = UserError
			}
			f := Find(in)
			if f.Class != c.class || !strings.Contains(f.Words, words) {
				t.Errorf("%s, gang %t: %s, %q; want %s, …%q…", name, gang, f.Class, f.Words, c.class, words)
			}
			for _, l := range f.Lines {
				if strings.Contains(l.Text, "it/s]") || strings.Contains(l.Text, "\x1b") {
					t.Errorf("%s, gang %t: the line %q decides", name, gang, l.Text)
				}
			}
		}
	}
}
