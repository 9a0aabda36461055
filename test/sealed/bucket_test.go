package sealed

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/dataset/source/sourcetest"
	"github.com/falaj-ml/falaj/test/live"
)

// A server whose objects are in a bucket: what it keeps there comes back after
// kill -9, has no value of sealed data, and is found in no other place.
func TestPlantedValuesAreInNoFileOfTheBucket(t *testing.T) {
	dir := t.TempDir()
	at, ca := sourcetest.S3In(t, dir)
	if err := sourcetest.S3Client(t, at, ca).MakeBucket(t.Context(), "falaj", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	bucket := filepath.Join(dir, "data", "falaj")
	file := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	s := live.New(t, "")
	s.Env = []string{
		"FALAJ_BLOB_S3_ENDPOINT=https://" + at, "FALAJ_BLOB_S3_BUCKET=falaj", "FALAJ_BLOB_S3_PREFIX=prod/1", "FALAJ_BLOB_S3_ZONE=home",
		"FALAJ_BLOB_S3_CREDENTIALS=" + file("keys", "access_key = "+sourcetest.S3User+"\nsecret_key = "+sourcetest.S3Password+"\n"),
		"FALAJ_BLOB_S3_CA=" + file("ca.pem", string(ca)),
	}
	if said, _ := s.Command(t.Context(), "doctor", "--data", s.Data); !strings.Contains(said, "✓ objects in the bucket falaj") {
		t.Errorf("the doctor says:\n%s", said)
	}
	s.Up(t)
	p := s.Project(t, "vault")
	p.Apply(datasets)
	secret, shown := plant(11, 40), plant(13, 40)
	p.Import("secret", secret.csv(false))
	p.Import("shown", shown.csv(false))
	read := func(when string) {
		t.Helper()
		for name, values := range map[string]planted{"secret": secret, "shown": shown} {
			var got client.Object
			p.Must(p.C.Do(t.Context(), http.MethodPost, p.Path("query"), map[string]any{"sql": "SELECT * FROM " + name}, &got))
			for i, text := range values.text {
				if !strings.Contains(got.Text("rows"), text) {
					t.Fatalf("%s: row %d of %s is not in the answer", when, i, name)
				}
			}
		}
	}
	read("at first")
	const script = `cat $FALAJ_DATA_TRAIN/*.parquet | wc -c && echo trained > $FALAJ_OUTPUT_DIR/model.txt`
	job := p.Apply(`{api_version: falaj/v1, kind: Job, name: reads, project: PROJECT, spec: {data: {train: secret}, timeout: 2m, command: [/bin/sh, -c, '` + script + `']}}`)
	p.Ends(job[0].ID, "succeeded")

	look := func(when string) {
		t.Helper()
		for _, at := range []string{s.Data, bucket} {
			found, files := live.Search(t, at, secret.needles())
			if files < 4 {
				t.Fatalf("%s: only %d files were looked through", when, files)
			}
			for name, in := range found {
				t.Errorf("%s: %s is in %v", when, name, in)
			}
		}
		if control, _ := live.Search(t, s.Data, shown.needles()); len(control) == 0 {
			t.Errorf("%s: the search does not find values of an open dataset: it would find nothing", when)
		}
		if found, _ := live.Search(t, s.Data, map[string][]byte{"the bucket's key": []byte(sourcetest.S3Password)}); len(found) > 0 {
			t.Errorf("%s: %v", when, found)
		}
		if _, err := os.Stat(filepath.Join(s.Data, "objects")); err == nil {
			t.Errorf("%s: there are objects in the data directory", when)
		}
	}
	look("while it runs")
	p.Must(s.Kill())
	look("after kill -9")
	p.Again()
	read("after kill -9")
	p.Must(s.Stop())

	// Nor is it started on another place, where nothing would be found.
	was := s.Env
	s.Env = nil
	if err := s.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "are in a bucket, but blob.s3 is not set") {
		t.Errorf("without the bucket: %v", err)
	}
	s.Env = slices.Concat(was, []string{"FALAJ_BLOB_S3_PREFIX=prod/2"})
	if err := s.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "is not the one that has the objects") {
		t.Errorf("with another prefix: %v", err)
	}
	other := live.New(t, "")
	other.Env = was
	if err := other.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "belongs to another installation") {
		t.Errorf("another installation with the same prefix: %v", err)
	}
}
