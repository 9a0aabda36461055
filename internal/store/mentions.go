package store

import (
	"context"
	"strings"

	"github.com/uptrace/bun"
)

// Mention is a column of texts that may contain a word, with the object that each text belongs to.
type Mention struct {
	Table  string // or a query in brackets; it has a column project
	Column string
	By     string // SQL expression of that object, such as 'job ' || id
}

// Mentions calls each with the texts of a column, in a project's rows, that contain a word, and with
// the object of each. It reads the whole table. Case is compared as the database does.
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
