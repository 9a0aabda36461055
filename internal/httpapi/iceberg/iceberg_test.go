package iceberg_test

import (
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/falaj-ml/falaj/internal/dataset"
	"github.com/falaj-ml/falaj/internal/dataset/datasettest"
	"github.com/falaj-ml/falaj/internal/httpapi/iceberg"
)

// TestTexts holds the forms and names that clients look for.
func TestTexts(t *testing.T) {
	w := open(t)
	w.weather(t)
	const v1, table = "/iceberg/v1", "/iceberg/v1/namespaces/nyc/tables/"
	get, head, post := http.MethodGet, http.MethodHead, http.MethodPost
	tests := []struct {
		token, method, path, body string
		status                    int
		want                      string
	}{
		{"alice", get, v1 + "/config", "", 200, `"endpoints":["GET /v1/{prefix}/namespaces"`},
		{"alice", get, v1 + "/config?warehouse=any", "", 200, `"overrides":{}`},
		{"alice", get, v1 + "/namespaces", "", 200, `{"namespaces":[["nyc"]],"next-page-token":null}`},
		{"admin", get, v1 + "/namespaces?pageToken=", "", 200, `{"namespaces":[["nyc"]],"next-page-token":null}`},
		{"alice", get, v1 + "/namespaces?parent=nyc", "", 200, `{"namespaces":[],"next-page-token":null}`},
		{"alice", get, v1 + "/namespaces/nyc", "", 200, `{"namespace":["nyc"],"properties":{}}`},
		{"alice", head, v1 + "/namespaces/nyc", "", 200, ``},
		{"alice", get, v1 + "/namespaces/other", "", 404, `{"error":{"message":"project other does not exist","type":"NoSuchNamespaceException","code":404}}`},
		{"alice", get, v1 + "/namespaces/nyc%1Fweather", "", 404, `"type":"NoSuchNamespaceException"`},
		{"alice", get, v1 + "/namespaces/nyc/tables", "", 200, `{"identifiers":[{"namespace":["nyc"],"name":"blank"},{"namespace":["nyc"],"name":"weather"}],"next-page-token":null}`},
		{"alice", get, v1 + "/namespaces/nyc/tables?pageSize=1", "", 200, `"name":"blank"}],"next-page-token":"`},
		{"alice", get, v1 + "/namespaces/nyc/tables?pageSize=no", "", 400, `"type":"BadRequestException"`},
		{"alice", get, v1 + "/namespaces/nyc/tables?pageToken=%25", "", 400, `the page token is invalid`},
		{"alice", get, v1 + "/namespaces/nyc/views", "", 200, `{"identifiers":[],"next-page-token":null}`},
		{"alice", get, v1 + "/namespaces/nyc/views/v", "", 404, `"type":"NoSuchViewException"`},
		{"alice", get, table + "weather", "", 200, `"current-snapshot-id":3`},
		{"alice", get, table + "weather?snapshots=refs", "", 200, `"metadata-location":"file://`},
		{"alice", head, table + "weather", "", 200, ``},
		{"alice", get, table + "absent", "", 404, `"type":"NoSuchTableException","code":404`},
		{"alice", get, table + "unknown", "", 404, `declares no columns`},
		{"alice", get, v1 + "/namespaces/nyc%1Fweather/tables/files", "", 404, `"type":"NoSuchTableException"`},
		{"alice", get, table + "secret", "", 403, `{"error":{"message":"secret@1 is sealed: its files are encrypted, and other engines cannot read them. Read it through Falaj: with falaj dataset query`},
		{"reader", get, table + "weather", "", 403, `"type":"ForbiddenException"`},
		{"reader", get, v1 + "/namespaces/nyc/tables", "", 200, `"weather"`},
		{"alice", post, table + "weather/metrics", `{"report-type":"scan-report"}`, 204, ``},
		{"reader", post, table + "weather/metrics", `{}`, 403, `ForbiddenException`},
		{"alice", get, v1 + "/transactions", "", 404, `"type":"NoSuchEndpointException"`},
		{"nobody", get, v1 + "/config", "", 401, `"type":"NotAuthorizedException"`},
		{"", get, v1 + "/config", "", 401, `"type":"NotAuthorizedException"`},
		{"", post, v1 + "/oauth/tokens", "grant_type=client_credentials&client_id=any&client_secret=alice&scope=catalog", 200, `{"access_token":"alice","issued_token_type":"urn:ietf:params:oauth:token-type:access_token","token_type":"bearer"}`},
		{"", post, v1 + "/oauth/tokens", "grant_type=client_credentials&client_secret=wrong", 401, `"error":"invalid_client"`},
		{"", post, v1 + "/oauth/tokens", "", 401, `"error":"invalid_client"`},
		{"", post, v1 + "/oauth/tokens", "grant_type=password&client_secret=alice", 400, `"error":"unsupported_grant_type"`},
		{"", post, v1 + "/oauth/tokens", "client_secret=" + strings.Repeat("x", 20<<10), 400, `"error":"invalid_request"`},
		{"alice", post, v1 + "/oauth/tokens", "grant_type=urn:ietf:params:oauth:grant-type:token-exchange&subject_token=alice", 200, `"access_token":"alice"`},
		{"alice", post, v1 + "/oauth/tokens", "grant_type=urn:ietf:params:oauth:grant-type:token-exchange&subject_token=wrong", 401, `invalid_client`},
	}
	for _, tt := range tests {
		t.Run(tt.token+" "+tt.method+" "+strings.TrimPrefix(tt.path, v1), func(t *testing.T) {
			status, answer := w.do(t, tt.token, tt.method, tt.path, tt.body)
			if status != tt.status || !strings.Contains(answer, tt.want) {
				t.Errorf("%d %s\nwant %d %s", status, answer, tt.status, tt.want)
			}
		})
	}
}

// TestPages: a client that asks for small pages sees every open table once.
func TestPages(t *testing.T) {
	w := open(t)
	w.weather(t)
	var names []string
	for token, n := "", 0; ; n++ {
		if n > 10 {
			t.Fatal("the pages do not end")
		}
		_, answer := w.do(t, "alice", http.MethodGet, "/iceberg/v1/namespaces/nyc/tables?pageSize=1&pageToken="+token, "")
		var page struct {
			Identifiers []struct{ Name string }
			Next        string `json:"next-page-token"`
		}
		if err := json.Unmarshal([]byte(answer), &page); err != nil {
			t.Fatal(err, answer)
		}
		for _, i := range page.Identifiers {
			names = append(names, i.Name)
		}
		if token = page.Next; token == "" {
			break
		}
	}
	if !slices.Equal(names, []string{"blank", "weather"}) {
		t.Errorf("listed %v", names)
	}
}

// TestEveryFileIsThere: what the table's metadata names is a file as it says,
// and the same metadata is in the file that is named for it.
func TestEveryFileIsThere(t *testing.T) {
	w := open(t)
	w.weather(t)
	_, answer := w.do(t, "alice", http.MethodGet, "/iceberg/v1/namespaces/nyc/tables/weather", "")
	var loaded struct {
		Location string `json:"metadata-location"`
		Metadata struct {
			Location  string
			Snapshots []struct {
				ID   int64  `json:"snapshot-id"`
				List string `json:"manifest-list"`
			}
		}
	}
	if err := json.Unmarshal([]byte(answer), &loaded); err != nil {
		t.Fatal(err, answer)
	}
	stored, err := os.ReadFile(strings.TrimPrefix(loaded.Location, "file://"))
	if err != nil || !strings.Contains(answer, strings.TrimSpace(string(stored))) {
		t.Errorf("the stored metadata differs: %v\n%s", err, stored)
	}
	if len(loaded.Metadata.Snapshots) != 2 {
		t.Fatalf("%d snapshots", len(loaded.Metadata.Snapshots))
	}
	for _, s := range loaded.Metadata.Snapshots {
		if !strings.HasPrefix(s.List, loaded.Metadata.Location+"/") {
			t.Errorf("snapshot %d is at %s", s.ID, s.List)
		}
		if _, err := os.Stat(strings.TrimPrefix(s.List, "file://")); err != nil {
			t.Error(err)
		}
	}
}

// TestSealedLater: a dataset that was open and is to be sealed is refused from
// then on, although its newest version is still plain.
func TestSealedLater(t *testing.T) {
	w := open(t)
	w.weather(t)
	w.Declare(t, "weather", dataset.Spec{})
	status, answer := w.do(t, "alice", http.MethodGet, "/iceberg/v1/namespaces/nyc/tables/weather", "")
	if status != 403 || !strings.Contains(answer, "is sealed") {
		t.Errorf("%d %s", status, answer)
	}
	if _, err := w.Writes.Import(datasettest.Context(t), dataset.ImportRequest{Project: datasettest.Project, Name: "weather", Body: strings.NewReader(first + "x,,,,,\n")}); err != nil {
		t.Fatal(err)
	}
	w.Declare(t, "weather", dataset.Spec{Protection: dataset.Open})
	if status, answer = w.do(t, "alice", http.MethodGet, "/iceberg/v1/namespaces/nyc/tables/weather", ""); status != 403 || !strings.Contains(answer, "weather@4 is sealed") {
		t.Errorf("%d %s", status, answer)
	}
}

// TestPermissionFirst: who may not act hears so of every route, before its body
// is read.
func TestPermissionFirst(t *testing.T) {
	w := open(t)
	for _, r := range iceberg.Routes() {
		path := strings.NewReplacer("{project}", "nyc", "{table}", "weather", "{view}", "v").Replace(r.Pattern)
		if status, answer := w.do(t, "nobody", r.Method, path, "canary"); status != 401 {
			t.Errorf("%s %s without a token: %d %s", r.Method, path, status, answer)
		}
		if r.Action == "" || r.Action == dataset.ActionRead || r.Action == "project.read" {
			continue
		}
		if status, answer := w.do(t, "reader", r.Method, path, "canary"); status != 403 || strings.Contains(answer, "canary") {
			t.Errorf("%s %s by a reader: %d %s", r.Method, path, status, answer)
		}
	}
}
