package identity

import (
	"context"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/share"
)

// Share is for whom a slot is taken that work on the project needs. What Falaj's own
// loops do counts for the project alone.
func Share(ctx context.Context, p project.Name) share.Owner {
	o := share.Owner{Project: string(p)}
	if who := From(ctx); who.Kind != System {
		o.Principal = who.ID
	}
	return o
}
