package privacy

import "testing"

func TestTheCanonicalCertificate(t *testing.T) {
	t.Parallel()
	got, err := Canonical(Erasure{ID: "ers_1", Project: "shop", Reason: "a < b & \"c\" \\u2028 \u2028\u2029 é", Places: []Place{{Kind: "datasets", Name: "orders@1", Rows: 1 << 60}}})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"deadline":"0001-01-01T00:00:00Z","entity":"","id":"ers_1","places":[{"kind":"datasets","name":"orders@1","rows":1152921504606846976}],"project":"shop","pseudonym":"","reason":"a < b & \"c\" \\u2028 ` + "\u2028\u2029" + ` é","requested_at":"0001-01-01T00:00:00Z","requested_by":"","state":""}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
