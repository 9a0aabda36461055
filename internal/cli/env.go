package cli

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

func (a *app) environment() *cobra.Command {
	cmd := &cobra.Command{Use: "env", Aliases: []string{"environment", "environments"}, Short: "Build, check and compare run environments"}
	cmd.AddCommand(a.envBuild(), a.envShow(), a.envCheck(), a.envDiff(), a.envPrune(), a.envWait(), &cobra.Command{
		Use: "logs NAME", Short: "Print an environment's build log", Example: "  falaj env logs sklearn -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.stream(cmd, a.raw(), "", "environments", args[0], "logs")
		},
	})
	return cmd
}

// environmentOf asks for a part of an environment.
func (a *app) environmentOf(cmd *cobra.Command, method string, query url.Values, into any, parts ...string) error {
	path, err := a.inProjectPath(append([]string{"environments"}, parts...)...)
	if err != nil {
		return err
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	return c.Do(cmd.Context(), method, path, nil, into)
}

func (a *app) envBuild() *cobra.Command {
	return &cobra.Command{
		Use: "build NAME", Short: "Rebuild an environment with the newest allowed versions", Args: cobra.ExactArgs(1),
		Long: "Locks the newest versions that the requirements allow, pins the image's tag to its current digest, and waits for\n" +
			"the build. Jobs that name the environment use the new content; NAME@DIGEST keeps referring to the previous one.",
		Example: "  falaj env build sklearn -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			var o client.Object
			if err := a.environmentOf(cmd, http.MethodPost, nil, &o, args[0], "build"); err != nil {
				return err
			}
			return a.awaitEnvironment(cmd, args[0])
		},
	}
}

func (a *app) envWait() *cobra.Command {
	return &cobra.Command{
		Use: "wait NAME", Short: "Wait until an environment is built; exit code 1 if the build fails", Example: "  falaj env wait sklearn -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.awaitEnvironment(cmd, args[0]) },
	}
}

func (a *app) awaitEnvironment(cmd *cobra.Command, name string) error {
	of, err := a.collection("environments", false)
	if err != nil {
		return err
	}
	o, err := a.awaitPhases(cmd.Context(), of.client, of.one(name), "ready", "failed")
	if err != nil {
		return err
	}
	if o.Text("state") == "failed" {
		return fault.New(fault.Internal, "%s cannot be built: %s", name, o.Text("reason")).
			WithHint("%s", first(o.Text("hint"), "See `falaj env logs "+name+"`."))
	}
	what := "Python " + o.Text("python") + ", " + o.Text("packages") + " packages"
	if image := o.Text("image"); image != "" {
		what = image
	} else if o.Text("python") == "" {
		what = "site modules"
	}
	delete(o, "phase")
	if err := a.sayOr(o, "%s is ready: %s, %s", name, what, o.Text("digest")); err != nil {
		return err
	}
	if hint := o.Text("hint"); hint != "" && a.output == "table" {
		a.say("  → %s", hint)
	}
	return nil
}

func (a *app) envShow() *cobra.Command {
	var sbom bool
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show an environment or, with --sbom, its software bill of materials (CycloneDX)", Args: cobra.ExactArgs(1),
		Example: "  falaj env show sklearn -p nyc\n  falaj env show sklearn --sbom -p nyc > sklearn.cdx.json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if sbom {
				return a.stream(cmd, a.raw(), "", "environments", args[0], "sbom")
			}
			var o any
			if err := a.environmentOf(cmd, http.MethodGet, nil, &o, args[0]); err != nil {
				return err
			}
			return a.printOne(o)
		},
	}
	cmd.Flags().BoolVar(&sbom, "sbom", false, "print the SBOM as CycloneDX 1.5 JSON")
	return cmd
}

// shownFit is what a pool says to an environment.
type shownFit struct {
	Pool    string   `json:"pool"`
	Fits    bool     `json:"fits"`
	Reasons []string `json:"reasons,omitempty"`
	Unknown []string `json:"unknown,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

func (a *app) envCheck() *cobra.Command {
	return &cobra.Command{
		Use: "check NAME", Short: "Check which pools an environment is compatible with; exit code 1 if none", Args: cobra.ExactArgs(1),
		Long: "Compares the requirements of the environment (Python, C library, CUDA and cuDNN, vector instructions, engine) with\n" +
			"the properties reported by the nodes of every pool, before a job is queued. A job that fits no pool is refused with\n" +
			"the same reasons.",
		Example: "  falaj env check torch -p nyc\n  falaj env check torch@sha256:… -o json -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			var answer json.RawMessage
			if err := a.environmentOf(cmd, http.MethodGet, nil, &answer, args[0], "check"); err != nil {
				return err
			}
			var checked struct {
				Needs shownNeeds `json:"needs"`
				Pools []shownFit `json:"pools"`
			}
			if err := json.Unmarshal(answer, &checked); err != nil {
				return err
			}
			if a.output != "table" {
				var o any
				if err := json.Unmarshal(answer, &o); err != nil {
					return err
				}
				if err := a.printOne(o); err != nil {
					return err
				}
			} else if err := a.printFits(checked.Needs, checked.Pools); err != nil {
				return err
			}
			if !slices.ContainsFunc(checked.Pools, func(f shownFit) bool { return f.Fits }) {
				var e client.Object // one that was not built needs something else first
				if err := a.environmentOf(cmd, http.MethodGet, nil, &e, args[0]); err == nil && e.Text("state") == "failed" {
					return fault.New(fault.Internal, "%s fits no pool: it cannot be built", args[0]).
						WithHint("%s", first(e.Text("hint"), "See `falaj env logs "+args[0]+"`."))
				}
				return fault.New(fault.Internal, "%s fits no pool", args[0]).WithHint("Choose other versions, or add a compatible pool.")
			}
			return nil
		},
	}
}

// shownNeeds are what an environment asks of nodes.
type shownNeeds struct {
	Python    string   `json:"python"`
	Platform  string   `json:"platform"`
	Glibc     string   `json:"glibc"`
	Framework string   `json:"framework"`
	CUDA      string   `json:"cuda"`
	CUDNN     string   `json:"cudnn"`
	Modules   []string `json:"modules"`
}

// printFits prints a row for each thing that a pool says.
func (a *app) printFits(n shownNeeds, pools []shownFit) error {
	var needs []string
	for _, part := range [][2]string{
		{"Python ", n.Python}, {"", n.Platform}, {"glibc ", n.Glibc}, {"", n.Framework}, {"CUDA ", n.CUDA}, {"cuDNN ", n.CUDNN}, {"modules ", strings.Join(n.Modules, " ")},
	} {
		if part[1] != "" {
			needs = append(needs, part[0]+part[1])
		}
	}
	if len(needs) > 0 {
		a.say("needs %s", strings.Join(needs, ", "))
	}
	var rows []client.Object
	for _, f := range pools {
		fits := "yes"
		if !f.Fits {
			fits = "no"
		}
		words := f.Reasons
		for _, l := range f.Unknown {
			words = append(words, "not known: "+l)
		}
		for _, l := range f.Notes {
			words = append(words, "note: "+l)
		}
		if len(words) == 0 {
			words = []string{"-"}
		}
		for i, w := range words {
			row := client.Object{"pool": f.Pool, "fits": fits, "why": w}
			if i > 0 {
				row["pool"], row["fits"] = " ", " "
			}
			rows = append(rows, row)
		}
	}
	return a.printWhole(rows, []column{{"POOL", "pool"}, {"FITS", "fits"}, {"WHY", "why"}})
}

func (a *app) envDiff() *cobra.Command {
	return &cobra.Command{
		Use: "diff A B", Short: "Compare two environments", Args: cobra.ExactArgs(2),
		Long: "Each argument is NAME, the current content, or NAME@DIGEST, a previous content.", Example: "  falaj env diff torch torch-nightly -p nyc\n  falaj env diff torch@sha256:… torch -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			var d struct {
				Same    bool            `json:"same"`
				Changes []client.Object `json:"changes"`
			}
			if err := a.environmentOf(cmd, http.MethodGet, url.Values{"with": {args[1]}}, &d, args[0], "diff"); err != nil {
				return err
			}
			if d.Same && a.output == "table" {
				a.say("%s and %s are the same", args[0], args[1])
				return nil
			}
			return a.printWhole(d.Changes, []column{{"WHAT", "what"}, {"NAME", "name"}, {shortRef(args[0]), "a"}, {shortRef(args[1]), "b"}})
		},
	}
}

// shortRef is a reference whose digest has its first digits only.
func shortRef(ref string) string {
	name, digest, ok := strings.Cut(ref, "@sha256:")
	if !ok || len(digest) <= 12 {
		return ref
	}
	return name + "@sha256:" + digest[:12] + "…"
}

func (a *app) envPrune() *cobra.Command {
	var older string
	var dry bool
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove unused environment files and images", Args: cobra.NoArgs,
		Long: "Environments used by unfinished jobs or requested recently are kept. Applying an environment again rebuilds it; an\n" +
			"image is pulled again when a job needs it. Requires the role admin in the installation.",
		Example: "  falaj env prune --dry-run\n  falaj env prune --older 168h",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			var pruned struct {
				Items []client.Object `json:"items"`
			}
			if err := c.Do(cmd.Context(), http.MethodPost, "/api/v1/environments/prune", map[string]any{"older": older, "dry": dry}, &pruned); err != nil {
				return err
			}
			return a.printWhole(pruned.Items, []column{{"DIGEST", "digest"}, {"BYTES", "size"}, {"LAST USED", "used_at"}, {"NAMES", "names"}, {"IMAGE", "image"}})
		},
	}
	cmd.Flags().StringVar(&older, "older", "720h", "only environments not requested for this long; at least 1h")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only print what would be removed")
	return cmd
}
