package doctor

import (
	"context"

	"github.com/falaj-ml/falaj/internal/config"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/resource"
	"github.com/falaj-ml/falaj/internal/store"
)

// upgradeFinding says whether the database waits for an upgrade, or is too new.
func upgradeFinding(ctx context.Context, cfg config.Config) []finding {
	of, err := database(cfg)
	if err != nil {
		return nil // the check of the files says so
	}
	u, err := store.Pending(ctx, of)
	switch {
	case fault.Is(err, fault.Conflict):
		return []finding{{"✗", err.Error(), fault.HintOf(err)}}
	case err != nil:
		return nil // whether the database can be used is another finding
	case !u.Pending():
		return nil
	}
	return []finding{{
		"!", "the database waits for an upgrade: " + u.String(),
		"`falaj up` of this version does it, and needs " + resource.Bytes(u.Room()).String() + " free beside it. Make a backup first: an older version cannot use it afterwards.",
	}}
}
