package mlflow

import (
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/monitoring/webhook"
)

// Names of proto enumerations, by number.
type (
	webhookStatus string
	webhookEntity string
	webhookAction string
)

func (webhookStatus) names() []string { return []string{"", "ACTIVE", "DISABLED"} }

func (webhookEntity) names() []string {
	return []string{
		"", "REGISTERED_MODEL", "MODEL_VERSION", "MODEL_VERSION_TAG", "MODEL_VERSION_ALIAS",
		"PROMPT", "PROMPT_VERSION", "PROMPT_TAG", "PROMPT_VERSION_TAG", "PROMPT_ALIAS", "BUDGET_POLICY",
	}
}

func (webhookAction) names() []string {
	return []string{"", "CREATED", "UPDATED", "DELETED", "SET", "EXCEEDED"}
}

type webhookEvent struct {
	Entity webhookEntity `json:"entity"`
	Action webhookAction `json:"action"`
}

func (e webhookEvent) event() webhook.Event {
	return webhook.Event{Entity: strings.ToLower(string(e.Entity)), Action: strings.ToLower(string(e.Action))}
}

func eventsIn(in []webhookEvent) []webhook.Event {
	out := make([]webhook.Event, len(in))
	for i, e := range in {
		out[i] = e.event()
	}
	return out
}

type webhookBody struct {
	WebhookID            string         `json:"webhook_id"`
	Name                 string         `json:"name"`
	Description          string         `json:"description,omitempty"`
	URL                  string         `json:"url"`
	Events               []webhookEvent `json:"events"`
	Status               string         `json:"status"`
	CreationTimestamp    int64          `json:"creation_timestamp"`
	LastUpdatedTimestamp int64          `json:"last_updated_timestamp"`
}

type webhookAnswer struct {
	Webhook webhookBody `json:"webhook"`
}

func webhookOut(w webhook.Webhook) webhookBody {
	out := webhookBody{
		WebhookID: string(w.ID), Name: w.Name, Description: w.Description, URL: w.URL, Status: "ACTIVE",
		CreationTimestamp: w.Created.UnixMilli(), LastUpdatedTimestamp: w.Updated.UnixMilli(),
	}
	if w.Disabled {
		out.Status = "DISABLED"
	}
	for _, e := range w.Events {
		out.Events = append(out.Events, webhookEvent{webhookEntity(strings.ToUpper(e.Entity)), webhookAction(strings.ToUpper(e.Action))})
	}
	return out
}

func serveCreateWebhook(a *API, c *call, q *struct {
	Name        string         `json:"name" mlflow:"required"`
	URL         string         `json:"url" mlflow:"required"`
	Events      []webhookEvent `json:"events" mlflow:"required"`
	Description string         `json:"description"`
	Secret      string         `json:"secret"`
	Status      webhookStatus  `json:"status"`
},
) (any, error) {
	w, err := a.webhooks.Create(c.r.Context(), string(c.project), webhook.Webhook{
		Name: q.Name, Description: q.Description, URL: q.URL, Events: eventsIn(q.Events), Disabled: q.Status == "DISABLED",
	}, q.Secret)
	return webhookAnswer{webhookOut(w)}, err
}

func serveWebhooks(a *API, c *call, q *struct {
	MaxResults *int64 `json:"max_results"`
	PageToken  string `json:"page_token"`
},
) (any, error) {
	found, next, err := a.webhooks.List(c.r.Context(), string(c.project), limit(q.MaxResults, 0), q.PageToken)
	out := struct {
		Webhooks      []webhookBody `json:"webhooks,omitempty"`
		NextPageToken string        `json:"next_page_token,omitempty"`
	}{NextPageToken: next}
	for _, w := range found {
		out.Webhooks = append(out.Webhooks, webhookOut(w))
	}
	return out, err
}

type webhookQuery struct {
	WebhookID string `json:"webhook_id" mlflow:"path"`
}

func serveWebhook(a *API, c *call, q *webhookQuery) (any, error) {
	w, err := a.webhooks.Webhook(c.r.Context(), string(c.project), webhook.ID(q.WebhookID))
	return webhookAnswer{webhookOut(w)}, err
}

func serveUpdateWebhook(a *API, c *call, q *struct {
	WebhookID   string         `json:"webhook_id" mlflow:"path"`
	Name        string         `json:"name"`
	URL         string         `json:"url"`
	Events      []webhookEvent `json:"events"`
	Description *string        `json:"description"`
	Secret      *string        `json:"secret"`
	Status      *webhookStatus `json:"status"`
},
) (any, error) {
	u := webhook.Update{Description: q.Description, Events: eventsIn(q.Events), Secret: q.Secret}
	if q.Name != "" {
		u.Name = &q.Name
	}
	if q.URL != "" {
		u.URL = &q.URL
	}
	if q.Status != nil {
		off := *q.Status == "DISABLED"
		u.Disabled = &off
	}
	w, err := a.webhooks.Update(c.r.Context(), string(c.project), webhook.ID(q.WebhookID), u)
	return webhookAnswer{webhookOut(w)}, err
}

func serveDeleteWebhook(a *API, c *call, q *webhookQuery) (any, error) {
	return empty{}, a.webhooks.Delete(c.r.Context(), string(c.project), webhook.ID(q.WebhookID))
}

// serveTestWebhook tells what the receiver's status was and not what it said: the
// host may be one that only the operator reaches.
func serveTestWebhook(a *API, c *call, q *struct {
	WebhookID string        `json:"webhook_id" mlflow:"path"`
	Event     *webhookEvent `json:"event"`
},
) (any, error) {
	var e webhook.Event
	if q.Event != nil {
		e = q.Event.event()
	}
	status, failure, err := a.webhooks.Test(c.r.Context(), string(c.project), webhook.ID(q.WebhookID), e)
	type result struct {
		Success        bool   `json:"success"`
		ResponseStatus int    `json:"response_status,omitempty"`
		ErrorMessage   string `json:"error_message,omitempty"`
	}
	out := result{Success: failure == nil, ResponseStatus: status}
	if failure != nil {
		failure = a.ended(c.r, failure)
	}
	if failure != nil && status == 0 {
		out.ErrorMessage = "Failed to test webhook: " + clip(failure.Error())
		if hint := fault.HintOf(failure); hint != "" {
			out.ErrorMessage += ". " + hint
		}
	}
	return map[string]result{"result": out}, err
}
