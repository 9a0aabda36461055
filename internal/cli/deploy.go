package cli

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

// rollouts are the commands that try, promote and roll back versions.
func (a *app) rollouts() []*cobra.Command {
	return []*cobra.Command{a.deployStatus(), a.deployUsage(), a.deployCanary(), a.deployPromote(), a.deployRollback(), a.deployShadow(), a.deployAutomation(), a.deployLabel()}
}

// in connects in the chosen project.
func (a *app) in() (c *client.Client, project string, err error) {
	if project, err = a.inProject(); err != nil {
		return nil, "", err
	}
	c, err = a.connect()
	return c, project, err
}

func (a *app) deployStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status NAME",
		Short: "Show the stable version, running rollouts, request statistics and automatic actions of a deployment",
		Long: "Requests, failures and latencies are counted since the server started; latencies are overestimated by at\n" +
			"most an eighth. Automatic actions are listed with their reasons; -o json and the audit log contain the\n" +
			"evidence.",
		Example: "  falaj deploy status delay -p nyc\n  falaj deploy status delay -p nyc -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, project, err := a.in()
			if err != nil {
				return err
			}
			o, err := c.DeploymentStatus(cmd.Context(), project, args[0])
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(o)
			}
			if err := a.status(o); err != nil {
				return err
			}
			return a.judged(cmd, c, project, args[0], o.Text("rollout.id"))
		},
	}
}

func (a *app) deployUsage() *cobra.Command {
	return &cobra.Command{
		Use:   "usage NAME",
		Short: "Show the use of a deployment's quota in the current period, by client",
		Long: "The quota is spec.limits.quota of the Deployment. It is counted in the database, across all servers, and is\n" +
			"reset at midnight or on the first of the month, in UTC.",
		Example: "  falaj deploy usage delay -p nyc\n  falaj deploy usage delay -p nyc -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, project, err := a.in()
			if err != nil {
				return err
			}
			o, err := c.DeploymentUsage(cmd.Context(), project, args[0])
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(o)
			}
			for _, what := range []string{"requests", "rows"} {
				if n := o.Text("quota." + what); n != "" {
					a.say("%s %s a %s for each %s, since %s until %s", n, what, o.Text("quota.every"), o.Text("per"), cell(o, "starts"), cell(o, "resets"))
				}
			}
			if err := a.print(objectsAt(o, "usage"), []column{{"USER", "user"}, {"NAME", "name"}, {"TOKEN", "token"}, {"REQUESTS", "requests"}, {"ROWS", "rows"}}); err != nil {
				return err
			}
			if more := o.Text("more"); more != "" && more != "0" {
				a.say("and %s more", more)
			}
			return nil
		},
	}
}

// status writes what a deployment does for people.
func (a *app) status(o client.Object) error {
	a.say("deployment %s of model %s: %s", o.Text("deployment.name"), o.Text("deployment.model"), o.Text("deployment.state"))
	if o.Text("automation.on") == "true" {
		a.say("automation on")
	} else {
		a.say("automation off: %s", o.Text("automation.reason"))
	}
	if o.Text("rollout.id") != "" {
		a.say("canary version %s, stable version %s, %s %% of the requests since %s (%s)", o.Text("rollout.candidate"), o.Text("rollout.stable"),
			o.Text("rollout.weight"), cell(o, "rollout.started"), o.Text("rollout.id"))
		if cause := o.Text("rollout.cause"); cause != "" {
			a.say("  because: %s", cause)
		}
	}
	waiting, _ := o["waiting"].([]any)
	for _, why := range waiting {
		a.say("waiting: %v", why)
	}
	for _, warning := range []struct{ path, text string }{
		{"lost", "%s predictions could not be logged"}, {"unshadowed", "%s requests found the shadow busy"},
	} {
		if n := o.Text(warning.path); n != "" && n != "0" {
			a.say(warning.text, n)
		}
	}
	var steps []any
	for _, v := range objectsAt(o, "versions") {
		if n := v.Text("restarts"); n != "" {
			a.say("version %s: restarts: %s; last death at %s: %s", v.Text("version"), n, cell(v, "last_death.at"), v.Text("last_death.reason"))
		}
		for _, x := range objectsAt(v, "steps") {
			runs, _ := strconv.ParseInt(x.Text("runs"), 10, 64)
			ns, _ := strconv.ParseInt(x.Text("time_ns"), 10, 64)
			if runs > 0 {
				x["mean"] = time.Duration(ns / runs).Round(time.Microsecond).String()
			}
			x["version"] = v["version"]
			steps = append(steps, map[string]any(x))
		}
	}
	o["steps"] = steps
	sections := []struct {
		name    string
		columns []column
	}{
		{"versions", []column{{"VERSION", "version"}, {"ROLE", "role"}, {"%", "weight"}, {"STATE", "state"}, {"REPLICAS", "replicas"}, {"REQUESTS", "requests"}, {"FAILURES", "failures"}, {"P50", "p50"}, {"P99", "p99"}, {"REASON", "reason"}}},
		{"steps", []column{{"STEP", "step"}, {"VERSION", "version"}, {"RUNS", "runs"}, {"ROWS", "rows"}, {"MEAN", "mean"}}},
		{"history", []column{{"ROLLOUT", "id"}, {"FROM", "stable"}, {"TO", "candidate"}, {"%", "weight"}, {"STATE", "state"}, {"STARTED", "started"}, {"PROMOTED", "promoted_at"}, {"ENDED", "ended"}, {"REASON", "reason"}, {"PROMOTED BECAUSE", "promotion"}}},
		{"acts", []column{{"ACT", "kind"}, {"AT", "at"}, {"OUTCOME", "outcome"}, {"RESULT", "result"}, {"CAUSE", "cause"}, {"REASON", "reason"}}},
	}
	for _, s := range sections {
		objects := objectsAt(o, s.name)
		if len(objects) == 0 {
			continue
		}
		for _, x := range objects {
			for _, p := range []string{"p50", "p99"} {
				if ns, err := strconv.ParseInt(x.Text(p+"_ns"), 10, 64); err == nil && ns > 0 {
					x[p] = time.Duration(ns).Round(time.Microsecond).String()
				}
			}
		}
		a.say("")
		if err := a.print(objects, s.columns); err != nil {
			return err
		}
	}
	return nil
}

// objectsAt is a list in an object.
func objectsAt(o client.Object, name string) []client.Object {
	list, _ := o[name].([]any)
	out := make([]client.Object, 0, len(list))
	for _, x := range list {
		if m, ok := x.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

func (a *app) deployCanary() *cobra.Command {
	var version, reason string
	var weight int
	cmd := &cobra.Command{
		Use:   "canary NAME",
		Short: "Start a canary, or change the weight of the running one",
		Long: "The version is verified and loaded first; if it does not load, nothing changes. Without --version, the\n" +
			"weight of the running canary changes and its evidence is collected again from the start.",
		Example: "  falaj deploy canary delay --version 3 --weight 20 -p nyc\n  falaj deploy canary delay --weight 50 -p nyc",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if version == "" && weight == 0 {
				return usage("set --version to start a canary, or --weight to change the weight of the running canary")
			}
			c, project, err := a.in()
			if err != nil {
				return err
			}
			o, err := c.Canary(cmd.Context(), project, args[0], version, weight, reason)
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(o)
			}
			a.say("deployment %s: canary version %s, stable version %s, %s %% of the requests (%s)", args[0], o.Text("candidate"), o.Text("stable"), o.Text("weight"), o.Text("id"))
			return nil
		},
	}
	cmd.Flags().StringVar(&version, "version", "", "version number or alias of the canary")
	cmd.Flags().IntVar(&weight, "weight", 0, "percentage of requests, 1 to 99 (default that of the manifest)")
	cmd.Flags().StringVar(&reason, "reason", "", "reason, recorded in the audit log")
	return cmd
}

func (a *app) deployPromote() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "promote NAME",
		Short: "Promote the canary to the stable version",
		Long: "The alias that the manifest follows, such as champion, moves to the promoted version, so that applying the\n" +
			"manifest again changes nothing.",
		Example: "  falaj deploy promote delay -p nyc --reason 'reviewed'",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, project, err := a.in()
			if err != nil {
				return err
			}
			o, err := c.Promote(cmd.Context(), project, args[0], reason)
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(o)
			}
			a.say("deployment %s: stable version %s (previous: %s)", args[0], o.Text("candidate"), o.Text("stable"))
			return nil
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason, recorded in the audit log")
	return cmd
}

func (a *app) deployRollback() *cobra.Command {
	var reason string
	var to int64
	cmd := &cobra.Command{
		Use:     "rollback NAME",
		Short:   "Abort the running rollout, or roll back to the previous version",
		Long:    "The target version is verified and loaded first; if it does not load, the current version keeps serving.",
		Example: "  falaj deploy rollback delay -p nyc\n  falaj deploy rollback delay --to 1 -p nyc --reason 'wrong labels'",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, project, err := a.in()
			if err != nil {
				return err
			}
			o, err := c.Rollback(cmd.Context(), project, args[0], to, reason)
			if err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(o)
			}
			a.say("deployment %s: stable version %s", args[0], o.Text("version"))
			return nil
		},
	}
	cmd.Flags().Int64Var(&to, "to", 0, "version number to roll back to")
	cmd.Flags().StringVar(&reason, "reason", "", "reason, recorded in the audit log")
	return cmd
}

func (a *app) deployShadow() *cobra.Command {
	var version string
	var off bool
	cmd := &cobra.Command{
		Use:     "shadow NAME",
		Short:   "Mirror requests to a shadow version, or stop mirroring",
		Example: "  falaj deploy shadow delay --version 4 -p nyc\n  falaj deploy shadow delay --off -p nyc",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if off == (version != "") {
				return usage("set --version, or --off to stop mirroring")
			}
			c, project, err := a.in()
			if err != nil {
				return err
			}
			o, err := c.Shadow(cmd.Context(), project, args[0], version)
			switch {
			case err != nil:
				return err
			case a.output != "table":
				return a.printOne(o)
			case off:
				a.say("deployment %s has no shadow", args[0])
			default:
				a.say("deployment %s is shadowed by version %s", args[0], version)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&version, "version", "", "version number or alias of the shadow")
	cmd.Flags().BoolVar(&off, "off", false, "stop mirroring")
	return cmd
}

func (a *app) deployAutomation() *cobra.Command {
	var reason string
	var all bool
	cmd := &cobra.Command{
		Use:     "automation NAME on|off",
		Short:   "Enable or disable automation of a deployment: retraining, canaries, promotion, rollback",
		Long:    "off prevents new automatic actions. A running canary continues; abort it with `falaj deploy rollback`.",
		Example: "  falaj deploy automation delay off -p nyc --reason 'holiday'\n  falaj deploy automation --all off -p nyc",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, word := "", args[len(args)-1]
			if !all && len(args) == 2 {
				name = args[0]
			}
			if all != (len(args) == 1) || word != "on" && word != "off" {
				return usage("set NAME and on or off, or --all and on or off")
			}
			c, project, err := a.in()
			if err != nil {
				return err
			}
			if err := c.SetAutomation(cmd.Context(), project, name, word == "on", reason); err != nil {
				return err
			}
			what := "deployment " + name
			if all {
				what = "all of project " + project
			}
			a.say("automation of %s is %s", strings.TrimSpace(what), word)
			return nil
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason, recorded in the audit log")
	cmd.Flags().BoolVar(&all, "all", false, "all deployments of the project")
	return cmd
}
