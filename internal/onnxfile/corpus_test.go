package onnxfile

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestTmp(t *testing.T) {
	n, bad := 0, 0
	for _, g := range []string{"/usr/share/libonnx-testdata/data/*/*/model.onnx", "../*/*/*/testdata/*.onnx", "../../test/*/testdata/*.onnx", "/tmp/ox/sk/*.onnx", "/tmp/ox/pk/x/*/*/*.onnx", "/tmp/ox/pk/x/*/*/*/*.onnx", "/tmp/ox/pk/x/*/*/*/*/*.onnx", "/tmp/ox/v/lib/python3.11/site-packages/onnx/backend/test/data/light/*.onnx","/tmp/ox/v/lib/python3.11/site-packages/onnx/backend/test/data/*/*/*.onnx", "/tmp/ox/v/lib/python3.11/site-packages/onnxruntime/datasets/*.onnx", "/tmp/ox/nodes/*.onnx"} {
		all, _ := filepath.Glob(g)
		if len(all) == 0 { t.Log("none: ", g) }
		for _, f := range all {
			b, _ := os.ReadFile(f)
			n++
			at := time.Now()
			if err := Check(b); err != nil {
				bad++
				t.Logf("%s: %v", f, err)
			}
			if d := time.Since(at); d > 100*time.Millisecond { t.Log(f, d) }
		}
	}
	t.Log(n, bad)
}
