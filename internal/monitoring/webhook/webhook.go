// Package webhook tells other systems what happens to registered models, as
// MLflow's webhooks do.
//
// # Map
//
//   - webhook.go: Webhook and its rules; what is told, in MLflow's words.
//   - service.go: Service, the only way in.
//   - store.go says what it needs from a database; webhooksql implements that.
//
// # Guarantees
//
// What is told is queued in the transaction of the change it tells of, and
// delivered by package alert: at least once, with the same X-MLflow-Delivery-Id
// each time, for a day at most, to public addresses and hosts that the operator's
// configuration names, and to where the model's label lets it go. Redirects are
// not followed. MLflow cannot say in which zone a receiver stands, so the URL's
// fragment does, https://host/path#zone=AE, which is not sent.
//
// A secret lies sealed in the database, is opened to sign, and is never answered.
package webhook

import (
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/monitoring/alert"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/tracking"
)

// Limits.
const (
	MaxWebhooks    = 100 // of a project
	MaxPage        = 1000
	maxURL         = 2000
	maxDescription = 1000
	maxSecret      = 1000
)

// ID names a webhook: "wh_01J…".
type ID string

// Event is what a webhook hears of, in MLflow's words: "model_version" "created".
type Event struct {
	Entity string `json:"entity"`
	Action string `json:"action"`
}

// String is "model_version.created".
func (e Event) String() string { return e.Entity + "." + e.Action }

// actions are MLflow's entities and what may happen to each. Of prompts and
// budgets a webhook may want to hear, and hears nothing: there are none.
var actions = map[string][]string{
	"registered_model": {"created"}, "model_version": {"created"}, "model_version_tag": {"deleted", "set"}, "model_version_alias": {"created", "deleted"},
	"prompt": {"created"}, "prompt_version": {"created"}, "prompt_tag": {"deleted", "set"}, "prompt_version_tag": {"deleted", "set"}, "prompt_alias": {"created", "deleted"},
	"budget_policy": {"exceeded"},
}

// Webhook is who is told of what.
type Webhook struct {
	Project     string
	ID          ID
	Name        string // need not be unique
	Description string
	URL         string
	Events      []Event
	Disabled    bool
	Sealed      []byte // secret; nil is unsigned
	Created     time.Time
	Updated     time.Time
}

var nameRE = regexp.MustCompile(`^[a-zA-Z0-9](?:[a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?$`)

func (w Webhook) validate() error {
	if !nameRE.MatchString(w.Name) {
		return fault.New(fault.Invalid, "Webhook name '%s' is invalid. It must start and end with a letter or digit, be less than 63 characters long, and contain only letters, digits, dots (.), underscores (_), and hyphens (-).", clip(w.Name))
	}
	if strings.TrimSpace(w.URL) == "" {
		return fault.New(fault.Invalid, "Webhook URL cannot be empty or just whitespace: '%s'", clip(w.URL))
	}
	u, err := url.Parse(w.URL)
	switch {
	case err != nil || len(w.URL) > maxURL:
		return fault.New(fault.Invalid, "Invalid webhook URL '%s'", clip(w.URL))
	case u.Scheme != "https" && u.Scheme != "http":
		return fault.New(fault.Invalid, "Invalid webhook URL scheme: '%s'. Allowed schemes are: https, http.", clip(u.Scheme))
	case u.Hostname() == "":
		return fault.New(fault.Invalid, "Webhook URL must include a hostname: '%s'", clip(w.URL))
	case u.User != nil:
		return fault.New(fault.Invalid, "Webhook URL must not include embedded credentials")
	case len(w.Description) > maxDescription:
		return fault.New(fault.Invalid, "'description' exceeds the maximum length of %d characters", maxDescription)
	case len(w.Events) == 0:
		return fault.New(fault.Invalid, "Webhook events must be a non-empty list of WebhookEvent objects: [].")
	}
	for _, e := range w.Events {
		if !slices.Contains(actions[e.Entity], e.Action) {
			return fault.New(fault.Invalid, "Invalid action '%s' for entity '%s'. Valid actions are: ['%s']", clip(e.Action), clip(e.Entity), strings.Join(actions[e.Entity], "', '"))
		}
	}
	return nil
}

// target is where its messages go: the URL without the fragment, which says the
// receiver's zone.
func (w Webhook) target() (alert.Target, error) {
	u, err := url.Parse(w.URL)
	if err != nil {
		return alert.Target{}, fault.New(fault.Invalid, "Invalid webhook URL '%s'", clip(w.URL))
	}
	said, err := url.ParseQuery(u.Fragment)
	if err != nil {
		return alert.Target{}, fault.New(fault.Invalid, "Invalid webhook URL fragment '%s'", clip(u.Fragment)).WithHint("Write #zone=ZONE.")
	}
	u.Fragment, u.RawFragment = "", ""
	return alert.Target{Webhook: u.String(), Zone: residency.Zone(said.Get("zone"))}, nil
}

// events are MLflow's words for what happens to registered models.
var events = map[registry.ChangeKind]Event{
	registry.ModelCreated: {"registered_model", "created"}, registry.VersionCreated: {"model_version", "created"},
	registry.VersionTagSet: {"model_version_tag", "set"}, registry.VersionTagDeleted: {"model_version_tag", "deleted"},
	registry.AliasSet: {"model_version_alias", "created"}, registry.AliasDeleted: {"model_version_alias", "deleted"},
}

// data is the payload that MLflow sends of a change.
func data(c registry.Change) map[string]any {
	tags := map[string]string{}
	for _, t := range c.Tags {
		tags[t.Key] = t.Value
	}
	d := map[string]any{"name": c.Model}
	switch c.Kind {
	case registry.ModelCreated:
		d["tags"], d["description"] = tags, orNull(c.Description)
	case registry.VersionCreated:
		d["version"], d["source"], d["run_id"] = itoa(c.Version), c.Source, orNull(string(c.Run))
		d["tags"], d["description"] = tags, orNull(c.Description)
	case registry.VersionTagSet:
		d["version"], d["key"], d["value"] = itoa(c.Version), c.Key, c.Value
	case registry.VersionTagDeleted:
		d["version"], d["key"] = itoa(c.Version), c.Key
	case registry.AliasSet:
		d["alias"], d["version"] = c.Alias, itoa(c.Version)
	case registry.AliasDeleted:
		d["alias"] = c.Alias
	}
	return d
}

// example is the change of which a test tells.
func example(e Event) registry.Change {
	c := registry.Change{
		Model: "example_model", Version: 1, Alias: "example_alias", Key: "example_key", Value: "example_value", Source: "models:/123", Run: "abcd1234abcd5678",
		Description: "An example " + strings.ReplaceAll(e.Entity, "_", " "), Tags: []tracking.Pair{{Key: "example_key", Value: "example_value"}},
	}
	for kind, of := range events {
		if of == e {
			c.Kind = kind
		}
	}
	return c
}

// message is the body of a delivery.
func message(e Event, at time.Time, data map[string]any) ([]byte, error) {
	b, err := json.Marshal(struct {
		Entity    string         `json:"entity"`
		Action    string         `json:"action"`
		Timestamp string         `json:"timestamp"`
		Data      map[string]any `json:"data"`
	}{e.Entity, e.Action, at.UTC().Format("2006-01-02T15:04:05.000000-07:00"), data})
	if err == nil && len(b) > alert.MaxData { // a description may be long; its model is asked for it
		delete(data, "description")
		delete(data, "tags")
		delete(data, "value")
		return message(e, at, data)
	}
	return b, err
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func clip(s string) string { return fault.Clip(s, 120) }
