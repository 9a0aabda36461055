package doctor

import (
	"errors"
	"testing"
)

// TestLocaleFinding: a machine without the locale of text models is told what to do.
func TestLocaleFinding(t *testing.T) {
	for locales, mark := range map[string]string{"C\nC.utf8\nPOSIX\nen_US.utf8\n": "✓", "en_US.UTF-8": "✓", "C\nC.utf8\nde_DE.utf8\nen_US\n": "!", "": "!"} {
		got := localeFinding(locales, nil)
		if len(got) != 1 || got[0].mark != mark || (got[0].todo == "") != (mark == "✓") {
			t.Errorf("%q: %+v", locales, got)
		}
	}
	if got := localeFinding("", errors.New("no such program")); len(got) != 0 {
		t.Errorf("without the program: %+v", got)
	}
}
