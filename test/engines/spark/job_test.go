package spark

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

const forJobs = `
{api_version: falaj/v1, kind: Dataset, name: delays, project: nyc, spec: {residency: [home]}}
---
{api_version: falaj/v1, kind: Dataset, name: worst, project: nyc, spec: {protection: open}}
---
{api_version: falaj/v1, kind: Dataset, name: secret, project: nyc}
---
{api_version: falaj/v1, kind: Environment, name: iceberg, project: nyc, spec: {requirements: ["pyiceberg[pyarrow]==0.12.0"]}}
`

// withPyiceberg writes a table with the token of its attempt, twice, and tries
// what it may not.
const withPyiceberg = `
import glob, os
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
catalog = load_catalog("falaj", type="rest", uri=os.environ["FALAJ_URL"] + "/iceberg", token=os.environ["FALAJ_TOKEN"])
rows = pq.read_table(glob.glob(os.environ["FALAJ_DATA_DELAYS"] + "/*.parquet")[0])
rows = rows.slice(1, 1)
table = catalog.create_table("nyc.made", schema=rows.schema)
for _ in range(2):
    table.append(rows)
assert table.scan().to_arrow().num_rows == 2
ours = [p for p in glob.glob(table.location()[len("file://"):] + "/*/dsv_*/*.parquet")]
assert ours
for act in (lambda: open(ours[0], "r+b"), lambda: os.remove(ours[0]), lambda: catalog.load_table("nyc.worst"), lambda: catalog.create_table("nyc.other", schema=rows.schema)):
    try:
        act()
    except Exception as e:
        print("refused:", type(e).__name__)
    else:
        raise SystemExit("a job did what it may not")
`

// A job writes the tables that it names, with the token of its attempt, and
// nothing else; what it wrote comes from what it could read.
func TestJobWritesATable(t *testing.T) {
	s := live.New(t, "")
	s.Up(t)
	p := s.Project(t, "nyc")
	p.Apply(forJobs)
	p.Import("delays", "origin,delay\nEWR,5\nJFK,50\n")
	if _, err := p.Try(p.C, `{api_version: falaj/v1, kind: Job, name: sealed, project: nyc, spec: {command: [/bin/true], tables: [secret]}}`); err == nil || !strings.Contains(err.Error(), "is sealed") {
		t.Fatalf("a sealed table: %v", err)
	}
	job := submit(p, map[string]any{
		"name": "write", "spec": map[string]any{"environment": "iceberg", "script": withPyiceberg, "data": map[string]string{"delays": "delays"}, "tables": []string{"made"}, "max_attempts": 1},
	})
	ends(p, job, 8*time.Minute)
	var v client.Object
	p.Must(p.C.Do(t.Context(), http.MethodGet, p.Path("datasets/made?view=full"), nil, &v))
	if v.Text("newest.version") != "2" || v.Text("newest.state") != "accepted" || v.Text("newest.rows") != "2" || !strings.Contains(v.Text("newest.created_by"), "att_") {
		t.Errorf("the newest version: %v", v["newest"])
	}
	if said := p.Run(0, "dataset", "lineage", "made@1"); !strings.Contains(said, "delays@1") {
		t.Errorf("the lineage:\n%s", said)
	}
}

const withSpark = `
import os
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.jars", os.path.abspath("iceberg.jar"))
    .config("spark.ui.enabled", "false").config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.catalog.falaj", "org.apache.iceberg.spark.SparkCatalog").config("spark.sql.catalog.falaj.type", "rest")
    .config("spark.sql.catalog.falaj.uri", os.environ["FALAJ_URL"] + "/iceberg").config("spark.sql.catalog.falaj.token", os.environ["FALAJ_TOKEN"])
    .getOrCreate())
rows = spark.read.parquet("file://" + os.environ["FALAJ_DATA_DELAYS"])
rows.where("delay > 10").writeTo("falaj.nyc.late").create()
rows.where("delay <= 10").writeTo("falaj.nyc.late").append()
assert spark.table("falaj.nyc.late").count() == 2
`

// A Spark job, run by the local engine, writes an open dataset.
func TestSparkJobWritesATable(t *testing.T) {
	s := live.New(t, "")
	python, where := installed(t, s, "tables/bin/python"), installed(t, s, "spark/iceberg.jar")
	jar, err := os.ReadFile(where)
	if err != nil {
		t.Fatal(err)
	}
	s.Up(t)
	p := s.Project(t, "nyc")
	p.Apply(`{api_version: falaj/v1, kind: Dataset, name: delays, project: nyc}
---
{api_version: falaj/v1, kind: Environment, name: spark, project: nyc, spec: {requirements: ["pyspark==4.0.5", setuptools], allow_source: true}}`)
	p.Import("delays", "origin,delay\nEWR,5\nJFK,50\n")
	job := submit(p, map[string]any{
		"name": "spark", "spec": map[string]any{
			"environment": "spark", "script": withSpark, "source": p.Source("iceberg.jar", jar), "data": map[string]string{"delays": "delays"}, "tables": []string{"late"},
			"resources": map[string]any{"cpu": "1", "memory": "3GiB"}, "max_attempts": 1,
			"env": map[string]string{"SPARK_LOCAL_IP": "127.0.0.1", "HADOOP_USER_NAME": "job", "JAVA_TOOL_OPTIONS": "-Xmx1g"},
		},
	})
	ended := ends(p, job, 14*time.Minute)
	var v client.Object
	p.Must(p.C.Do(t.Context(), http.MethodGet, p.Path("datasets/late?view=full"), nil, &v))
	if v.Text("newest.version") != "2" || v.Text("newest.state") != "accepted" || !strings.HasPrefix(v.Text("newest.created_by"), "att_") || !strings.Contains(ended.Text("tries"), v.Text("newest.created_by")) {
		t.Errorf("the newest version is not of the attempt %v: %v", ended["tries"], v["newest"])
	}
	if said := p.Run(0, "dataset", "lineage", "late@2"); !strings.Contains(said, "delays@1") || !strings.Contains(said, "late@1") {
		t.Errorf("the lineage:\n%s", said)
	}
	const want = "EWR 5, JFK 50"
	if said := p.Run(0, "dataset", "query", "SELECT string_agg(origin || ' ' || delay, ', ' ORDER BY delay) AS r FROM late"); !strings.Contains(said, want) {
		t.Errorf("Falaj reads %s, not %s", said, want)
	}
	var token client.Object
	p.Must(p.C.Do(t.Context(), http.MethodPost, "/api/v1/tokens", map[string]any{"project": "nyc", "name": "reader", "role": "viewer"}, &token))
	cmd := exec.CommandContext(t.Context(), python, "-c", readBack)
	cmd.Env = append(os.Environ(), "HOME="+s.Home, "FALAJ_URL="+s.URL, "FALAJ_TOKEN="+token.Text("secret"))
	if said, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(said)) != want {
		t.Errorf("pyiceberg reads %s, not %s: %v", said, want, err)
	}
}

const readBack = `
import os
from pyiceberg.catalog import load_catalog
catalog = load_catalog("falaj", type="rest", uri=os.environ["FALAJ_URL"] + "/iceberg", token=os.environ["FALAJ_TOKEN"])
rows = catalog.load_table("nyc.late").scan().to_arrow().sort_by("delay").to_pylist()
print(", ".join(f"{r['origin']} {r['delay']}" for r in rows))
`

// installed is a file that scripts/engines.sh installs.
func installed(t *testing.T, s *live.Server, name string) string {
	t.Helper()
	path := filepath.Join(s.Bin.Root, ".tmp/venv", name)
	if _, err := os.Stat(path); err != nil {
		const how = "Spark or pyiceberg is not installed: make engines-all"
		if os.Getenv("CI") == "true" {
			t.Fatal(how)
		}
		t.Skip(how)
	}
	return path
}

func submit(p *live.Project, body map[string]any) string {
	p.T.Helper()
	var job client.Object
	p.Must(p.C.Do(p.T.Context(), http.MethodPost, p.Path("jobs"), body, &job))
	return job.Text("id")
}

// ends waits for the success of a job whose environment is built first.
func ends(p *live.Project, job string, most time.Duration) (o client.Object) {
	p.T.Helper()
	state := ""
	p.Within(most, "job "+job+" does not end", func() (bool, error) {
		o = nil // else what is gone would stay
		err := p.C.Do(p.T.Context(), http.MethodGet, p.Path("jobs/"+job+"?view=full&wait=20s"), nil, &o)
		state = o.Text("state")
		return err == nil && state != "queued" && state != "running", err
	})
	if state != "succeeded" {
		p.T.Fatalf("job %s is %s:\n%s", job, state, p.Story(job))
	}
	return o
}
