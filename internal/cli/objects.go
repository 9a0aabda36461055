package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

// kind is how one kind of object is listed, shown and deleted.
type kind struct {
	path     string // below the project, or absolute when it starts with "/api"
	columns  []column
	manifest string // kind of the manifests that make it; empty where none does
}

// kinds is the one list of what `get`, `describe` and `delete` know.
var kinds = map[string]kind{
	"projects":         {path: "/api/v1/projects", columns: []column{{"NAME", "name"}, {"RESIDENCY", "residency"}, {"CREATED", "created_at"}}, manifest: "Project"},
	"zones":            {path: "/api/v1/zones", columns: []column{{"NAME", "name"}, {"JURISDICTION", "jurisdiction"}, {"PROVIDER", "provider"}, {"TRUST", "trust"}}, manifest: "Zone"},
	"pools":            {path: "/api/v1/pools", columns: []column{{"NAME", "name"}, {"STATE", "state"}, {"ZONE", "zone"}, {"ENGINE", "engine"}, {"KIND", "kind"}, {"REMOTE", "remote"}, {"CPU", "capacity.cpu"}, {"MEMORY", "capacity.memory"}, {"ISOLATION", "isolation"}, {"PRICE/H", "price_per_hour"}, {"RUNNING", "running"}}, manifest: "Pool"},
	"queues":           {path: "/api/v1/queues", columns: []column{{"NAME", "name"}, {"PARENT", "parent"}, {"QUOTA", "nominal"}, {"USED", "used"}, {"BORROWED", "borrowed"}, {"SHARE", "share"}, {"WEIGHT", "weight"}, {"RUNNING", "running"}, {"WAITING", "waiting"}, {"FIRST", "first"}}, manifest: "Queue"},
	"budgets":          {path: "/api/v1/budgets", columns: []column{{"PROJECT", "project"}, {"PER MONTH", "per_month"}, {"CURRENCY", "currency"}, {"SPENT", "spent"}, {"STOP", "stop"}, {"USED UP", "used_up"}}, manifest: "Budget"},
	"datasets":         {path: "datasets", columns: []column{{"NAME", "name"}, {"LATEST", "latest"}, {"CLASSIFICATION", "spec.classification"}, {"RESIDENCY", "spec.residency"}, {"CREATED", "created_at"}}, manifest: "Dataset"},
	"entities":         {path: "entities", columns: []column{{"NAME", "name"}, {"VERSION", "version"}, {"JOIN KEYS", "join_keys"}, {"CREATED", "created_at"}}, manifest: "Entity"},
	"feature-views":    {path: "feature-views", columns: []column{{"NAME", "name"}, {"VERSION", "version"}, {"ENTITIES", "entities"}, {"TTL", "ttl"}, {"CREATED", "created_at"}}, manifest: "FeatureView"},
	"feature-services": {path: "feature-services", columns: []column{{"NAME", "name"}, {"VERSION", "version"}, {"FEATURES", "features"}, {"CREATED", "created_at"}}, manifest: "FeatureService"},
	"environments":     {path: "environments", columns: []column{{"NAME", "name"}, {"STATE", "state"}, {"PYTHON", "python"}, {"PACKAGES", "packages"}, {"BYTES", "size"}, {"SHARED BYTES", "shared"}, {"DIGEST", "digest"}}, manifest: "Environment"},
	"jobs":             {path: "jobs", columns: []column{{"ID", "id"}, {"NAME", "name"}, {"STATE", "state"}, {"POOL", "pool"}, {"ATTEMPTS", "attempts"}, {"SUBMITTED", "submitted_at"}, {"ENDED", "ended_at"}}, manifest: "Job"},
	"runs":             {path: "runs", columns: runColumns},
	"sweeps":           {path: "sweeps", columns: []column{{"NAME", "name"}, {"STATE", "state"}, {"ALGORITHM", "spec.search.algorithm"}, {"TRIALS", "trials"}, {"PARALLEL", "spec.parallel"}, {"CREATED", "created_at"}, {"ENDED", "ended_at"}, {"REASON", "reason"}}, manifest: "Sweep"},
	"models":           {path: "models", columns: []column{{"NAME", "name"}, {"LATEST", "latest_version"}, {"ALIASES", "aliases"}, {"CREATED", "created_at"}}},
	"deployments":      {path: "deployments", columns: []column{{"NAME", "name"}, {"STATE", "state"}, {"REPLICAS", "replicas"}, {"MODEL", "model"}, {"VERSION", "version"}, {"CREATED", "created_at"}}, manifest: "Deployment"},
	"gateways":         {path: "gateways", columns: []column{{"NAME", "name"}, {"ZONE", "spec.zone"}, {"DEPLOYMENTS", "spec.deployments"}, {"LAST SEEN", "seen.at"}, {"VERSION", "seen.version"}, {"WAITING", "seen.waiting"}, {"CREATED", "created_at"}}, manifest: "Gateway"},
	"model-policies":   {path: "model-policies", columns: []column{{"NAME", "name"}, {"CONTENT", "spec.content"}, {"APPROVALS", "spec.promotion.approvals"}, {"GATES", "spec.promotion.gates"}, {"REVISION", "revision"}, {"UPDATED", "updated_at"}}, manifest: "ModelPolicy"},
	"monitors":         {path: "monitors", columns: []column{{"NAME", "name"}, {"DEPLOYMENT", "deployment"}, {"STATE", "state"}, {"SINCE", "since"}, {"VERSION", "version"}, {"WATERMARK", "watermark"}, {"REASON", "reason"}}, manifest: "Monitor"},
	"tokens":           {path: "/api/v1/tokens", columns: []column{{"ID", "id"}, {"NAME", "name"}, {"KIND", "kind"}, {"PROJECT", "project"}, {"STATE", "state"}, {"EXPIRES", "expires_at"}, {"LAST USED", "last_used_at"}}},
	"widenings":        {path: "widenings", columns: []column{{"ID", "id"}, {"OBJECT", "name"}, {"FROM", "from"}, {"TO", "to"}, {"STATE", "state"}, {"REASON", "reason"}, {"EXPIRES", "expires_at"}}},
	"zone-widenings":   {path: "/api/v1/widenings", columns: []column{{"ID", "id"}, {"ZONE", "name"}, {"FROM", "from_law"}, {"TO", "to_law"}, {"STATE", "state"}, {"REASON", "reason"}, {"EXPIRES", "expires_at"}}},
	"accounts":         {path: "/api/v1/accounts", columns: []column{{"ID", "id"}, {"KIND", "kind"}, {"NAME", "name"}, {"PROJECT", "project"}, {"CREATED", "created_at"}}},
	"sources":          {path: "sources", columns: sourceColumns, manifest: "Source"},
	"secrets":          {path: "secrets", columns: []column{{"NAME", "name"}, {"KEYS", "keys"}, {"REVISION", "revision"}, {"UPDATED", "updated_at"}, {"BY", "updated_by"}, {"USED BY", "used_by"}}, manifest: "Secret"},
	"policies":         {path: "policies", columns: []column{{"NAME", "name"}, {"DESCRIPTION", "description"}, {"REVISION", "revision"}, {"UPDATED", "updated_at"}}, manifest: "Policy"},
	"members":          {path: "members", columns: []column{{"NAME", "name"}, {"WHO", "who"}, {"ROLE", "role"}, {"OBJECT", "object"}, {"SINCE", "created_at"}}, manifest: "Grant"},
}

// kept are the kinds that no request deletes, with what to do instead.
var kept = map[string]string{
	"environments":     "`falaj env prune` removes the files of unused environments.",
	"jobs":             "Jobs cannot be deleted; `falaj job cancel` cancels one.",
	"pools":            "Close it instead: apply the pool with `closed: REASON`.",
	"zones":            "Datasets and records name them.",
	"runs":             "MLflow's clients delete and restore them.",
	"models":           "Their versions stay on record; move an alias with `falaj model alias`.",
	"entities":         "Views and their training sets name them.",
	"feature-views":    "Their versions stay on record; `falaj feature clear` removes a view's online rows.",
	"feature-services": "Deployments and training sets name them.",
	"widenings":        "`falaj dataset reject` withdraws one.",
	"zone-widenings":   "`falaj zone reject` withdraws one.",
}

// listedOnly are the kinds of which the server has a list and no single object.
var listedOnly = []string{"members", "tokens", "widenings", "zone-widenings", "zones"}

// among finds one object in the list of all.
func (c collection) among(ctx context.Context, name string) (found []client.Object, err error) {
	err = c.client.List(ctx, c.path, c.list, func(o client.Object) error {
		if o.Text("id") == name || c.named(o) == name && c.name != "tokens" && !strings.HasSuffix(c.name, "widenings") {
			found = append(found, o)
		}
		return nil
	})
	if err == nil && len(found) == 0 {
		err = &client.Error{Status: http.StatusNotFound, Detail: fmt.Sprintf("%s %q not found", singular(c.name), name), Hint: "See `falaj get " + c.name + "`."}
	}
	return found, err
}

// singular is the name of one object of a kind.
func singular(kind string) string {
	if stem, ok := strings.CutSuffix(kind, "ies"); ok {
		return stem + "y"
	}
	return strings.TrimSuffix(kind, "s")
}

// kindOf accepts "job", "jobs", "Job", "FeatureView", "feature-view", and kinds of manifests.
func kindOf(word string) (string, kind, error) {
	w := strings.ToLower(strings.NewReplacer("_", "-").Replace(word))
	for name, k := range kinds {
		if k.manifest != "" && w == strings.ToLower(k.manifest) {
			return name, k, nil
		}
		flat := strings.ReplaceAll(name, "-", "")
		for _, form := range []string{name, strings.TrimSuffix(name, "s"), flat, strings.TrimSuffix(flat, "s")} {
			if stem, ok := strings.CutSuffix(name, "ies"); w == form || ok && w == stem+"y" {
				return name, k, nil
			}
		}
	}
	return "", kind{}, usage("%q is not a kind of object; kinds: %s", word, strings.Join(keys(kinds), ", "))
}

// collection is where the objects of a kind are.
type collection struct {
	kind
	name, path string
	query      url.Values // of requests for one object
	list       url.Values // of requests for all of them
	wide       bool       // it is the installation's
	client     *client.Client
}

// narrowable are the kinds of the installation whose lists a project narrows.
var narrowable = []string{"accounts", "budgets", "tokens"}

// collection finds where the objects are: in a project, or with wide, for what
// is in both, in the installation.
func (a *app) collection(word string, wide bool) (c collection, err error) {
	if c.name, c.kind, err = kindOf(word); err != nil {
		return c, err
	}
	c.wide = wide
	narrows := slices.Contains(narrowable, c.name)
	switch {
	case c.name == "members" && wide:
		c.kind.path = "/api/v1/members"
	case wide && !narrows:
		return c, usage("--installation is for members, %s; %s are where they are", strings.Join(narrowable, ", "), c.name)
	}
	if narrows {
		c.list = a.narrowed(wide)
	}
	if c.name == "accounts" {
		c.query = c.list
	}
	if c.path = c.kind.path; !strings.HasPrefix(c.path, "/") {
		if c.path, err = a.inProjectPath(c.path); err != nil {
			return c, err
		}
	}
	c.client, err = a.connect()
	return c, err
}

func (c collection) one(name string) string {
	path := c.path + "/" + url.PathEscape(name)
	if len(c.query) > 0 {
		path += "?" + c.query.Encode()
	}
	return path
}

const wideHelp = "members, accounts or budgets of the installation instead of the project; for tokens, your own (see also falaj token list)"

func completeKinds(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return keys(kinds), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) apply() *cobra.Command {
	var files []string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create or update objects from manifests",
		Long: "A manifest is a YAML document {api_version: falaj/v1, kind, name, project, spec}. Applying an unchanged manifest\n" +
			"changes nothing, except that a Secret is always set again. Values of a Secret may be read from files ({file: PATH},\n" +
			"relative to the manifest) or from standard input ({stdin: true}); one trailing line break is removed. A job or sweep\n" +
			"may name a directory next to the manifest as its source: it is packed and uploaded first, as by job submit --source,\n" +
			"also with --dry-run.",
		Example: "  falaj apply -f examples/nycflights/project.yaml\n  falaj apply -f job.yaml --dry-run\n  falaj apply -f sweep.yaml -p nyc\n  cat *.yaml | falaj apply -f -\n  pass show shop-db | falaj apply -f secret.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return usage("-f FILE is required, or -f - for standard input")
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			project := a.chosen()
			var all []client.Applied
			for _, f := range files {
				b, err := a.read(f)
				if err != nil {
					return err
				}
				if b, err = a.withSecrets(b, f); err != nil {
					return err
				}
				if b, err = a.withSources(cmd, b, f, dryRun); err != nil {
					return fmt.Errorf("%s: %w", f, err)
				}
				shown := a.phases()
				shown.showSoon(fmt.Sprintf("applying %s: the server is checking and storing it", f))
				applied, err := c.Apply(cmd.Context(), project, b, dryRun)
				shown.end()
				all = append(all, applied...)
				if err != nil {
					return fmt.Errorf("%s: %w", f, err)
				}
			}
			if a.output != "table" {
				return a.printOne(all)
			}
			for _, r := range all {
				line := strings.ToLower(r.Kind) + " " + r.Name
				if r.Version > 0 {
					line += fmt.Sprintf("@%d", r.Version)
				}
				if r.ID != "" {
					line += " (" + r.ID + ")"
				}
				if dryRun && r.Result != "unchanged" {
					r.Result = "would be " + r.Result
				}
				a.say("%s %s", line, r.Result)
				for _, w := range r.Warnings {
					fmt.Fprintln(a.Stderr, "warning: "+line+": "+w)
				}
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "manifest file, or - for standard input; repeatable")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "validate the manifests, print what would be created or updated, and change nothing")
	return cmd
}

func (a *app) read(file string) ([]byte, error) {
	const limit = 1 << 20
	r := a.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, usage("%v", err)
		}
		defer f.Close()
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if len(b) > limit {
		return nil, usage("%s is larger than 1 MiB", file)
	}
	return b, err
}

func (a *app) get() *cobra.Command {
	var wide bool
	cmd := &cobra.Command{
		Use:   "get KIND [NAME]",
		Short: "List objects of a kind, or show one",
		Long: "-o manifest prints objects as manifests for `falaj apply -f -`; applying them to the same server changes nothing.\n" +
			"-o yaml adds the status of each object, which apply ignores. Secret values are never printed: the manifest of a\n" +
			"Secret keeps its values unchanged when applied.",
		Example:           "  falaj get jobs --project nyc\n  falaj get dataset weather -o yaml\n  falaj get feature-views -o manifest > views.yaml\n  falaj get queue batch -o yaml | falaj apply -f -",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeObject,
		RunE: func(cmd *cobra.Command, args []string) error {
			of, err := a.collection(args[0], wide)
			if err != nil {
				return err
			}
			objects := []client.Object{}
			if len(args) == 2 && slices.Contains(listedOnly, of.name) {
				if of.name == "tokens" {
					of.list.Set("ended", "true") // the one that was asked for, whatever became of it
				}
				if objects, err = of.among(cmd.Context(), args[1]); err != nil {
					return err
				}
			} else if len(args) == 2 {
				var o client.Object
				if err := of.client.Do(cmd.Context(), http.MethodGet, of.one(args[1]), nil, &o); err != nil {
					return err
				}
				objects = append(objects, o)
			} else if err := of.client.List(cmd.Context(), of.path, of.list, func(o client.Object) error {
				objects = append(objects, o)
				return nil
			}); err != nil {
				return err
			}
			if a.output == "manifest" || a.output == "yaml" && of.manifest != "" {
				return a.printManifests(cmd, of, objects, args[1:])
			}
			return a.print(objects, of.columns)
		},
	}
	cmd.Flags().BoolVar(&wide, "installation", false, wideHelp)
	return cmd
}

// printManifests writes objects as the manifests that would make them; as YAML with what
// else is known of each, its status. named is how the one object was asked for, such as
// weather@2.
func (a *app) printManifests(cmd *cobra.Command, of collection, objects []client.Object, named []string) error {
	if of.manifest == "" {
		return usage("%s have no manifests; use -o yaml", of.name)
	}
	for i, o := range objects {
		query := url.Values{}
		if of.wide {
			query = of.list
		} else if p := a.chosen(); p != "" {
			query.Set("project", p)
		}
		name := of.named(o)
		if len(named) > 0 {
			name = named[0]
		}
		path := "/api/v1/manifests/" + of.manifest + "/" + url.PathEscape(name)
		if len(query) > 0 {
			path += "?" + query.Encode()
		}
		var doc manifest
		if err := of.client.Do(cmd.Context(), http.MethodGet, path, nil, &doc); err != nil {
			return err
		}
		if a.output == "yaml" {
			doc.Status = o
		}
		if i > 0 {
			fmt.Fprintln(a.Stdout, "---")
		}
		if err := a.printYAML(doc); err != nil {
			return err
		}
	}
	return nil
}

// manifest is an object in the order in which people write it.
type manifest struct {
	APIVersion string          `json:"api_version"`
	Kind       string          `json:"kind"`
	Name       string          `json:"name"`
	Project    string          `json:"project,omitempty"`
	Spec       json.RawMessage `json:"spec"`
	Status     client.Object   `json:"status,omitempty"`
}

// named is the name by which an object of the collection is read.
func (c collection) named(o client.Object) string {
	switch c.name {
	case "jobs":
		return o.Text("id")
	case "budgets":
		return o.Text("project")
	}
	return o.Text("name")
}

func (a *app) describe() *cobra.Command {
	return &cobra.Command{
		Use:               "describe KIND NAME",
		Short:             "Show an object in detail, including its lineage",
		Example:           "  falaj describe model delay --project nyc\n  falaj describe job job_01J…",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeObject,
		RunE: func(cmd *cobra.Command, args []string) error {
			of, err := a.collection(args[0], false)
			if err != nil {
				return err
			}
			var o client.Object
			if err := of.client.Do(cmd.Context(), http.MethodGet, of.full(args[1]), nil, &o); err != nil {
				return err
			}
			lineage, _ := o["lineage"].(map[string]any)
			if a.output != "table" || lineage == nil {
				return a.printOne(o)
			}
			delete(o, "lineage")
			if err := a.printYAML(o); err != nil {
				return err
			}
			a.say("lineage:")
			a.tree(lineage, "  ", "")
			return nil
		},
	}
}

// full is one object with all that belongs to it.
func (c collection) full(name string) string {
	c.query = maps.Clone(c.query)
	if c.query == nil {
		c.query = url.Values{}
	}
	c.query.Set("view", "full")
	return c.one(name)
}

// tree draws a lineage node {name, detail, parents: […]} and what it came from.
func (a *app) tree(node map[string]any, indent, branch string) {
	o := client.Object(node)
	line := o.Text("name")
	if d := o.Text("detail"); d != "" {
		line += "  " + d
	}
	a.say("%s%s%s", indent, branch, line)
	parents, _ := node["parents"].([]any)
	below := indent
	switch branch {
	case "├─ ":
		below += "│  "
	case "└─ ":
		below += "   "
	}
	for i, p := range parents {
		if m, ok := p.(map[string]any); ok {
			b := "├─ "
			if i == len(parents)-1 {
				b = "└─ "
			}
			a.tree(m, below, b)
		}
	}
}

// cited are the kinds that something may cite: the server names what does, and wants yes.
var cited = []string{"datasets", "deployments", "monitors"}

func (a *app) delete() *cobra.Command {
	var wide, yes, force bool
	var reason string
	cmd := &cobra.Command{
		Use:   "delete KIND NAME",
		Short: "Delete an object",
		Long: "An object referenced by running jobs, models, training sets, monitors or deployments is deleted only with --yes;\n" +
			"the refusal lists the references. A dataset used by an active deployment also requires --force and a --reason,\n" +
			"which is recorded in the audit log. The digest and lineage of a referenced dataset version are kept and, for\n" +
			"erasures only, sealed pseudonyms of the persons in it.",
		Example:           "  falaj delete deployment delay --project nyc\n  falaj delete dataset orders@3 --yes\n  falaj delete account user/alice",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: a.completeObject,
		RunE: func(cmd *cobra.Command, args []string) error {
			of, err := a.collection(args[0], wide)
			if err != nil {
				return err
			}
			if hint, stays := kept[of.name]; stays {
				return usage("%s are not deleted. %s", of.name, hint)
			}
			if (yes || force || reason != "") && !slices.Contains(cited, of.name) {
				return usage("--yes, --force and --reason are for %s", strings.Join(cited, ", "))
			}
			if of.name != "datasets" && (force || reason != "") {
				return usage("--force and --reason are for datasets")
			}
			of.query = maps.Clone(of.query)
			for name, value := range map[string]string{"yes": onlyTrue(yes), "force": onlyTrue(force), "reason": reason} {
				if value != "" {
					if of.query == nil {
						of.query = url.Values{}
					}
					of.query.Set(name, value)
				}
			}
			if err := of.client.Do(cmd.Context(), http.MethodDelete, of.one(args[1]), nil, nil); err != nil {
				return err
			}
			a.say("%s %s deleted", singular(of.name), args[1])
			return nil
		},
	}
	cmd.Flags().BoolVar(&wide, "installation", false, wideHelp)
	cmd.Flags().BoolVar(&yes, "yes", false, "delete the object even if others reference it")
	cmd.Flags().BoolVar(&force, "force", false, "delete a dataset even if an active deployment depends on it; requires --reason")
	cmd.Flags().StringVar(&reason, "reason", "", "reason for deleting a dataset, recorded in the audit log")
	return cmd
}

func onlyTrue(b bool) string {
	if b {
		return "true"
	}
	return ""
}
