package deployments

import (
	"context"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/governance/project"
	"github.com/falaj-ml/falaj/internal/registry"
	"github.com/falaj-ml/falaj/internal/serving"
	"github.com/falaj-ml/falaj/internal/store"
)

// AnswersWith names the deployments that answer with a model version, which is written as
// "model delay@3".
func AnswersWith(ctx context.Context, s *serving.Deployments, tx *store.Tx, p project.Name, by string) ([]string, error) {
	model, ok := strings.CutPrefix(by, "model ")
	if !ok {
		return nil, nil
	}
	name, number, _ := registry.SplitRef(model)
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return nil, nil //nolint:nilerr // it is another model's record
	}
	user, err := s.UserOf(ctx, tx, string(p), name, n)
	if err != nil || user == "" {
		return nil, err
	}
	return []string{user}, nil
}
