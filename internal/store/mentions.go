package store

import (
	"context"
	"strings"

	"github.com/uptrace/bun"
)

// Mention is a place that may name something: a column of texts, with who says them.
type Mention struct {
	Table  string // or a query in brackets; it has a column project
	Column string
	By     string // SQL expression of who says it, such as 'job ' || id
}

// Mentions gives each the texts of a column that have a word in them, of a
// project's rows, and who says them. It reads the whole table; capital letters are
// those of the database.
func Mentions(ctx context.Context, tx *Tx, m Mention, project, word string, each func(by, text string)) error {
	rows, err := tx.NewSelect().TableExpr(m.Table+" AS t").ColumnExpr(m.By).Column(m.Column).Where("project = ?", project).
		Where("? LIKE ? ESCAPE '!'", bun.Ident(m.Column), "%"+like(word)+"%").Rows(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var by, text string
		if err := rows.Scan(&by, &text); err != nil {
			return err
		}
		each(by, text)
	}
	return rows.Err()
}

// like is a word as it stands in a pattern, whatever signs of patterns are in it.
func like(word string) string {
	return strings.NewReplacer("!", "!!", "%", "!%", "_", "!_").Replace(word)
}
