package project

// The events about grants; their body is the Grant.
const (
	MemberGranted = "member.granted"
	MemberRevoked = "member.revoked"
)
