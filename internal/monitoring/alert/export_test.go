package alert

// Sign is the signature, for tests that check it from outside.
var Sign = sign
