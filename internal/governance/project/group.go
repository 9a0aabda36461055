package project

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/id"
)

// groupPrefix begins the principal of a grant to a group.
const groupPrefix = "group/"

// Limits of groups.
const (
	MaxGroups    = 10_000 // of one person
	maxGroupName = 512    // bytes
)

// Group is the principal of grants to a group of an identity provider:
// "group/keycloak//ml/engineers". The name is the provider's, compared byte by byte.
func Group(provider, name string) string { return groupPrefix + provider + "/" + name }

// CutGroup takes a group's principal apart.
func CutGroup(principal string) (provider, name string, ok bool) {
	rest, ok := strings.CutPrefix(principal, groupPrefix)
	if !ok {
		return "", "", false
	}
	provider, name, ok = strings.Cut(rest, "/")
	return provider, name, ok && provider != "" && name != ""
}

// CheckGroup refuses what no group of a provider may be called. Error: fault.Invalid.
func CheckGroup(name string) error {
	switch {
	case name == "":
		return fault.New(fault.Invalid, "the name of a group is empty")
	case len(name) > maxGroupName:
		return fault.New(fault.Invalid, "group %.40q… has a name of %d bytes, at most %d are allowed", name, len(name), maxGroupName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fault.New(fault.Invalid, "group %.80q has a name with control characters or invalid UTF-8", name)
	}
	return nil
}

// checkGroupPrincipal refuses a principal that begins as a group's and is none.
func checkGroupPrincipal(principal string) error {
	provider, name, ok := CutGroup(principal)
	if !ok {
		return fault.New(fault.Invalid, "principal %.80q names no group", principal).
			WithHint("Write group/PROVIDER/NAME, with the group's name as the identity provider sends it, such as group/keycloak//ml/engineers.")
	}
	if err := id.CheckName("provider name", provider); err != nil {
		return err
	}
	return CheckGroup(name)
}
