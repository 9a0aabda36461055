package search

import (
	"strings"
)

// Where is the SQL condition of a comparison on a column (a trusted expression,
// never text of a request) with its arguments for '?' placeholders. sqlite says
// which database asks: LIKE compares case on PostgreSQL only, so SQLite gets
// GLOB. A NULL column matches nothing but IS NULL.
func Where(c Comparison, column string, numeric, sqlite bool) (string, []any) {
	var value any = c.Text
	if numeric {
		value = c.Number
	}
	switch c.Op {
	case IsNull:
		return column + " IS NULL", nil
	case IsNotNull:
		return column + " IS NOT NULL", nil
	case In, NotIn:
		args := make([]any, len(c.List))
		for i, v := range c.List {
			args[i] = v
		}
		return column + " " + string(c.Op) + " (?" + strings.Repeat(", ?", len(args)-1) + ")", args
	case Like:
		if sqlite {
			return column + " GLOB ?", []any{glob(c.Text)}
		}
		return column + " LIKE ? ESCAPE ''", []any{c.Text}
	case ILike:
		if sqlite {
			return "LOWER(" + column + ") LIKE LOWER(?)", []any{c.Text}
		}
		return "LOWER(" + column + ") LIKE LOWER(?) ESCAPE ''", []any{c.Text}
	default:
	}
	return column + " " + string(c.Op) + " ?", []any{value}
}

// glob turns a LIKE pattern into the GLOB pattern with the same matches.
func glob(like string) string {
	var b strings.Builder
	for _, r := range like {
		switch r {
		case '%':
			b.WriteByte('*')
		case '_':
			b.WriteByte('?')
		case '*', '?', '[':
			b.WriteByte('[')
			b.WriteRune(r)
			b.WriteByte(']')
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
