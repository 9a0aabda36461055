package search

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/falaj-ml/falaj/internal/fault"
)

// maxOffset bounds how far a client may page.
const maxOffset = 100_000_000

// Token is the page token that goes on after offset results.
func Token(offset int) string {
	b, err := json.Marshal(struct {
		Offset int `json:"offset"`
	}{offset})
	if err != nil {
		panic(err) // a struct of an int always encodes
	}
	return base64.StdEncoding.EncodeToString(b)
}

// Offset reads a page token; an empty one is 0. Errors are fault.Invalid.
func Offset(token string) (int, error) {
	if token == "" {
		return 0, nil
	}
	b, err := base64.StdEncoding.DecodeString(token)
	if err != nil {
		return 0, fault.New(fault.Invalid, "Invalid page token, could not base64-decode")
	}
	var t struct {
		Offset int `json:"offset"`
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return 0, fault.New(fault.Invalid, "Invalid page token, decoded value=b'%s'", clip(strings.Trim(strconv.QuoteToASCII(string(b)), `"`)))
	}
	if t.Offset <= 0 || t.Offset > maxOffset {
		return 0, fault.New(fault.Invalid, "Invalid page token, parsed value=%s", clip(string(b)))
	}
	return t.Offset, nil
}
