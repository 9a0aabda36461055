package mlflow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/jsondoc"
	"github.com/falaj-ml/falaj/internal/membudget"
	"github.com/falaj-ml/falaj/internal/share"
)

// decodeRequest fills q, a pointer to a struct, from the query of a GET and the
// JSON body of anything else, and from path wildcards. Field tags:
//
//	json:"run_id"              the name; camelCase is taken too
//	mlflow:"required"          absent, null or empty is an error
//	mlflow:"alias=run_uuid"    another name, used when the first is absent
//	mlflow:"path"              from the route's wildcard of that name
//
// As in proto2 JSON, integers and floats may be strings ("5", "NaN"), integers
// may have a zero fraction or an exponent (1e+05), null is absent, and unknown fields are ignored.
func decodeRequest(r *http.Request, q any) error {
	body := map[string]any{}
	fromQuery := r.Method == http.MethodGet
	if fromQuery {
		for k, vs := range r.URL.Query() {
			list := make([]any, len(vs))
			for i, v := range vs {
				list[i] = v
			}
			body[k] = list
		}
	} else {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return readError(err)
		}
		if body, err = parseBody(r.Context(), b); err != nil {
			return err
		}
	}
	defer share.TurnOf(r.Context()).End() // what follows asks the database
	v := reflect.ValueOf(q).Elem()
	if err := decodeStruct(body, v, "", fromQuery); err != nil {
		return err
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if hasOption(f, "path") {
			v.Field(i).SetString(r.PathValue(jsonName(f)))
		}
	}
	return nil
}

func readError(err error) error {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return err
	}
	if kind := fault.KindOf(err); kind == fault.TooLarge || kind == fault.Exhausted {
		return err
	}
	return fault.New(fault.Invalid, "the request's body could not be read: %w", err)
}

// parseBody reads a JSON object; nothing is an empty one, and one that was
// encoded twice, as old clients do, is decoded twice.
func parseBody(ctx context.Context, b []byte) (map[string]any, error) {
	if len(bytes.TrimSpace(b)) == 0 {
		return map[string]any{}, nil
	}
	var v any
	if err := jsondoc.Decode(b, &v); err != nil {
		return nil, fault.New(fault.Invalid, "the request's body is not JSON: %w", err)
	}
	if s, ok := v.(string); ok {
		turn := share.TurnOf(ctx)
		turn.End() // room may be waited for
		if err := membudget.CheckJSON(ctx, []byte(s)); err != nil {
			return nil, err
		}
		if len(s) >= share.Heavy/4 {
			if err := turn.Begin(ctx); err != nil {
				return nil, err
			}
		}
		v = nil
		if err := jsondoc.Decode([]byte(s), &v); err != nil {
			return nil, fault.New(fault.Invalid, "the request's body is not JSON: %w", err)
		}
	}
	switch v := v.(type) {
	case map[string]any:
		return v, nil
	case nil:
		return map[string]any{}, nil
	}
	return nil, fault.New(fault.Invalid, "the request's body is not a JSON object")
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func hasOption(f reflect.StructField, option string) bool {
	for o := range strings.SplitSeq(f.Tag.Get("mlflow"), ",") {
		if o == option {
			return true
		}
	}
	return false
}

func alias(f reflect.StructField) string {
	for o := range strings.SplitSeq(f.Tag.Get("mlflow"), ",") {
		if name, ok := strings.CutPrefix(o, "alias="); ok {
			return name
		}
	}
	return ""
}

// camel is proto's JSON name of a field.
func camel(name string) string {
	parts := strings.Split(name, "_")
	for i, p := range parts[1:] {
		if p != "" {
			parts[i+1] = strings.ToUpper(p[:1]) + p[1:]
		}
	}
	return strings.Join(parts, "")
}

func decodeStruct(body map[string]any, v reflect.Value, where string, fromQuery bool) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := jsonName(f)
		if name == "" || hasOption(f, "path") {
			continue
		}
		raw, ok := body[name]
		if other := camel(name); other != name {
			if second, both := body[other]; both {
				if ok {
					return fault.New(fault.Invalid, "Request specifies both '%s' and '%s'; provide only one of them.", name, other)
				}
				raw, ok = second, true
			}
		}
		if a := alias(f); a != "" && (!ok || raw == nil || raw == "") {
			raw = body[a]
		}
		full := where + name
		if list, isList := raw.([]any); fromQuery && isList && base(f.Type).Kind() != reflect.Slice {
			raw = nil
			if len(list) > 0 {
				raw = list[0]
			}
		}
		if raw == nil || raw == "" && hasOption(f, "required") {
			if hasOption(f, "required") {
				return missing(full)
			}
			continue
		}
		if err := decodeValue(raw, v.Field(i), full, fromQuery); err != nil {
			return err
		}
		if hasOption(f, "required") && v.Field(i).Kind() == reflect.String && v.Field(i).Len() == 0 {
			return missing(full)
		}
	}
	return nil
}

func base(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

const seeDocs = " See the API docs for more information about request parameters."

func missing(name string) error {
	return fault.New(fault.Invalid, "Missing value for required parameter '%s'."+seeDocs, name)
}

func invalid(name string, raw any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(raw) // what came from JSON goes to JSON
	return fault.New(fault.Invalid, "Invalid value %s for parameter '%s' supplied:  Hint: Value was of type '%s'."+seeDocs,
		clip(strings.TrimSpace(b.String())), name, pythonType(raw))
}

// pythonType is the name that MLflow's message gives a JSON value's type.
func pythonType(raw any) string {
	switch v := raw.(type) {
	case string:
		return "str"
	case bool:
		return "bool"
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return "float"
		}
		return "int"
	case []any:
		return "list"
	case map[string]any:
		return "dict"
	}
	return "NoneType"
}

// named is a string type with a closed set of values, which proto2 JSON also
// takes as numbers.
type named interface{ names() []string }

func decodeValue(raw any, v reflect.Value, where string, fromQuery bool) error {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		return decodeValue(raw, v.Elem(), where, fromQuery)
	}
	if n, ok := reflect.TypeAssert[named](v); ok {
		name, ok := enumName(raw, n.names())
		if !ok {
			return invalid(where, raw)
		}
		v.SetString(name)
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		s, ok := raw.(string)
		if !ok {
			return invalid(where, raw)
		}
		v.SetString(s)
	case reflect.Int64:
		n, ok := toInt(raw)
		if !ok {
			return invalid(where, raw)
		}
		v.SetInt(n)
	case reflect.Float64:
		x, ok := toFloat(raw)
		if !ok {
			return invalid(where, raw)
		}
		v.SetFloat(x)
	case reflect.Bool:
		b, ok := raw.(bool)
		if s, isText := raw.(string); isText && fromQuery {
			b, ok = strings.EqualFold(s, "true"), strings.EqualFold(s, "true") || strings.EqualFold(s, "false")
		}
		if !ok {
			return invalid(where, raw)
		}
		v.SetBool(b)
	case reflect.Slice:
		list, ok := raw.([]any)
		if !ok {
			return invalid(where, raw)
		}
		out := reflect.MakeSlice(v.Type(), len(list), len(list))
		for i, item := range list {
			if _, isText := item.(string); !isText && v.Type().Elem().Kind() == reflect.String && item != nil {
				return invalid(where, raw) // said of the list, as MLflow does
			}
			if err := decodeValue(item, out.Index(i), where+"["+strconv.Itoa(i)+"]", fromQuery); err != nil {
				return err
			}
		}
		v.Set(out)
	case reflect.Struct:
		m, ok := raw.(map[string]any)
		if !ok {
			return invalid(where, raw)
		}
		return decodeStruct(m, v, where+".", false)
	default:
		panic("mlflow: no decoding into " + v.Type().String())
	}
	return nil
}

// exponentRE is a decimal number as JSON has it, which a client may have put into a text.
var exponentRE = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

func toInt(raw any) (int64, bool) {
	var text string
	switch v := raw.(type) {
	case json.Number:
		text = v.String()
	case string:
		text = v
	default:
		return 0, false
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, true
	}
	if !exponentRE.MatchString(text) { // R writes 100000 as "1e+05"
		return 0, false
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || x != math.Trunc(x) || math.Abs(x) >= 1<<53 { // from there on a float is not exact
		return 0, false
	}
	return int64(x), true
}

func toFloat(raw any) (float64, bool) {
	switch v := raw.(type) {
	case json.Number:
		x, err := v.Float64()
		return x, err == nil
	case string:
		switch v {
		case "NaN":
			return math.NaN(), true
		case "Infinity":
			return math.Inf(1), true
		case "-Infinity":
			return math.Inf(-1), true
		}
		x, err := strconv.ParseFloat(v, 64)
		return x, err == nil && !math.IsNaN(x) && !math.IsInf(x, 0)
	}
	return 0, false
}

func enumName(raw any, names []string) (string, bool) {
	switch v := raw.(type) {
	case string:
		for _, n := range names {
			if n == v && n != "" {
				return n, true
			}
		}
		if n, err := strconv.Atoi(v); err == nil && n >= 0 && n < len(names) && names[n] != "" {
			return names[n], true // a GET's enum may be its number
		}
	case json.Number:
		n, err := strconv.Atoi(v.String())
		if err == nil && n >= 0 && n < len(names) && names[n] != "" {
			return names[n], true
		}
	}
	return "", false
}

// queryValue is a parameter of a route without a message.
func queryValue(q url.Values, name string) (string, error) {
	v := q.Get(name)
	if v == "" {
		return "", fault.New(fault.Invalid, "Request must specify %s.", name)
	}
	return v, nil
}

func clip(s string) string { return fault.Clip(s, 200) }
