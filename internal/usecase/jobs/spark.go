package jobs

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/environment"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/training"
)

// sparkScript runs the SQL of a transformation, which a line before it has.
//
//go:embed spark.py
var sparkScript string

// SparkSteps runs transformations as jobs.
type SparkSteps struct {
	Training     *training.Submission
	Environments *environment.Service
}

var _ dataset.Steps = SparkSteps{}

// sparkStep is what the script is told.
type sparkStep struct {
	SQL     string            `json:"sql"`
	Tables  map[string]string `json:"tables"` // names of the job's data by those that the SQL has
	Columns []dataset.Column  `json:"columns"`
	Memory  int64             `json:"memory"` // MiB of Java's heap
	Cores   int64             `json:"cores"`
}

// Begin implements dataset.Steps. The job has the permissions and zones of its caller and
// its inputs, and is repeated and cancelled as others are.
func (s SparkSteps) Begin(ctx context.Context, step dataset.Step) error {
	if err := s.hasSpark(ctx, step); err != nil {
		return err
	}
	amount := step.Resources
	amount.CPU, amount.Memory = cmp.Or(amount.CPU, resource.Cores(1)), cmp.Or(amount.Memory, 2*resource.GiB)
	told := sparkStep{
		SQL: step.SQL, Tables: map[string]string{}, Columns: step.Columns, Cores: max(int64(amount.CPU)/1000, 1),
		Memory: max(int64(amount.Memory/resource.MiB)*6/10, 512), // beside it are Python and what Java needs around its heap
	}
	data := map[string]string{}
	for i, table := range slices.Sorted(maps.Keys(step.Tables)) {
		name := fmt.Sprintf("t%d", i+1)
		data[name], told.Tables[table] = step.Tables[table].String(), name
	}
	script, err := told.script()
	if err != nil {
		return err
	}
	_, err = s.Training.SubmitStep(ctx, step.Project, step.Dataset, training.Spec{
		Environment: step.Environment, Script: script, Data: data, Into: step.Dataset,
		Resources: amount, Pools: step.Pools, Env: map[string]string{"HADOOP_USER_NAME": "job", "SPARK_LOCAL_IP": "127.0.0.1"},
	}, training.Step{SQL: step.SQL, Tables: told.Tables}, training.JobID(step.Job), step.Asked)
	return err
}

// script is the whole program: what it is told is in it, since the arguments of a program
// are too short for thousands of columns. A string of JSON is one of Python.
func (s sparkStep) script() (string, error) {
	told, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(string(told))
	return "STEP = " + string(text) + "\n" + sparkScript, err
}

// hasSpark refuses an environment that says itself that it has none. What is in an image,
// or comes with a site's Python, the job finds.
func (s SparkSteps) hasSpark(ctx context.Context, step dataset.Step) error {
	name, _, _ := strings.Cut(step.Environment, "@")
	e, err := s.Environments.One(ctx, step.Project, name)
	if fault.Is(err, fault.NotFound) {
		return fault.New(fault.NotFound, "environment %s not found, which dataset %s needs for Spark", name, step.Dataset).
			WithHint(`Declare it: {kind: Environment, name: %s, spec: {requirements: ["pyspark==4.0.5"]}}, or write engine: duckdb.`, name)
	}
	if err != nil || e.Spec.Kind() != environment.PythonKind || e.Spec.SitePackages {
		return err
	}
	if said := strings.Join(e.Spec.Requirements, "\n") + "\n" + e.Spec.RequirementsText + "\n" + e.Lock; !strings.Contains(strings.ToLower(said), "pyspark") {
		return fault.New(fault.Invalid, "environment %s has no PySpark", name).
			WithHint("Add pyspark==4.0.5 to its requirements, name another one in spec.transform.environment of dataset %s, or write engine: duckdb.", step.Dataset)
	}
	return nil
}
