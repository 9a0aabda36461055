package environment

import (
	"strings"
	"testing"
)

const emptySum = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU" // of no bytes

func TestParseRecord(t *testing.T) {
	t.Parallel()
	rows, err := parseRecord([]byte("a/__init__.py,sha256=" + emptySum + ",0\r\n\"b, c.py\",sha256=" + emptySum + "=,0\n../../../bin/a,,\na-1.dist-info/RECORD\n"))
	if err != nil || len(rows) != 4 || rows[1].path != "b, c.py" || len(rows[1].sum) != 32 || rows[2].path != "../../../bin/a" || rows[2].sum != nil || rows[3].sum != nil {
		t.Fatalf("%+v, %v", rows, err)
	}
	for text, want := range map[string]string{
		"a.py,md5=abc,3":                    "no SHA-256",
		"a.py,sha256=short,3":               "no SHA-256",
		"\"a.py,sha256=,3":                  "no list of files",
		",sha256=" + emptySum:               "names no file",
		"a\x00.py,,":                        "names no file",
		strings.Repeat("a\n", maxRecords+1): "more than",
	} {
		if _, err := parseRecord([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte("a/__init__.py,sha256=" + emptySum + ",0\na-1.dist-info/RECORD,,\n"))
	f.Add([]byte("\"a\"\"b\",,\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		rows, err := parseRecord(b)
		if err != nil {
			return
		}
		for _, r := range rows {
			if r.path == "" || strings.ContainsRune(r.path, 0) || r.sum != nil && len(r.sum) != 32 {
				t.Errorf("%+v of %q", r, b)
			}
		}
	})
}
