package httpapi

import (
	"context"

	"github.com/falaj-ml/falaj/internal/monitoring/alert"
)

// alertRoutes are those of what monitors tell: deliveries, and the secrets that
// sign them.
func (s *Server) alertRoutes(p string) {
	route(s, "GET", p+"/alerts", "monitor.read", "List alerts and their delivery to webhooks and commands, newest first", s.listAlerts)
	route(s, "POST", p+"/alerts/{id}/redeliver", "monitor.apply", "Redeliver an alert whose retries are exhausted", s.redeliverAlert)
	route(s, "GET", p+"/webhook-secrets", "monitor.read", "List the names of webhook signing secrets", s.listWebhookSecrets)
	route(s, "POST", p+"/webhook-secrets", "monitor.apply", "Set a webhook signing secret, or generate one that is returned once", s.setWebhookSecret)
	route(s, "DELETE", p+"/webhook-secrets/{name}", "monitor.apply", "Delete a webhook signing secret", s.deleteWebhookSecret)
}

func (s *Server) listAlerts(ctx context.Context, in *struct {
	InProject
	Page
	State alert.State `query:"state" enum:"queued,delivered,dead" doc:"Filter by state"`
},
) (*body[items[alert.Delivery]], error) {
	return named(in.Page, func(after string, limit int) ([]alert.Delivery, error) {
		return s.Alerts.Deliveries(ctx, in.Project, in.State, alert.ID(after), limit)
	}, func(d alert.Delivery) string { return string(d.ID) })
}

func (s *Server) redeliverAlert(ctx context.Context, in *struct {
	InProject
	ID string `path:"id" maxLength:"40" doc:"Delivery"`
},
) (*none, error) {
	return &none{}, s.Alerts.Redeliver(ctx, in.Project, alert.ID(in.ID))
}

func (s *Server) listWebhookSecrets(ctx context.Context, in *InProject) (*body[items[alert.Secret]], error) {
	all, err := s.Alerts.Secrets(ctx, in.Project)
	return listed(all, "", err)
}

type webhookSecretRequest struct {
	Name  string `json:"name" maxLength:"63" doc:"Name, as monitors use it"`
	Value string `json:"value,omitempty" maxLength:"200" doc:"whsec_ and the base64 of 24 to 64 random bytes; empty: generate one"`
}

type webhookSecretAnswer struct {
	Name   string `json:"name"`
	Secret string `json:"secret,omitempty" doc:"The generated secret; shown once"`
}

func (s *Server) setWebhookSecret(ctx context.Context, in *struct {
	InProject
	Body webhookSecretRequest
},
) (*body[webhookSecretAnswer], error) {
	made, err := s.Alerts.SetSecret(ctx, in.Project, in.Body.Name, in.Body.Value)
	return one(webhookSecretAnswer{Name: in.Body.Name, Secret: made}, err)
}

func (s *Server) deleteWebhookSecret(ctx context.Context, in *struct {
	InProject
	Name string `path:"name" maxLength:"63" doc:"Secret"`
},
) (*none, error) {
	return &none{}, s.Alerts.DeleteSecret(ctx, in.Project, in.Name)
}
