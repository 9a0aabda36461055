package store

import (
	"context"
	"strings"

	"github.com/uptrace/bun"
)

// Mentions gives each the texts of a column that have a word in them, of a
// project's rows. It reads the whole table; capital letters are those of the
// database.
func Mentions(ctx context.Context, tx *Tx, table, column, project, word string, each func(text string)) error {
	pattern := "%" + strings.NewReplacer("!", "!!", "%", "!%", "_", "!_").Replace(word) + "%"
	rows, err := tx.NewSelect().Table(table).Column(column).Where("project = ?", project).
		Where("? LIKE ? ESCAPE '!'", bun.Ident(column), pattern).Rows(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return err
		}
		each(text)
	}
	return rows.Err()
}
