// Package alert tells people and their systems of what a monitor found: a signed
// CloudEvent to a webhook, or a command of the operator's with the event on its
// standard input.
//
// # Map
//
//   - alert.go: Target, Alert and Delivery; the CloudEvent.
//   - sender.go: Sender, the only way in: Enqueue, the loop, what was delivered.
//   - webhook.go: one HTTP delivery; which addresses may be reached.
//   - secret.go: the secrets that sign; command.go: one command.
//   - store.go says what it needs from a database; alertsql implements that.
//
// delivery: queued → delivered | dead (back to queued by Redeliver).
//
// # Guarantees
//
// An alert is queued in the transaction of what it tells of, so neither exists
// without the other. It is delivered at least once, with the same webhook-id each
// time, or is dead with a reason; both are in the audit log. A target that hangs
// or fails holds up its own alerts only, in their order, and is asked again with
// growing pauses, until the alert is a day old.
//
// A webhook reaches public addresses only, unless the operator's configuration
// names its host: the address is checked when the connection is made, after the
// name was resolved, and for each redirect again, so that a name that changes
// its mind (DNS rebinding) gains nothing. Of a host that is not named, a failed attempt
// says only that: package outbound. What is told obeys residency: the zone
// of the receiver, which nobody guesses, must be in the label of the data. Secrets lie sealed in the
// database, are opened to sign, and are never answered.
//
// A command runs in a sandbox, without our keys, files or network.
//
// # What the caller owes
//
// Enqueue asks for no permission: who may make the monitor decided that.
package alert

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/governance/residency"
	"github.com/falaj-ml/falaj/internal/id"
)

// Limits.
const (
	MaxData    = 64 << 10 // bytes of an alert's data; more is left out, and the event says so
	MaxTargets = 10       // of one alert
	MaxQueued  = 1000     // deliveries of a project that wait; more are dead at once
	maxURL     = 2000
	maxArgs    = 32
	maxArg     = 4096
)

// Target is where an alert goes. Exactly one of Webhook and Command is set.
type Target struct {
	Webhook string         `json:"webhook,omitempty" doc:"https URL that gets a CloudEvent by POST"`
	Secret  string         `json:"secret,omitempty" doc:"Name of the webhook secret that signs it (Standard Webhooks); empty is unsigned"`
	Zone    residency.Zone `json:"zone,omitempty" doc:"Zone of the receiver; default home for hosts in the operator's alerts.hosts, otherwise required"`
	Command []string       `json:"command,omitempty" doc:"Program of the operator's alerts.commands directory, and its arguments; it gets the event on standard input"`
}

// Validate says what is wrong with the target. Error: fault.Invalid.
func (t Target) Validate() error {
	switch {
	case (t.Webhook == "") == (len(t.Command) == 0):
		return fault.New(fault.Invalid, "set either webhook or command").WithHint("Each target has exactly one of webhook: and command:.")
	case t.Webhook != "":
		u, err := url.Parse(t.Webhook)
		if err != nil || len(t.Webhook) > maxURL || u.Hostname() == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
			return fault.New(fault.Invalid, "the webhook URL is invalid").
				WithHint("Write https://host/path without user information, at most %d bytes.", maxURL)
		}
		if t.Secret != "" {
			return id.CheckName("secret", t.Secret)
		}
		return nil
	case t.Secret != "" || t.Zone != "":
		return fault.New(fault.Invalid, "secret and zone are valid only with a webhook")
	case len(t.Command) > maxArgs:
		return fault.New(fault.TooLarge, "a command may have at most %d words", maxArgs)
	}
	for _, arg := range t.Command {
		if len(arg) > maxArg || strings.ContainsRune(arg, 0) {
			return fault.New(fault.Invalid, "a word of the command exceeds %d bytes or contains a NUL byte", maxArg)
		}
	}
	if name := t.Command[0]; name == "" || name[0] == '.' || strings.ContainsRune(name, '/') {
		return fault.New(fault.Invalid, "command %q is not a file name", clip(name)).
			WithHint("Name a file in the directory of alerts.commands in the configuration.")
	}
	return nil
}

// String is the target for people: without path and query, which may be secret.
func (t Target) String() string {
	if t.Webhook == "" {
		return "command " + strings.Join(t.Command[:min(1, len(t.Command))], "")
	}
	u, err := url.Parse(t.Webhook)
	if err != nil {
		return "webhook"
	}
	return "webhook " + u.Scheme + "://" + u.Host
}

// key is the same for what is delivered in order, to one place.
func (t Target) key(project string) string {
	b, _ := json.Marshal(t) //nolint:gosec // G117: the name of a secret. Strings cannot fail.
	sum := sha256.Sum256(append([]byte(project+"\n"), b...))
	return hex.EncodeToString(sum[:16])
}

// Alert is what is told.
type Alert struct {
	Project string
	Key     string          // the same alert is queued once for each target; empty is always new
	Type    string          // "monitor.drifted"; the event's type is "dev.falaj." and this
	Source  string          // URI reference of what found it, "/projects/nyc/monitors/delay"
	Subject string          // what it is about; may be empty
	Time    time.Time       // when it happened
	Label   residency.Label // where the data may be
	Data    json.RawMessage // an object; over MaxData it is left out
	Targets []Target
	// Form, if not empty, is how it is delivered, see Sender.Form: Body as it is,
	// instead of a CloudEvent of Data.
	Form string
	Body []byte
}

// State of a delivery.
type State string

// The states.
const (
	Queued    State = "queued"
	Delivered State = "delivered"
	Dead      State = "dead" // not delivered, and not tried again; see Reason
)

// ID names a delivery: "dlv_01J…".
type ID string

// Delivery is an alert on its way to one target.
type Delivery struct {
	ID       ID        `json:"id"`
	Project  string    `json:"project"`
	Target   string    `json:"target"`   // for people
	Event    string    `json:"event_id"` // the CloudEvent's id and the webhook-id
	Type     string    `json:"type"`
	Source   string    `json:"source"`
	State    State     `json:"state"`
	Attempts int64     `json:"attempts"`
	Created  time.Time `json:"created_at"`
	Next     time.Time `json:"next_at,omitzero"`  // when it is tried next, while queued
	Ended    time.Time `json:"ended_at,omitzero"` // when it was delivered or given up
	Reason   string    `json:"reason,omitempty"`  // of the last failure
}

// cloudEvent is CloudEvents 1.0 in its structured JSON form.
type cloudEvent struct {
	SpecVersion     string          `json:"specversion"`
	ID              string          `json:"id"`
	Source          string          `json:"source"`
	Type            string          `json:"type"`
	Subject         string          `json:"subject,omitempty"`
	Time            string          `json:"time"`
	DataContentType string          `json:"datacontenttype,omitempty"`
	Truncated       bool            `json:"falajtruncated,omitempty"` // an extension: the data was too large
	Data            json.RawMessage `json:"data,omitempty"`
}

func (a Alert) encode(eventID string) ([]byte, error) {
	if a.Form != "" {
		return a.Body, nil
	}
	e := cloudEvent{
		SpecVersion: "1.0", ID: eventID, Source: a.Source, Type: "dev.falaj." + a.Type, Subject: a.Subject,
		Time: a.Time.UTC().Format(time.RFC3339Nano), DataContentType: "application/json", Data: a.Data,
	}
	if len(a.Data) > MaxData || len(a.Data) == 0 {
		e.Truncated, e.Data, e.DataContentType = len(a.Data) > 0, nil, ""
	}
	b, err := json.Marshal(e)
	return b, fault.Wrap(err, "alert %s", a.Type)
}

func (a Alert) validate() error {
	if a.Project == "" || a.Type == "" || a.Source == "" || a.Time.IsZero() || len(a.Source)+len(a.Subject)+len(a.Type)+len(a.Key) > maxURL {
		return fault.New(fault.Internal, "an alert requires a project, a type, a source and a time")
	}
	if len(a.Body) > MaxData {
		return fault.New(fault.TooLarge, "an alert's message has %d bytes, over the limit of %d", len(a.Body), MaxData)
	}
	if len(a.Targets) > MaxTargets {
		return fault.New(fault.TooLarge, "an alert has %d targets, over the limit of %d", len(a.Targets), MaxTargets)
	}
	for _, t := range a.Targets {
		if err := t.Validate(); err != nil {
			return err
		}
	}
	return nil
}

func clip(s string) string { return fault.Clip(s, 80) }
