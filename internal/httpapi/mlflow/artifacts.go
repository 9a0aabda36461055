package mlflow

import (
	"bufio"
	"errors"
	"io"
	"mime"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

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
		return a.tracking.Artifacts.ListArtifacts(c.r.Context(), c.project, p.place, p.path)
	}
	files, _, err := a.registry.Files.Files(c.r.Context(), c.project, p.model, strconv.Itoa(p.version))
	if err != nil {
		return nil, err
	}
	plain := make([]tracking.File, len(files))
	for i, f := range files {
		plain[i] = tracking.File{Path: f.Path, Size: f.Size}
	}
	return tracking.Children(plain, p.path), nil
}

// listed is a directory to list without the parts that say "here": clients download all of a
// run as ".".
func listed(dir string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(dir, "/"), func(part string) bool { return part == "." }), "/")
}

// serveProxyList lists a directory below mlflow-artifacts, by bare names.
func serveProxyList(a *API, c *call) (any, error) {
	p, err := parseProxied(listed(strings.Trim(c.r.URL.Query().Get("path"), "/")))
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
		body   io.ReadCloser
		size   int64
		digest string
		err    error
	)
	if p.model != "" {
		var f registry.File
		body, f, err = a.registry.Files.OpenFile(c.r.Context(), c.project, p.model, strconv.Itoa(p.version), p.path)
		size, digest = f.Size, f.Digest
	} else {
		var f tracking.File
		body, f, err = a.tracking.Artifacts.OpenArtifact(c.r.Context(), c.project, p.place, p.path)
		size, digest = f.Size, f.Digest
	}
	if err != nil {
		return nil, err
	}
	defer body.Close()
	content := &forward{body: bufio.NewReader(body), size: size}
	if _, err := content.body.Peek(1); err != nil && !errors.Is(err, io.EOF) { // such as a damaged file, and there is time to say so
		return nil, err
	}
	if strings.Contains(c.r.Header.Get("Range"), ",") { // several parts in any order would each be read up to anew
		c.r.Header.Del("Range")
	}
	h := c.w.Header()
	h.Set("Content-Type", "application/octet-stream") // never anything a browser would run
	h.Set("Content-Disposition", disposition(path.Base(p.path)))
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("ETag", strconv.Quote(digest))
	http.ServeContent(c.w, c.r, "", time.Time{}, content) // ranges, and whether the client has it already
	if err := content.err; err != nil && !errors.Is(err, io.EOF) {
		_ = a.ended(c.r, err)
		panic(http.ErrAbortHandler) // a part was sent: the client must not take it for the whole
	}
	return done{}, nil
}

// forward lets http.ServeContent choose a part of a file that is read from its beginning only:
// a seek leaves out what is before the place, and none goes back behind what was read.
type forward struct {
	body *bufio.Reader
	size int64
	read int64 // of body
	at   int64 // where the next read begins
	err  error // how reading ended
}

// Seek implements io.Seeker.
func (f *forward) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += f.size
	}
	if offset < f.read {
		return 0, errors.New("the place was read already")
	}
	f.at = offset
	return offset, nil
}

// Read implements io.Reader.
func (f *forward) Read(p []byte) (n int, err error) {
	if f.err != nil {
		return 0, f.err
	}
	if f.at > f.read {
		n, err := io.CopyN(io.Discard, f.body, f.at-f.read)
		f.read += n
		if f.err = err; err != nil {
			return 0, err
		}
	}
	n, f.err = f.body.Read(p)
	f.read += int64(n)
	f.at = f.read
	return n, f.err
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
		return nil, fault.New(fault.PermissionDenied, "the files of model version %s@%d are immutable", p.model, p.version).
			WithHint("Log to a run and register a new version.")
	}
	if _, err := a.tracking.Artifacts.PutArtifact(c.r.Context(), c.project, p.place, p.path, c.r.Body); err != nil {
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
		return nil, fault.New(fault.PermissionDenied, "the files of model version %s@%d are immutable", p.model, p.version).
			WithHint("Delete the version.")
	}
	return empty{}, a.tracking.Artifacts.DeleteArtifacts(c.r.Context(), c.project, p.place, p.path)
}

type listArtifacts struct {
	RunID string `json:"run_id" mlflow:"required,alias=run_uuid"`
	Path  string `json:"path"`
}

func serveListArtifacts(a *API, c *call, q *listArtifacts) (any, error) {
	r, err := a.tracking.Runs.Run(c.r.Context(), c.project, tracking.RunID(q.RunID))
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
	m, err := a.tracking.LoggedModels.LoggedModel(c.r.Context(), c.project, tracking.LoggedModelID(q.ModelID))
	if err != nil {
		return nil, err
	}
	return a.listing(c, tracking.Place{Model: m.ID}, q.Path, modelURI(m))
}

func (a *API) listing(c *call, place tracking.Place, dir, root string) (any, error) {
	entries, err := a.tracking.Artifacts.ListArtifacts(c.r.Context(), c.project, place, listed(strings.TrimSuffix(dir, "/")))
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
	if err := tracking.CheckPath(file); err != nil {
		return nil, err
	}
	if c.r.ContentLength == 0 {
		return nil, fault.New(fault.Invalid, "Request must specify data.")
	}
	const most = 10 << 20
	if c.r.ContentLength > most {
		return nil, fault.New(fault.Invalid, "Artifact size is too large. Max size is 10MB.")
	}
	if _, err := a.tracking.Artifacts.PutArtifact(c.r.Context(), c.project, tracking.Place{Run: tracking.RunID(runID)}, file, http.MaxBytesReader(c.w, c.r.Body, most)); err != nil {
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
