package registry

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// Source is where a version's files come from: the artifacts of a run or a
// logged model below Path, or another version.
type Source struct {
	Place   tracking.Place
	Path    string // within the place; empty is all of it
	Model   string // another registered model, by its name or as in the address of its files
	Version int    // its version, or
	Alias   string // its alias
}

var (
	runsRE      = regexp.MustCompile(`^runs:/+([A-Za-z0-9_-]+)(?:/(.+))?$`)
	modelsRE    = regexp.MustCompile(`^models:/+(?:([^/]+)/([^/]+)|([^/]+)@([^/@]+)|([^/@]+))$`) // a name may have an @ of its own
	artifactsRE = regexp.MustCompile(`^mlflow-artifacts:/([^/].*)$`)
	pathRunRE   = regexp.MustCompile(`^[0-9]+/(run_[A-Za-z0-9]+|[0-9a-f]{32})/artifacts(?:/(.+))?$`)
	pathModelRE = regexp.MustCompile(`^[0-9]+/models/(m_[A-Za-z0-9]+|m-[0-9a-f]{32})/artifacts(?:/(.+))?$`)
	pathVerRE   = regexp.MustCompile(`^registry/([^/]+)/([0-9]+)$`)
)

// ParseSource reads a source. Only these are accepted, and by their whole form:
//
//	runs:/RUN/PATH   models:/LOGGED_MODEL   models:/NAME/VERSION   models:/NAME@ALIAS
//	mlflow-artifacts:/EXPERIMENT/RUN/artifacts/PATH
//	mlflow-artifacts:/EXPERIMENT/models/LOGGED_MODEL/artifacts/PATH
//	mlflow-artifacts:/registry/NAME/VERSION
//
// No host, query, fragment, percent-encoding, dot segment, file name, other
// scheme, or relative path: each has been a way into a server. Only the name of a
// registered model may have any of these characters, which is looked up as it is. run and model are
// what the request says beside it; where given they must agree. Error:
// fault.Invalid.
func ParseSource(source string, run tracking.RunID, model tracking.LoggedModelID) (Source, error) {
	refuse := func(why string) (Source, error) {
		return Source{}, fault.New(fault.Invalid, "Invalid model version source: '%s'. %s", clip(source), why).
			WithHint("Log the model to a run first, and register runs:/RUN_ID/PATH or models:/MODEL_ID.")
	}
	if source == "" {
		return Source{}, fault.New(fault.Invalid, "Missing value for required parameter 'source'.")
	}
	m := modelsRE.FindStringSubmatch(source)
	if len(source) > MaxSource || m == nil && strings.ContainsAny(source, "#?%\\\x00") {
		return refuse("It is too long or has one of # ? % \\.")
	}
	var src Source
	if m != nil {
		switch {
		case m[2] != "":
			n, err := strconv.Atoi(m[2])
			if err != nil || n < 1 || itoa(n) != m[2] {
				return refuse("Write the version as a number.")
			}
			src.Model, src.Version = m[1], n
		case m[4] != "":
			src.Model, src.Alias = m[3], m[4]
		default:
			src.Place.Model = tracking.LoggedModelID(m[5])
		}
	} else if m := runsRE.FindStringSubmatch(source); m != nil {
		src.Place.Run, src.Path = tracking.RunID(m[1]), m[2]
	} else if m := artifactsRE.FindStringSubmatch(source); m != nil {
		if r := pathRunRE.FindStringSubmatch(m[1]); r != nil {
			src.Place.Run, src.Path = tracking.RunID(r[1]), r[2]
		} else if r := pathModelRE.FindStringSubmatch(m[1]); r != nil {
			src.Place.Model, src.Path = tracking.LoggedModelID(r[1]), r[2]
		} else if r := pathVerRE.FindStringSubmatch(m[1]); r != nil {
			n, err := strconv.Atoi(r[2])
			if err != nil || n < 1 {
				return refuse("Write the version as a number.")
			}
			src.Model, src.Version = r[1], n
		} else {
			return refuse("It names no artifacts of a run or logged model.")
		}
	} else {
		return refuse("Models are registered from runs and logged models of this server, not from paths or other addresses.")
	}
	switch {
	case src.Model != "":
		if err := CheckAddress(src.Model); err != nil {
			return refuse(err.Error())
		}
	case src.Place.Run != "":
		if err := tracking.CheckRunID(src.Place.Run); err != nil {
			return refuse(err.Error())
		}
		if run != "" && run != src.Place.Run {
			return refuse("The run_id request parameter must identify the resource that contains the source.")
		}
	default:
		if err := tracking.CheckModelID(src.Place.Model); err != nil {
			return refuse(err.Error())
		}
		if model != "" && model != src.Place.Model {
			return refuse("The model_id request parameter must identify the resource that contains the source.")
		}
	}
	if err := tracking.CheckPath(src.Path); err != nil {
		return refuse(err.Error())
	}
	return src, nil
}
