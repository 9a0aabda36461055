package httpapi

import (
	"context"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/jsondoc"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/share"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// What `falaj import mlflow` sends. A batch is decoded once and by hand: it may hold
// 50,000 points.

func (s *Server) importRoutes(p string) {
	s.raw("POST", p+"/imports/mlflow", "run.import", "Import a batch from an MLflow server: experiments, logged models, runs with their history; idempotent",
		media{takes: "application/json", gives: "application/json"}, s.importBatch)
	route(s, "POST", p+"/imports/mlflow/seen", "run.import", "List the digests of imported runs and logged models", s.importSeen).keepsNothing()
	route(s, "GET", p+"/imports/mlflow/models", "run.import", "List imported registered models and versions, by their names on the MLflow server", s.importedModels)
	route(s, "POST", p+"/imports/mlflow/model", "run.import", "Import a registered model without its versions and aliases; idempotent", s.importModel)
	route(s, "POST", p+"/imports/mlflow/version", "run.import", "Import a model version with its number, times, tags and stage; its files must be imported first; idempotent", s.importModelVersion)
	route(s, "POST", p+"/imports/mlflow/aliases", "run.import", "Import the aliases of a registered model; its versions must be imported first; idempotent", s.importAliases)
	route(s, "GET", p+"/imports/mlflow/files", "run.import", "List the files of an imported run or logged model", s.importedFiles)
	s.raw("PUT", p+"/imports/mlflow/file", "run.import", "Upload a file of an imported run or logged model, including deleted ones",
		media{takes: "application/octet-stream", gives: "application/json"}, s.importFile,
		query("run_id", "Run; set either run_id or model_id"), query("model_id", "Logged model"), query("path", "Path of the file")).takes(fileBody)
}

// keyValues are keys and values: [["lr","0.1"]].
type keyValues [][2]string

func (p keyValues) pairs() []tracking.Pair {
	out := make([]tracking.Pair, len(p))
	for i, kv := range p {
		out[i] = tracking.Pair{Key: kv[0], Value: kv[1]}
	}
	return out
}

type importBatch struct {
	From        string             `json:"from"`
	DryRun      bool               `json:"dry_run"`
	Experiments []importExperiment `json:"experiments"`
	Models      []importModel      `json:"logged_models"`
	Runs        []importRun        `json:"runs"`
}

type importExperiment struct {
	ID      int64     `json:"experiment_id"`
	Name    string    `json:"name"`
	Stage   string    `json:"lifecycle_stage"`
	Created int64     `json:"creation_time"`
	Updated int64     `json:"last_update_time"`
	Tags    keyValues `json:"tags"`
	Digest  string    `json:"digest"`
}

type importModel struct {
	ID         string         `json:"model_id"`
	Experiment int64          `json:"experiment_id"`
	Name       string         `json:"name"`
	Type       string         `json:"model_type"`
	Run        string         `json:"source_run_id"`
	Status     string         `json:"status"`
	Stage      string         `json:"lifecycle_stage"`
	Created    int64          `json:"creation_timestamp_ms"`
	Updated    int64          `json:"last_updated_timestamp_ms"`
	Params     keyValues      `json:"params"`
	Tags       keyValues      `json:"tags"`
	Metrics    []importMetric `json:"metrics"`
	Digest     string         `json:"digest"`
}

type importMetric struct {
	Key           string  `json:"key"`
	Value         numbers `json:"value"` // one
	Timestamp     int64   `json:"timestamp"`
	Step          int64   `json:"step"`
	Run           string  `json:"run_id"`
	DatasetName   string  `json:"dataset_name"`
	DatasetDigest string  `json:"dataset_digest"`
}

type importRun struct {
	ID         string         `json:"run_id"`
	Experiment int64          `json:"experiment_id"`
	Name       string         `json:"run_name"`
	User       string         `json:"user_id"`
	Status     string         `json:"status"`
	Stage      string         `json:"lifecycle_stage"`
	Start      int64          `json:"start_time"`
	End        int64          `json:"end_time"`
	Params     keyValues      `json:"params"`
	Tags       keyValues      `json:"tags"`
	Inputs     []importInput  `json:"dataset_inputs"`
	Models     []importLink   `json:"models"`
	History    []importSeries `json:"history"`
	Part       bool           `json:"part"`
	More       bool           `json:"more"`
	Digest     string         `json:"digest"`
}

type importInput struct {
	Name       string    `json:"name"`
	Digest     string    `json:"digest"`
	SourceType string    `json:"source_type"`
	Source     string    `json:"source"`
	Schema     string    `json:"schema"`
	Profile    string    `json:"profile"`
	Tags       keyValues `json:"tags"`
}

type importLink struct {
	Model  string `json:"model_id"`
	Output bool   `json:"output"`
	Step   int64  `json:"step"`
}

// importSeries are the points of a metric, column by column.
type importSeries struct {
	Key    string  `json:"key"`
	Times  []int64 `json:"timestamps"`
	Steps  []int64 `json:"steps"`
	Values numbers `json:"values"`
}

// numbers is a list of numbers, or one, with "NaN", "Infinity" and "-Infinity".
type numbers []float64

// UnmarshalJSON implements json.Unmarshaler.
func (n *numbers) UnmarshalJSON(b []byte) error {
	text := strings.Trim(string(b), "[] \t\r\n")
	*n = (*n)[:0]
	if text == "" || text == "null" {
		return nil
	}
	for word := range strings.SplitSeq(text, ",") {
		x, err := strconv.ParseFloat(strings.Trim(word, "\" \t\r\n"), 64)
		if err != nil && !math.IsInf(x, 0) {
			return fault.New(fault.Invalid, "%.40q is not a number", word)
		}
		*n = append(*n, x)
	}
	return nil
}

type importAnswer struct {
	Items []importOutcome `json:"items"`
}

type importOutcome struct {
	Kind       string   `json:"kind"`
	ID         string   `json:"id"`
	Result     string   `json:"result" enum:"created,updated,unchanged,refused"`
	Reason     string   `json:"reason,omitempty"`
	Experiment int64    `json:"experiment_id" doc:"Number of the experiment in Falaj"`
	Lost       []string `json:"lost,omitempty" doc:"The first losses, with reasons"`
	LostCount  int      `json:"lost_count,omitempty"`
	Points     int      `json:"points,omitempty" doc:"Number of stored metric points"`
}

func (s *Server) importBatch(w http.ResponseWriter, r *http.Request) {
	var in importBatch
	err := jsondoc.DecodeFrom(r.Body, &in, jsondoc.Known)
	share.TurnOf(r.Context()).End()
	if err != nil {
		if fault.KindOf(err) == fault.Internal {
			err = fault.New(fault.Invalid, "the batch is not valid JSON of the expected schema: %w", err)
		}
		s.fail(w, r, err)
		return
	}
	batch, err := in.batch()
	if err != nil {
		s.fail(w, r, err)
		return
	}
	outcomes, err := s.Tracking.Imports.Import(r.Context(), project.Name(r.PathValue("project")), batch)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	out := importAnswer{Items: make([]importOutcome, len(outcomes))}
	for i, o := range outcomes {
		out.Items[i] = importOutcome{
			Kind: string(o.Kind), ID: o.ID, Result: string(o.Result), Reason: o.Reason, Experiment: int64(o.Experiment),
			Lost: o.Lost, LostCount: o.LostCount, Points: o.Points,
		}
	}
	answer(w, http.StatusOK, out)
}

func (in importBatch) batch() (tracking.Import, error) {
	out := tracking.Import{From: in.From, DryRun: in.DryRun}
	for _, e := range in.Experiments {
		out.Experiments = append(out.Experiments, tracking.ImportedExperiment{Digest: e.Digest, Experiment: tracking.Experiment{
			ID: tracking.ExperimentID(e.ID), Name: e.Name, Stage: tracking.Stage(e.Stage), Created: time.UnixMilli(e.Created),
			Updated: time.UnixMilli(e.Updated), Tags: e.Tags.pairs(),
		}})
	}
	for _, m := range in.Models {
		model := tracking.LoggedModel{
			ID: tracking.LoggedModelID(m.ID), Experiment: tracking.ExperimentID(m.Experiment), Name: m.Name, Type: m.Type,
			Run: tracking.RunID(m.Run), Status: tracking.ModelStatus(m.Status), Stage: tracking.Stage(m.Stage),
			Created: time.UnixMilli(m.Created), Updated: time.UnixMilli(m.Updated), Params: m.Params.pairs(), Tags: m.Tags.pairs(),
		}
		for _, x := range m.Metrics {
			if len(x.Value) != 1 {
				return out, fault.New(fault.Invalid, "metric %.80q of logged model %.80q has %d values", x.Key, m.ID, len(x.Value))
			}
			model.Metrics = append(model.Metrics, tracking.Metric{
				Key: x.Key, Value: x.Value[0], At: tracking.Millis(x.Timestamp), Step: x.Step, Run: tracking.RunID(x.Run),
				DatasetName: x.DatasetName, DatasetDigest: x.DatasetDigest,
			})
		}
		out.Models = append(out.Models, tracking.ImportedModel{LoggedModel: model, Digest: m.Digest})
	}
	for _, r := range in.Runs {
		run := tracking.Run{
			ID: tracking.RunID(r.ID), Experiment: tracking.ExperimentID(r.Experiment), Name: r.Name, User: r.User,
			Status: tracking.RunStatus(r.Status), Start: tracking.Millis(r.Start), End: tracking.Millis(r.End), Stage: tracking.Stage(r.Stage),
			Params: r.Params.pairs(), Tags: r.Tags.pairs(),
		}
		for _, d := range r.Inputs {
			run.Inputs = append(run.Inputs, tracking.DatasetInput{
				Name: d.Name, Digest: d.Digest, SourceType: d.SourceType, Source: d.Source, Schema: d.Schema, Profile: d.Profile, Tags: d.Tags.pairs(),
			})
		}
		for _, l := range r.Models {
			run.Models = append(run.Models, tracking.ModelLink{Model: tracking.LoggedModelID(l.Model), Output: l.Output, Step: l.Step})
		}
		for _, h := range r.History {
			if len(h.Times) != len(h.Values) || len(h.Steps) != len(h.Values) {
				return out, fault.New(fault.Invalid, "metric %.80q of run %.80q has %d timestamps, %d steps and %d values", h.Key, r.ID, len(h.Times), len(h.Steps), len(h.Values))
			}
			for i, v := range h.Values {
				run.Metrics = append(run.Metrics, tracking.Metric{Key: h.Key, Value: v, At: tracking.Millis(h.Times[i]), Step: h.Steps[i]})
			}
		}
		out.Runs = append(out.Runs, tracking.ImportedRun{Run: run, Part: r.Part, More: r.More, Digest: r.Digest})
	}
	return out, nil
}

type seen struct {
	Runs   map[string]string `json:"runs" doc:"Digest by run; empty if the run is not complete"`
	Models map[string]string `json:"logged_models" doc:"Digest by logged model"`
}

func (s *Server) importSeen(ctx context.Context, in *struct {
	InProject
	Body struct {
		Runs   []string `json:"runs,omitempty" maxItems:"1000" doc:"Ids of runs on the MLflow server"`
		Models []string `json:"logged_models,omitempty" maxItems:"1000" doc:"Ids of logged models on the MLflow server"`
	}
},
) (*body[seen], error) {
	p := project.Name(in.Project)
	runs, err := s.Tracking.Imports.Imported(ctx, p, tracking.ImportRun, in.Body.Runs)
	if err != nil {
		return nil, err
	}
	models, err := s.Tracking.Imports.Imported(ctx, p, tracking.ImportModel, in.Body.Models)
	return one(seen{Runs: runs, Models: models}, err)
}

type importedFile struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Digest string `json:"digest"`
}

func importPlace(run, model string) (tracking.Place, error) {
	if (run == "") == (model == "") {
		return tracking.Place{}, fault.New(fault.Invalid, "name either run_id or model_id")
	}
	return tracking.Place{Run: tracking.RunID(run), Model: tracking.LoggedModelID(model)}, nil
}

func (s *Server) importedFiles(ctx context.Context, in *struct {
	InProject
	Run   string `query:"run_id" maxLength:"64" doc:"Run; set either run_id or model_id"`
	Model string `query:"model_id" maxLength:"64" doc:"Logged model"`
},
) (*body[items[importedFile]], error) {
	place, err := importPlace(in.Run, in.Model)
	if err != nil {
		return nil, err
	}
	files, err := s.Tracking.Artifacts.Files(ctx, project.Name(in.Project), place, "")
	out := make([]importedFile, len(files))
	for i, f := range files {
		out[i] = importedFile{Path: f.Path, Size: f.Size, Digest: f.Digest}
	}
	return listed(out, "", err)
}

func (s *Server) importFile(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	place, err := importPlace(q.Get("run_id"), q.Get("model_id"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	f, err := s.Tracking.Imports.ImportArtifact(r.Context(), project.Name(r.PathValue("project")), place, q.Get("path"), r.Body)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	answer(w, http.StatusOK, importedFile{Path: f.Path, Size: f.Size, Digest: f.Digest})
}

// importedName is a registered model by its name on the MLflow server.
type importedName struct {
	Name string `json:"name" maxLength:"256" doc:"Name of the registered model on the MLflow server"`
	From string `json:"renamed_from,omitempty" maxLength:"256" doc:"Its name at the last import, if it was renamed there"`
}

func (n importedName) name() registry.ImportedName {
	return registry.ImportedName{Name: n.Name, From: n.From}
}

type importedModel struct {
	Name        string    `json:"name" maxLength:"256" doc:"Name of the registered model on the MLflow server"`
	From        string    `json:"renamed_from,omitempty" maxLength:"256" doc:"Its name at the last import, if it was renamed there"`
	Description string    `json:"description,omitempty"`
	Created     int64     `json:"creation_timestamp,omitempty" doc:"Milliseconds since 1970"`
	Updated     int64     `json:"last_updated_timestamp,omitempty"`
	Tags        keyValues `json:"tags,omitempty"`
	Origin      string    `json:"origin,omitempty" maxLength:"100" doc:"Identifies the MLflow server, whatever its address"`
	DryRun      bool      `json:"dry_run,omitempty"`
}

type importedVersion struct {
	Model       importedModel `json:"model" doc:"Registered model; with a creation_timestamp it is imported, too, otherwise it must be imported first"`
	Version     int           `json:"version" minimum:"0" doc:"Version number; 0 imports only the model"`
	Source      string        `json:"source,omitempty" doc:"Imported files: runs:/RUN/PATH or models:/MODEL_ID"`
	Run         string        `json:"run_id,omitempty"`
	RunLink     string        `json:"run_link,omitempty"`
	Description string        `json:"description,omitempty"`
	Stage       string        `json:"current_stage,omitempty"`
	Created     int64         `json:"creation_timestamp,omitempty"`
	Updated     int64         `json:"last_updated_timestamp,omitempty"`
	Tags        keyValues     `json:"tags,omitempty"`
	Aliases     []string      `json:"aliases,omitempty" maxItems:"100" doc:"Aliases to set where the model has none of the name; to import all aliases, use the route for them"`
	Origin      string        `json:"origin,omitempty" maxLength:"100" doc:"Identifies the MLflow server, whatever its address"`
	DryRun      bool          `json:"dry_run,omitempty"`
}

type importedAliases struct {
	Model   importedName `json:"model" doc:"Registered model; it and its versions must be imported first"`
	Aliases []struct {
		Alias   string `json:"alias" maxLength:"255"`
		Version int    `json:"version" minimum:"1"`
	} `json:"aliases" maxItems:"10000" doc:"All aliases of the model on the MLflow server"`
	DryRun bool `json:"dry_run,omitempty"`
}

type importedAnswer struct {
	Result string   `json:"result" enum:"created,updated,unchanged"`
	Lost   []string `json:"lost,omitempty" doc:"Rejected aliases and stages, and values that were changed both on the MLflow server and in Falaj, with reasons"`
}

func importAnswered(out registry.ImportOutcome, err error) (*body[importedAnswer], error) {
	return one(importedAnswer{Result: string(out.Result), Lost: out.Lost}, err)
}

func (s *Server) importModel(ctx context.Context, in *struct {
	InProject
	Body importedModel
},
) (*body[importedAnswer], error) {
	return importAnswered(s.Registry.Imports.Model(ctx, project.Name(in.Project), in.Body.model()))
}

func (m importedModel) name() registry.ImportedName { return importedName{m.Name, m.From}.name() }

func (m importedModel) model() registry.ImportedModel {
	return registry.ImportedModel{
		ImportedName: m.name(), Origin: m.Origin, Description: m.Description, Created: time.UnixMilli(m.Created), Updated: time.UnixMilli(m.Updated),
		Tags: m.Tags.pairs(), DryRun: m.DryRun,
	}
}

func (s *Server) importModelVersion(ctx context.Context, in *struct {
	InProject
	Body importedVersion
},
) (*body[importedAnswer], error) {
	b, p := in.Body, project.Name(in.Project)
	var lost []string
	if b.Version == 0 || b.Model.Created != 0 {
		out, err := s.Registry.Imports.Model(ctx, p, b.Model.model())
		if err != nil || b.Version == 0 {
			return importAnswered(out, err)
		}
		lost = out.Lost
	}
	out, err := s.Registry.Imports.Version(ctx, p, registry.ImportSpec{
		Model: b.Model.name(), Origin: b.Origin, Number: b.Version, Source: b.Source, Run: tracking.RunID(b.Run), RunLink: b.RunLink, Description: b.Description, Stage: b.Stage,
		Created: time.UnixMilli(b.Created), Updated: time.UnixMilli(b.Updated), Tags: b.Tags.pairs(), DryRun: b.DryRun,
	})
	out.Lost = append(lost, out.Lost...)
	if err != nil || len(b.Aliases) == 0 {
		return importAnswered(out, err)
	}
	add := registry.ImportedAliases{Model: b.Model.name(), Add: true, DryRun: b.DryRun}
	for _, alias := range b.Aliases {
		add.Aliases = append(add.Aliases, registry.Alias{Name: alias, Version: b.Version})
	}
	added, err := s.Registry.Imports.Aliases(ctx, p, add)
	out.Lost = append(out.Lost, added.Lost...)
	if out.Result == tracking.ImportUnchanged && added.Result != "" {
		out.Result = added.Result
	}
	return importAnswered(out, err)
}

func (s *Server) importAliases(ctx context.Context, in *struct {
	InProject
	Body importedAliases
},
) (*body[importedAnswer], error) {
	aliases := make([]registry.Alias, len(in.Body.Aliases))
	for i, a := range in.Body.Aliases {
		aliases[i] = registry.Alias{Name: a.Alias, Version: a.Version}
	}
	return importAnswered(s.Registry.Imports.Aliases(ctx, project.Name(in.Project), registry.ImportedAliases{Model: in.Body.Model.name(), Aliases: aliases, DryRun: in.Body.DryRun}))
}

type importedObject struct {
	Name    string `json:"name" doc:"Name of the registered model on the MLflow server"`
	Version int    `json:"version" doc:"Version number; 0 is the model"`
	Created int64  `json:"creation_timestamp"`
	Origin  string `json:"origin,omitempty"`
}

// importedPage is how many records a page has.
const importedPage = 1000

func (s *Server) importedModels(ctx context.Context, in *struct {
	InProject
	Token string `query:"page_token" maxLength:"2048" doc:"next_page_token of the previous page"`
},
) (*body[items[importedObject]], error) {
	var after registry.Imported
	if in.Token != "" {
		number, name, ok := strings.Cut(in.Token, " ")
		n, err := strconv.Atoi(number)
		if !ok || err != nil {
			return nil, fault.New(fault.Invalid, "page_token %.40q is invalid", in.Token)
		}
		after = registry.Imported{Name: name, Number: n}
	}
	found, err := s.Registry.Imports.Imported(ctx, project.Name(in.Project), after, importedPage)
	out, next := make([]importedObject, len(found)), ""
	for i, r := range found {
		out[i] = importedObject{Name: r.Name, Version: r.Number, Created: r.Created, Origin: r.Origin}
		if len(found) == importedPage {
			next = strconv.Itoa(r.Number) + " " + r.Name
		}
	}
	return listed(out, next, err)
}
