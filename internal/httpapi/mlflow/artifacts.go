package mlflow

import (
	"io"
	"mime"
	"net/http"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// proxied is what a path below mlflow-artifacts names: artifacts of a run or a
// logged model, or the files of a model version, which are read-only.
type proxied struct {
	place   tracking.Place
	model   string
	version int
	path    string
}

var (
	proxiedRunRE   = regexp.MustCompile(`^([0-9]{1,18})/(run_[0-9A-Z]{26}|[0-9a-f]{32})/artifacts(?:/(.*))?$`)
	proxiedModelRE = regexp.MustCompile(`^([0-9]{1,18})/models/(m_[0-9A-Z]{26}|m-[0-9a-f]{32})/artifacts(?:/(.*))?$`)
	proxiedVerRE   = regexp.MustCompile(`^registry/([^/]+)/([0-9]{1,9})(?:/(.*))?$`)
)

func parseProxied(p string) (proxied, error) {
	var out proxied
	if m := proxiedRunRE.FindStringSubmatch(p); m != nil {
		out.place.Run, out.path = tracking.RunID(m[2]), m[3]
	} else if m := proxiedModelRE.FindStringSubmatch(p); m != nil {
		out.place.Model, out.path = tracking.LoggedModelID(m[2]), m[3]
	} else if m := proxiedVerRE.FindStringSubmatch(p); m != nil {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			return out, err
		}
		out.model, out.version, out.path = m[1], n, m[3]
		if err := registry.CheckAddress(out.model); err != nil {
			return out, err
		}
	} else {
		if err := tracking.CheckPath(p); err != nil {
			return out, err
		}
		return out, fault.New(fault.NotFound, "No such artifact: '%s'", clip(p)).
			WithHint("Artifacts lie below the artifact URI of a run, a logged model or a model version.")
	}
	return out, tracking.CheckPath(out.path)
}

func (a *API) entries(c *call, p proxied) ([]tracking.Entry, error) {
	if p.model == "" {
		return a.tracking.ListArtifacts(c.r.Context(), c.project, p.place, p.path)
	}
	files, _, err := a.registry.Files(c.r.Context(), c.project, p.model, strconv.Itoa(p.version))
	if err != nil {
		return nil, err
	}
	plain := make([]tracking.File, len(files))
	for i, f := range files {
		plain[i] = tracking.File{Path: f.Path, Size: f.Size}
	}
	return tracking.Children(plain, p.path), nil
}

// serveProxyList lists a directory below mlflow-artifacts, by bare names.
func serveProxyList(a *API, c *call) (any, error) {
	p, err := parseProxied(strings.Trim(c.r.URL.Query().Get("path"), "/"))
	if err != nil {
		return nil, err
	}
	entries, err := a.entries(c, p)
	if err != nil {
		return nil, err
	}
	files := []fileInfo{}
	for _, e := range entries {
		e.Path = path.Base(e.Path)
		files = append(files, fileOut(e))
	}
	return map[string]any{"files": files}, nil
}

func serveProxyGet(a *API, c *call) (any, error) {
	p, err := parseProxied(c.r.PathValue("path"))
	if err != nil {
		return nil, err
	}
	return a.download(c, p)
}

func (a *API) download(c *call, p proxied) (any, error) {
	var (
		body io.ReadCloser
		size int64
		err  error
	)
	if p.model != "" {
		var f registry.File
		body, f, err = a.registry.OpenFile(c.r.Context(), c.project, p.model, strconv.Itoa(p.version), p.path)
		size = f.Size
	} else {
		var f tracking.File
		body, f, err = a.tracking.OpenArtifact(c.r.Context(), c.project, p.place, p.path)
		size = f.Size
	}
	if err != nil {
		return nil, err
	}
	defer body.Close()
	h := c.w.Header()
	h.Set("Content-Type", "application/octet-stream") // never anything a browser would run
	h.Set("Content-Disposition", disposition(path.Base(p.path)))
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	h.Set("Content-Security-Policy", "sandbox")
	n, err := io.Copy(c.w, body)
	if err != nil && n == 0 { // such as a damaged file, and there is time to say so
		for _, name := range []string{"Content-Disposition", "Content-Length", "Content-Security-Policy"} {
			h.Del(name)
		}
		return nil, err
	}
	if err != nil {
		_ = a.ended(c.r, err)
		panic(http.ErrAbortHandler) // a part was sent: the client must not take it for the whole
	}
	return done{}, nil
}

func disposition(name string) string {
	if d := mime.FormatMediaType("attachment", map[string]string{"filename": name}); d != "" {
		return d
	}
	return "attachment"
}

func serveProxyPut(a *API, c *call) (any, error) {
	p, err := parseProxied(c.r.PathValue("path"))
	if err != nil {
		return nil, err
	}
	if p.model != "" {
		return nil, fault.New(fault.PermissionDenied, "the files of model version %s@%d never change", p.model, p.version).
			WithHint("Log to a run and register a new version.")
	}
	if _, err := a.tracking.PutArtifact(c.r.Context(), c.project, p.place, p.path, c.r.Body); err != nil {
		return nil, err
	}
	sendNothing(c)
	return done{}, nil
}

func serveProxyDelete(a *API, c *call) (any, error) {
	p, err := parseProxied(c.r.PathValue("path"))
	if err != nil {
		return nil, err
	}
	if p.model != "" {
		return nil, fault.New(fault.PermissionDenied, "the files of model version %s@%d never change", p.model, p.version).
			WithHint("Delete the version.")
	}
	return empty{}, a.tracking.DeleteArtifacts(c.r.Context(), c.project, p.place, p.path)
}

type listArtifacts struct {
	RunID string `json:"run_id" mlflow:"required,alias=run_uuid"`
	Path  string `json:"path"`
}

func serveListArtifacts(a *API, c *call, q *listArtifacts) (any, error) {
	r, err := a.tracking.Run(c.r.Context(), c.project, tracking.RunID(q.RunID))
	if err != nil {
		return nil, err
	}
	return a.listing(c, tracking.Place{Run: r.ID}, q.Path, artifactURI(r))
}

func serveModelDirectories(a *API, c *call, q *struct {
	ModelID string `json:"model_id" mlflow:"path"`
	Path    string `json:"artifact_directory_path"`
},
) (any, error) {
	m, err := a.tracking.LoggedModel(c.r.Context(), c.project, tracking.LoggedModelID(q.ModelID))
	if err != nil {
		return nil, err
	}
	return a.listing(c, tracking.Place{Model: m.ID}, q.Path, modelURI(m))
}

func (a *API) listing(c *call, place tracking.Place, dir, root string) (any, error) {
	entries, err := a.tracking.ListArtifacts(c.r.Context(), c.project, place, strings.TrimSuffix(dir, "/"))
	if err != nil {
		return nil, err
	}
	out := struct {
		RootURI string     `json:"root_uri"`
		Files   []fileInfo `json:"files,omitempty"`
	}{root, nil}
	for _, e := range entries {
		out.Files = append(out.Files, fileOut(e))
	}
	return out, nil
}

// serveGetArtifact is the download of MLflow's user interface.
func serveGetArtifact(a *API, c *call) (any, error) {
	q := c.r.URL.Query()
	runID := q.Get("run_id")
	if runID == "" {
		runID = q.Get("run_uuid")
	}
	file, err := queryValue(q, "path")
	if err != nil {
		return nil, err
	}
	return a.download(c, proxied{place: tracking.Place{Run: tracking.RunID(runID)}, path: file})
}

func serveGetModelArtifact(a *API, c *call) (any, error) {
	file, err := queryValue(c.r.URL.Query(), "artifact_file_path")
	if err != nil {
		return nil, err
	}
	return a.download(c, proxied{place: tracking.Place{Model: tracking.LoggedModelID(c.r.PathValue("model_id"))}, path: file})
}

func serveGetVersionArtifact(a *API, c *call) (any, error) {
	q := c.r.URL.Query()
	name, err := queryValue(q, "name")
	if err != nil {
		return nil, err
	}
	n, err := versionNumber(q.Get("version"))
	if err != nil {
		return nil, err
	}
	file, err := queryValue(q, "path")
	if err != nil {
		return nil, err
	}
	if err := tracking.CheckPath(file); err != nil {
		return nil, err
	}
	return a.download(c, proxied{model: name, version: n, path: file})
}

// serveUploadArtifact is the upload of MLflow's user interface.
func serveUploadArtifact(a *API, c *call) (any, error) {
	q := c.r.URL.Query()
	runID, err := queryValue(q, "run_uuid")
	if err != nil {
		return nil, err
	}
	file, err := queryValue(q, "path")
	if err != nil {
		return nil, err
	}
	if c.r.ContentLength == 0 {
		return nil, fault.New(fault.Invalid, "Request must specify data.")
	}
	const most = 10 << 20
	if c.r.ContentLength > most {
		return nil, fault.New(fault.Invalid, "Artifact size is too large. Max size is 10MB.")
	}
	if _, err := a.tracking.PutArtifact(c.r.Context(), c.project, tracking.Place{Run: tracking.RunID(runID)}, file, http.MaxBytesReader(c.w, c.r.Body, most)); err != nil {
		return nil, err
	}
	sendNothing(c)
	return done{}, nil
}

// sendNothing answers with no content, as JSON, as MLflow does to uploads.
func sendNothing(c *call) {
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(http.StatusOK)
}
