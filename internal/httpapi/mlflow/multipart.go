package mlflow

import (
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// A file in parts: the client asks for a URL for each part, sends them beside each
// other, and says when all are there. What is sent is encrypted here before it is
// stored, so the URLs are this server's, and the headers that go with them are the
// caller's own authorisation.

type multipartQuery struct {
	Path     string `json:"path" mlflow:"required"`
	NumParts *int64 `json:"num_parts"`
	UploadID string `json:"upload_id"`
	Parts    []struct {
		PartNumber int64  `json:"part_number"`
		ETag       string `json:"etag"`
		URL        string `json:"url"`
	} `json:"parts"`
}

// destination is the place and path of the file: the directory of the request's
// path, and the name of the client's file.
func (q *multipartQuery) destination(c *call) (tracking.Place, string, error) {
	dir, err := parseProxied(strings.TrimSuffix(c.r.PathValue("path"), "/"))
	if err != nil {
		return tracking.Place{}, "", err
	}
	if dir.model != "" {
		return tracking.Place{}, "", fault.New(fault.PermissionDenied, "the files of model version %s@%d are immutable", dir.model, dir.version)
	}
	return dir.place, path.Join(dir.path, q.Path[strings.LastIndexAny(q.Path, `/\`)+1:]), nil
}

type credential struct {
	URL        string            `json:"url"`
	PartNumber int               `json:"part_number"`
	Headers    map[string]string `json:"headers,omitempty"`
}

func serveBeginMultipart(a *API, c *call, q *multipartQuery) (any, error) {
	place, name, err := q.destination(c)
	if err != nil {
		return nil, err
	}
	u, err := a.tracking.Uploads.BeginUpload(c.r.Context(), c.project, place, name, limit(q.NumParts, 1))
	if err != nil {
		return nil, err
	}
	prefix, _, _ := strings.Cut(c.r.URL.Path, "/mlflow-artifacts/")
	base := origin(c.r) + prefix + "/mlflow-artifacts/mpu/parts/" + string(u.ID) + "/"
	out := struct {
		UploadID    string       `json:"upload_id"`
		Credentials []credential `json:"credentials"`
	}{string(u.ID), make([]credential, u.Parts)}
	for i := range out.Credentials {
		out.Credentials[i] = credential{URL: base + strconv.Itoa(i+1), PartNumber: i + 1, Headers: map[string]string{"Authorization": c.r.Header.Get("Authorization")}}
		if narrowed := c.r.Header.Get("Falaj-Project"); narrowed != "" {
			out.Credentials[i].Headers["Falaj-Project"] = narrowed
		}
	}
	return out, nil
}

// origin is how the caller reaches this server.
func origin(r *http.Request) string {
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

func servePutPart(a *API, c *call) (any, error) {
	n, err := strconv.Atoi(c.r.PathValue("number"))
	if err != nil {
		return nil, fault.New(fault.Invalid, "'%s' is not a part number", clip(c.r.PathValue("number")))
	}
	digest, err := a.tracking.Uploads.PutPart(c.r.Context(), c.project, tracking.UploadID(c.r.PathValue("upload")), n, c.r.Body)
	if err != nil {
		return nil, err
	}
	c.w.Header().Set("ETag", `"`+digest+`"`)
	return empty{}, nil
}

func serveFinishMultipart(a *API, c *call, q *multipartQuery) (any, error) {
	place, name, err := q.destination(c)
	if err != nil {
		return nil, err
	}
	named := make([]tracking.Parted, len(q.Parts))
	for i, p := range q.Parts {
		named[i] = tracking.Parted{Number: int(min(max(p.PartNumber, 0), tracking.MaxParts+1)), Digest: p.ETag}
	}
	return empty{}, a.tracking.Uploads.FinishUpload(c.r.Context(), c.project, place, name, tracking.UploadID(q.UploadID), named)
}

func serveAbortMultipart(a *API, c *call, q *multipartQuery) (any, error) {
	return empty{}, a.tracking.Uploads.AbortUpload(c.r.Context(), c.project, tracking.UploadID(q.UploadID))
}

// Presigned URLs lead past the server into the store. What is there is encrypted
// with keys that no client has, so these answer what a real MLflow server does
// that keeps its artifacts behind itself.

const longestSigned = 604_800 // seconds

type presigned struct {
	RunID   string `json:"run_id"`
	ModelID string `json:"model_id"`
	Path    string `json:"path" mlflow:"required"`
}

func servePresignedUpload(a *API, c *call, q *presigned) (any, error) {
	if (q.RunID == "") == (q.ModelID == "") {
		return nil, fault.New(fault.Invalid, "Exactly one of run_id and model_id must be provided.")
	}
	if err := tracking.CheckPath(q.Path); err != nil {
		return nil, err
	}
	var err error
	if q.RunID != "" {
		_, err = a.tracking.Runs.Run(c.r.Context(), c.project, tracking.RunID(q.RunID))
	} else {
		_, err = a.tracking.LoggedModels.LoggedModel(c.r.Context(), c.project, tracking.LoggedModelID(q.ModelID))
	}
	if err != nil {
		return nil, err
	}
	return nil, fault.New(fault.Invalid, "Presigned upload is not supported for proxied artifact storage (artifact URI scheme: mlflow-artifacts). This endpoint requires a direct cloud storage artifact URI.").
		WithHint("Upload through the server.")
}

func servePresignedDownload(a *API, c *call, q *struct {
	RunID      string `json:"run_id" mlflow:"required"`
	Path       string `json:"path" mlflow:"required"`
	Expiration *int64 `json:"expiration"`
},
) (any, error) {
	if err := tracking.CheckPath(q.Path); err != nil {
		return nil, err
	}
	if e := q.Expiration; e != nil && (*e < 1 || *e > longestSigned) {
		return nil, fault.New(fault.Invalid, "expiration must be between 1 and %d seconds (got %d).", longestSigned, *e)
	}
	if _, err := a.tracking.Runs.Run(c.r.Context(), c.project, tracking.RunID(q.RunID)); err != nil {
		return nil, err
	}
	return nil, fault.New(fault.Invalid, "Presigned download is not supported for runs with proxied artifact storage (artifact URI scheme: mlflow-artifacts). This endpoint requires a run with a direct cloud storage artifact URI.").
		WithHint("Download through the server.")
}
