package mlflow

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
)

// Bounds of asking a server.
const (
	maxAnswer   = 256 << 20 // bytes
	askers      = 8         // questions beside each other
	tries       = 4
	answerTime  = 2 * time.Minute
	stallTime   = time.Minute // without a byte of a file
	maxDepth    = 32          // directories of artifacts
	maxListed   = 20_000      // files of a place
	historyPage = 25_000
)

// Bounds of pages of one list: millions of things, and of points of one metric.
const (
	maxPages        = 20_000
	maxHistoryPages = 2000
)

// pages follows a list from page to page: it has an end.
type pages struct {
	token string
	n     int
}

// next is whether there is another page.
func (p *pages) next(token, of string, most int) (bool, error) {
	if token == "" {
		return false, nil
	}
	if p.n++; token == p.token || p.n == most {
		return false, fault.New(fault.Unavailable, "the list of %s has no end: the server told %d pages", of, p.n).
			WithHint("Is it an MLflow server? Its database can be imported, too.")
	}
	p.token = token
	return true, nil
}

// server is an MLflow server, by its REST protocol.
type server struct {
	base *url.URL
	http *http.Client
	with Access

	models bool // there are logged models
}

func openServer(address string, with Access) (*server, error) {
	base, err := url.Parse(strings.TrimSuffix(address, "/"))
	if err != nil || base.Host == "" {
		return nil, fault.New(fault.Invalid, "%q is no address such as https://mlflow.example.org", Plain(address))
	}
	if base.User != nil { // as MLflow's clients take it
		with.User = base.User.Username()
		with.Password, _ = base.User.Password()
		base.User = nil
	}
	base.RawQuery, base.Fragment = "", ""
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = answerTime
	transport.MaxIdleConnsPerHost = askers
	return &server{base: base, with: with, http: &http.Client{
		Transport: transport,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			plainly := base.Scheme == "https" && r.URL.Scheme != "https" // Go would send the credentials there, for all to read
			if len(via) > 5 || r.URL.Host != base.Host || plainly {      // credentials are for one host, and so is trust
				return fmt.Errorf("the server sends on to %s://%s", r.URL.Scheme, r.URL.Host)
			}
			return nil
		},
	}}, nil
}

func (s *server) String() string { return s.base.String() }

// Whole implements Source.
func (s *server) Whole() bool { return false }

// Close implements Source.
func (s *server) Close() error {
	s.http.CloseIdleConnections()
	return nil
}

// Count implements Source.
func (s *server) Count(context.Context) (int64, error) { return 0, nil }

// refusedError is what the server answered instead.
type refusedError struct {
	status int
	code   string
	text   string
}

func (e *refusedError) Error() string { return "the MLflow server says: " + e.text }

// lacks reports whether a server does not have what was asked of it.
func lacks(err error) bool {
	refused, ok := errors.AsType[*refusedError](err)
	return ok && (refused.status == http.StatusNotFound && refused.code != "RESOURCE_DOES_NOT_EXIST" || refused.status == http.StatusMethodNotAllowed || refused.status == http.StatusNotImplemented)
}

// send asks once.
func (s *server) send(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(b)
	}
	u := *s.base
	u.Path += path
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), r)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	switch {
	case s.with.Token != "":
		req.Header.Set("Authorization", "Bearer "+s.with.Token)
	case s.with.User != "":
		req.SetBasicAuth(s.with.User, s.with.Password)
	}
	if s.with.Workspace != "" {
		req.Header.Set("X-Mlflow-Workspace", s.with.Workspace)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < http.StatusMultipleChoices {
		return resp, nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	refused := &refusedError{status: resp.StatusCode, text: resp.Status}
	var said struct {
		Code    string `json:"error_code"`
		Message string `json:"message"`
	}
	if json.Unmarshal(b, &said) == nil && said.Message != "" {
		refused.code, refused.text = said.Code, said.Message
	}
	return nil, refused
}

// again reports whether asking again may help.
func again(err error) bool {
	if refused, ok := errors.AsType[*refusedError](err); ok {
		return refused.status == http.StatusTooManyRequests || refused.status >= http.StatusInternalServerError && refused.status != http.StatusNotImplemented
	}
	return true
}

// trying asks until it is answered, a few times.
func trying[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for n := 1; ; n++ {
		v, err := ask()
		if err == nil || n == tries || !again(err) || ctx.Err() != nil {
			return v, err
		}
		wait := time.NewTimer(time.Duration(n*n) * 250 * time.Millisecond)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return v, ctx.Err()
		}
	}
}

func (s *server) ask(ctx context.Context, method, path string, query url.Values, body, out any) error {
	_, err := trying(ctx, func() (struct{}, error) {
		ctx, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		resp, err := s.send(ctx, method, path, query, body)
		if err != nil {
			return struct{}{}, err
		}
		defer resp.Body.Close()
		limited := &io.LimitedReader{R: resp.Body, N: maxAnswer}
		if err := json.NewDecoder(limited).Decode(out); err != nil {
			if limited.N <= 0 {
				err = fmt.Errorf("it has more than %d bytes", maxAnswer)
			}
			return struct{}{}, fmt.Errorf("the answer of %s to %s cannot be read: %w", s.base.Host, path, err)
		}
		return struct{}{}, nil
	})
	if err == nil {
		return nil
	}
	if refused, ok := errors.AsType[*refusedError](err); ok {
		switch refused.status {
		case http.StatusUnauthorized, http.StatusForbidden:
			return fault.New(fault.PermissionDenied, "%s: %w", s.base.Host, err).
				WithHint("Set FALAJ_IMPORT_TOKEN, or FALAJ_IMPORT_USERNAME and FALAJ_IMPORT_PASSWORD, of the MLflow server.")
		case http.StatusNotFound:
			return fault.New(fault.NotFound, "%s: %w", path, err).WithHint("Is %s an MLflow server?", s.base)
		}
		return fault.New(fault.Unavailable, "%s: %w", path, err)
	}
	return fault.New(fault.Unavailable, "no answer from %s: %w", s.base.Host, err).WithHint("Is an MLflow server running there?")
}

// whole is an integer that may come as text.
type whole int64

// UnmarshalJSON implements json.Unmarshaler.
func (w *whole) UnmarshalJSON(b []byte) error {
	n, err := strconv.ParseInt(strings.Trim(string(b), `"`), 10, 64)
	if string(b) == "null" {
		n, err = 0, nil
	}
	*w = whole(n)
	return err
}

// decimal is a number that may come as text, such as NaN.
type decimal float64

// UnmarshalJSON implements json.Unmarshaler.
func (r *decimal) UnmarshalJSON(b []byte) error {
	x, err := strconv.ParseFloat(strings.Trim(string(b), `"`), 64)
	if math.IsInf(x, 0) {
		err = nil
	}
	*r = decimal(x)
	return err
}

type pairOut struct{ Key, Value string }

func pairs(in []pairOut) Pairs {
	var out Pairs
	for _, p := range in {
		out = append(out, [2]string{p.Key, p.Value})
	}
	slices.SortFunc(out, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return out
}

type pointOut struct {
	Key           string  `json:"key"`
	Value         decimal `json:"value"`
	Timestamp     whole   `json:"timestamp"`
	Step          whole   `json:"step"`
	Run           string  `json:"run_id"`
	DatasetName   string  `json:"dataset_name"`
	DatasetDigest string  `json:"dataset_digest"`
}

const api = "/api/2.0/mlflow/"

// Experiments implements Source.
func (s *server) Experiments(ctx context.Context) ([]Experiment, error) {
	var out []Experiment
	var at pages
	for {
		var page struct {
			Experiments []struct {
				ID      whole  `json:"experiment_id"`
				Name    string `json:"name"`
				Stage   string `json:"lifecycle_stage"`
				Created whole  `json:"creation_time"`
				Updated whole  `json:"last_update_time"`
				Tags    []pairOut
			}
			Next string `json:"next_page_token"`
		}
		if err := s.ask(ctx, http.MethodPost, api+"experiments/search", nil, map[string]any{"max_results": 1000, "view_type": "ALL", "page_token": at.token}, &page); err != nil {
			return nil, err
		}
		for _, e := range page.Experiments {
			out = append(out, Experiment{ID: int64(e.ID), Name: e.Name, Stage: stage(e.Stage), Created: int64(e.Created), Updated: int64(e.Updated), Tags: pairs(e.Tags)})
		}
		if more, err := at.next(page.Next, "experiments", maxPages); err != nil || !more {
			slices.SortFunc(out, func(a, b Experiment) int { return cmp.Compare(a.ID, b.ID) })
			return out, err
		}
	}
}

type runOut struct {
	Info struct {
		ID         string `json:"run_id"`
		Experiment whole  `json:"experiment_id"`
		Name       string `json:"run_name"`
		User       string `json:"user_id"`
		Status     string `json:"status"`
		Stage      string `json:"lifecycle_stage"`
		Start      whole  `json:"start_time"`
		End        whole  `json:"end_time"`
		URI        string `json:"artifact_uri"`
	}
	Data struct {
		Metrics []pointOut
		Params  []pairOut
		Tags    []pairOut
	}
	Inputs struct {
		Datasets []struct {
			Tags    []pairOut
			Dataset struct {
				Name, Digest, Source, Schema, Profile string
				SourceType                            string `json:"source_type"`
			}
		} `json:"dataset_inputs"`
		Models []struct {
			ID string `json:"model_id"`
		} `json:"model_inputs"`
	}
	Outputs struct {
		Models []struct {
			ID   string `json:"model_id"`
			Step whole  `json:"step"`
		} `json:"model_outputs"`
	}
}

func (o runOut) run() Run {
	r := Run{
		ID: o.Info.ID, Experiment: int64(o.Info.Experiment), Name: o.Info.Name, User: o.Info.User, Status: o.Info.Status, Stage: stage(o.Info.Stage),
		Start: int64(o.Info.Start), End: int64(o.Info.End), URI: o.Info.URI, Params: pairs(o.Data.Params), Tags: pairs(o.Data.Tags),
	}
	for _, m := range o.Data.Metrics {
		one := &Series{Key: m.Key}
		one.add(int64(m.Timestamp), int64(m.Step), float64(m.Value))
		r.Latest = append(r.Latest, one)
	}
	slices.SortFunc(r.Latest, func(a, b *Series) int { return strings.Compare(a.Key, b.Key) })
	for _, d := range o.Inputs.Datasets {
		r.Inputs = append(r.Inputs, Input{
			Name: d.Dataset.Name, Digest: d.Dataset.Digest, SourceType: d.Dataset.SourceType, Source: d.Dataset.Source, Schema: d.Dataset.Schema,
			Profile: d.Dataset.Profile, Tags: pairs(d.Tags),
		})
	}
	for _, m := range o.Inputs.Models {
		r.Models = append(r.Models, Link{Model: m.ID})
	}
	for _, m := range o.Outputs.Models {
		r.Models = append(r.Models, Link{Model: m.ID, Output: true, Step: int64(m.Step)})
	}
	return r
}

// Runs implements Source.
func (s *server) Runs(ctx context.Context, experiments []int64, yield func([]Run) error) error {
	for _, e := range experiments { // one by one: a page of many is sorted by the server anew each time
		var at pages
		for {
			var page struct {
				Runs []runOut
				Next string `json:"next_page_token"`
			}
			ask := map[string]any{
				"experiment_ids": []string{strconv.FormatInt(e, 10)}, "run_view_type": "ALL", "max_results": maxRunsRead, "page_token": at.token,
				"order_by": []string{"attributes.run_id ASC"},
			}
			if err := s.ask(ctx, http.MethodPost, api+"runs/search", nil, ask, &page); err != nil {
				return err
			}
			runs := make([]Run, len(page.Runs))
			for i, o := range page.Runs {
				runs[i] = o.run()
			}
			if err := s.modelInputs(ctx, runs); err != nil {
				return err
			}
			if len(runs) > 0 {
				if err := yield(runs); err != nil {
					return err
				}
			}
			more, err := at.next(page.Next, "runs", maxPages)
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
	}
	return nil
}

// modelInputs adds the logged models that runs read, which searches do not tell.
func (s *server) modelInputs(ctx context.Context, runs []Run) error {
	if !s.models {
		return nil
	}
	return beside(ctx, len(runs), func(ctx context.Context, i int) error {
		var one struct{ Run runOut }
		if err := s.ask(ctx, http.MethodGet, api+"runs/get", url.Values{"run_id": {runs[i].ID}}, nil, &one); err != nil {
			return err
		}
		runs[i].Models = one.Run.run().Models
		return nil
	})
}

// History implements Source.
func (s *server) History(ctx context.Context, runs []Run) (int, error) {
	type part struct {
		run *Run
		at  int
	}
	var parts []part
	for i := range runs {
		runs[i].History = make([]*Series, len(runs[i].Latest))
		for k := range runs[i].Latest {
			parts = append(parts, part{&runs[i], k})
		}
	}
	return len(runs), beside(ctx, len(parts), func(ctx context.Context, i int) error {
		run, key := parts[i].run, parts[i].run.Latest[parts[i].at].Key
		series := &Series{Key: key}
		var at pages
		for {
			query := url.Values{"run_id": {run.ID}, "metric_key": {key}, "max_results": {strconv.Itoa(historyPage)}}
			if at.token != "" {
				query.Set("page_token", at.token)
			}
			var page struct {
				Metrics []pointOut
				Next    string `json:"next_page_token"`
			}
			if err := s.ask(ctx, http.MethodGet, api+"metrics/get-history", query, nil, &page); err != nil {
				return err
			}
			for _, m := range page.Metrics {
				series.add(int64(m.Timestamp), int64(m.Step), float64(m.Value))
			}
			more, err := at.next(page.Next, "points of metric "+clip(key), maxHistoryPages)
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
		if len(series.Values) == 0 { // a server shows it all the same
			series = run.Latest[parts[i].at]
		}
		run.History[parts[i].at] = series
		return nil
	})
}

// beside does n things, some at a time, until one fails.
func beside(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	next := make(chan int)
	for range min(askers, n) {
		wait.Go(func() {
			for i := range next {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wait.Wait()
	return context.Cause(ctx)
}

// Models implements Source.
func (s *server) Models(ctx context.Context, experiments []int64, yield func([]Model) error) error {
	for part := range slices.Chunk(experiments, 50) {
		ids := make([]string, len(part))
		for i, e := range part {
			ids[i] = strconv.FormatInt(e, 10)
		}
		var at pages
		for {
			var page struct {
				Models []struct {
					Info struct {
						ID         string `json:"model_id"`
						Experiment whole  `json:"experiment_id"`
						Name       string `json:"name"`
						Type       string `json:"model_type"`
						Run        string `json:"source_run_id"`
						Status     string `json:"status"`
						Created    whole  `json:"creation_timestamp_ms"`
						Updated    whole  `json:"last_updated_timestamp_ms"`
						URI        string `json:"artifact_uri"`
						Tags       []pairOut
					}
					Data struct {
						Params  []pairOut
						Metrics []pointOut
					}
				}
				Next string `json:"next_page_token"`
			}
			err := s.ask(ctx, http.MethodPost, api+"logged-models/search", nil, map[string]any{"experiment_ids": ids, "max_results": 50, "page_token": at.token}, &page)
			if lacks(err) {
				return nil // MLflow 2
			}
			if err != nil {
				return err
			}
			models := make([]Model, len(page.Models))
			for i, o := range page.Models {
				m := Model{
					ID: o.Info.ID, Experiment: int64(o.Info.Experiment), Name: o.Info.Name, Type: o.Info.Type, Run: o.Info.Run, Status: statusName(o.Info.Status),
					Stage: "active", Created: int64(o.Info.Created), Updated: int64(o.Info.Updated), URI: o.Info.URI, Params: pairs(o.Data.Params), Tags: pairs(o.Info.Tags),
				}
				for _, x := range o.Data.Metrics {
					m.Metrics = append(m.Metrics, ModelMetric{
						Key: x.Key, Value: Values{float64(x.Value)}, Timestamp: int64(x.Timestamp), Step: int64(x.Step), Run: x.Run, DatasetName: x.DatasetName, DatasetDigest: x.DatasetDigest,
					})
				}
				models[i] = m
			}
			if len(models) > 0 {
				s.models = true
				if err := yield(models); err != nil {
					return err
				}
			}
			more, err := at.next(page.Next, "logged models", maxPages)
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
	}
	return nil
}

// statusName is a status by its name; some servers tell the number.
func statusName(s string) string {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return statuses[n]
	}
	return s
}

// LeftOut implements Source. Older servers have none of these kinds, and say so.
func (s *server) LeftOut(ctx context.Context) (map[string]int64, error) {
	out := map[string]int64{}
	var at pages
	for {
		var page struct {
			Webhooks []struct{} `json:"webhooks"`
			Next     string     `json:"next_page_token"`
		}
		query := url.Values{"max_results": {"100"}}
		if at.token != "" {
			query.Set("page_token", at.token)
		}
		err := s.ask(ctx, http.MethodGet, api+"webhooks", query, nil, &page)
		if fault.Is(err, fault.NotFound) || fault.Is(err, fault.PermissionDenied) || lacks(err) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out["webhooks"] += int64(len(page.Webhooks))
		if more, err := at.next(page.Next, "webhooks", maxPages); err != nil || !more {
			return out, err
		}
	}
}

// Registered implements Source.
func (s *server) Registered(ctx context.Context, yield func(Registered) error) error {
	type modelOut struct {
		Name        string `json:"name"`
		Description string `json:"description"`
		Created     whole  `json:"creation_timestamp"`
		Updated     whole  `json:"last_updated_timestamp"`
		Tags        []pairOut
		Aliases     []struct {
			Alias   string
			Version whole
		}
	}
	var at pages
	for {
		var page struct {
			Models []modelOut `json:"registered_models"`
			Next   string     `json:"next_page_token"`
		}
		err := s.ask(ctx, http.MethodGet, api+"registered-models/search", url.Values{"max_results": {"100"}, "page_token": {at.token}}, nil, &page)
		if lacks(err) {
			return nil // a file store of old has no registry
		}
		if err != nil {
			return err
		}
		for _, o := range page.Models {
			var full struct {
				Model modelOut `json:"registered_model"`
			}
			if err := s.ask(ctx, http.MethodGet, api+"registered-models/get", url.Values{"name": {o.Name}}, nil, &full); err != nil {
				return err
			}
			m := Registered{Name: o.Name, Description: o.Description, Created: int64(o.Created), Updated: int64(o.Updated), Tags: pairs(full.Model.Tags)}
			aliases := map[int][]string{}
			for _, a := range full.Model.Aliases {
				aliases[int(a.Version)] = append(aliases[int(a.Version)], a.Alias)
			}
			if m.Versions, err = s.versions(ctx, o.Name); err != nil {
				return err
			}
			for i := range m.Versions {
				m.Versions[i].Aliases = aliases[m.Versions[i].Number]
			}
			if err := yield(m); err != nil {
				return err
			}
		}
		if more, err := at.next(page.Next, "registered models", maxPages); err != nil || !more {
			return err
		}
	}
}

func (s *server) versions(ctx context.Context, model string) ([]Version, error) {
	var out []Version
	var at pages
	filter := "name='" + model + "'"
	if strings.Contains(model, "'") {
		filter = `name="` + model + `"`
	}
	for {
		var page struct {
			Versions []struct {
				Version     whole  `json:"version"`
				Source      string `json:"source"`
				Run         string `json:"run_id"`
				RunLink     string `json:"run_link"`
				Description string `json:"description"`
				Stage       string `json:"current_stage"`
				Status      string `json:"status"`
				Created     whole  `json:"creation_timestamp"`
				Updated     whole  `json:"last_updated_timestamp"`
				Tags        []pairOut
			} `json:"model_versions"`
			Next string `json:"next_page_token"`
		}
		if err := s.ask(ctx, http.MethodGet, api+"model-versions/search", url.Values{"filter": {filter}, "max_results": {"1000"}, "page_token": {at.token}}, nil, &page); err != nil {
			return nil, err
		}
		for _, v := range page.Versions {
			out = append(out, Version{
				Number: int(v.Version), Source: v.Source, Run: v.Run, RunLink: v.RunLink, Description: v.Description, Stage: v.Stage, Status: v.Status,
				Created: int64(v.Created), Updated: int64(v.Updated), Tags: pairs(v.Tags), Storage: s.storage(ctx, model, int(v.Version), v.Source),
			})
		}
		if more, err := at.next(page.Next, "versions of model "+clip(model), maxPages); err != nil || !more {
			slices.SortFunc(out, func(a, b Version) int { return a.Number - b.Number })
			return out, err
		}
	}
}

// storage is where a copy of another version has its files, whatever became of the other;
// empty where the server does not say.
func (s *server) storage(ctx context.Context, model string, number int, source string) string {
	if !versionSource.MatchString(source) {
		return ""
	}
	var at struct {
		URI string `json:"artifact_uri"`
	}
	if err := s.ask(ctx, http.MethodGet, api+"model-versions/get-download-uri", url.Values{"name": {model}, "version": {strconv.Itoa(number)}}, nil, &at); err != nil {
		return ""
	}
	return at.URI
}

// List implements Source. The server fetches what lies elsewhere.
func (s *server) List(ctx context.Context, p Place, yield func(File) error, refused func(string, error)) error {
	listed := 0
	var walk func(dir string, depth int) error
	walk = func(dir string, depth int) error {
		var at pages
		for {
			route, query := api+"artifacts/list", url.Values{"run_id": {p.Run}, "path": {dir}}
			if p.Run == "" {
				route, query = api+"logged-models/"+url.PathEscape(p.Model)+"/artifacts/directories", url.Values{"artifact_directory_path": {dir}}
			}
			if dir == "" {
				query.Del("path")
				query.Del("artifact_directory_path")
			}
			if at.token != "" {
				query.Set("page_token", at.token)
			}
			var page struct {
				Files []struct {
					Path string `json:"path"`
					Dir  bool   `json:"is_dir"`
					Size whole  `json:"file_size"`
				}
				Next string `json:"next_page_token"`
			}
			if err := s.ask(ctx, http.MethodGet, route, query, nil, &page); err != nil {
				return fault.New(fault.Unavailable, "its artifacts cannot be listed: %w", err)
			}
			for _, f := range page.Files {
				switch listed++; {
				case listed > maxListed:
					return fault.New(fault.TooLarge, "it has more than %d artifacts", maxListed)
				case f.Path == "" || path.Dir(f.Path) != path.Join(".", dir) || path.Clean(f.Path) != f.Path || strings.HasPrefix(f.Path, ".."):
					refused(f.Path, errors.New("the path is not plainly in its directory"))
				case f.Dir && depth == maxDepth:
					refused(f.Path, fmt.Errorf("it is more than %d directories deep", maxDepth))
				case f.Dir:
					if err := walk(f.Path, depth+1); err != nil {
						return err
					}
				default:
					if err := yield(File{Path: f.Path, Size: int64(f.Size)}); err != nil {
						return err
					}
				}
			}
			if more, err := at.next(page.Next, "artifacts", maxPages); err != nil || !more {
				return err
			}
		}
	}
	return walk("", 1)
}

// Fetch implements Source.
func (s *server) Fetch(ctx context.Context, p Place, name string) (io.ReadCloser, error) {
	route, query := "/get-artifact", url.Values{"run_id": {p.Run}, "path": {name}}
	if p.Run == "" {
		route, query = "/ajax-api/2.0/mlflow/logged-models/"+url.PathEscape(p.Model)+"/artifacts/files", url.Values{"artifact_file_path": {name}}
	}
	ctx, cancel := context.WithCancel(ctx)
	resp, err := trying(ctx, func() (*http.Response, error) { return s.send(ctx, http.MethodGet, route, query, nil) }) //nolint:bodyclose // flowing closes it
	if err != nil {
		cancel()
		return nil, err
	}
	return &flowing{ReadCloser: resp.Body, cancel: cancel, stall: time.AfterFunc(stallTime, cancel)}, nil
}

// flowing is a body that ends when nothing comes for a while.
type flowing struct {
	io.ReadCloser
	cancel context.CancelFunc
	stall  *time.Timer
}

func (f *flowing) Read(b []byte) (int, error) {
	n, err := f.ReadCloser.Read(b)
	f.stall.Reset(stallTime)
	return n, err
}

func (f *flowing) Close() error {
	f.stall.Stop()
	f.cancel()
	return f.ReadCloser.Close()
}
