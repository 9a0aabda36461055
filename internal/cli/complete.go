package cli

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

// A shell waits for its completion: who does not answer in this time has no names.
const (
	completeTime = time.Second
	completeMost = 100
)

// frameworks and tools are those of a job's manifest and of job profile.
var (
	frameworks = []string{"plain", "torchrun", "tensorflow", "horovod", "mpi", "xgboost", "lightgbm", "deepspeed", "accelerate"}
	tools      = []string{"py-spy", "torch", "nsys"}
)

// completed completes the arguments of all commands by the words of their usage
// lines, JOB, POOL and NAME, and the flags that name things.
func (a *app) completed(c *cobra.Command) {
	for _, sub := range c.Commands() {
		a.completed(sub)
	}
	if words := strings.Fields(c.Use)[1:]; len(words) > 0 && c.ValidArgsFunction == nil {
		c.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			word, more := strings.CutSuffix(words[min(len(args), len(words)-1)], "…")
			if len(args) >= len(words) && !more {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			of := map[string]string{"JOB": "jobs", "POOL": "pools", "NAME": cmd.Parent().Name(), "A": cmd.Parent().Name(), "B": cmd.Parent().Name()}[word]
			switch {
			case of == "env":
				of = "environments"
			case word == "RUN" && cmd.Parent().Name() == "run": // and not one of an ingestion
				of = "runs"
			}
			if _, _, err := kindOf(of); err != nil {
				return nil, cobra.ShellCompDirectiveDefault // a file, or what nobody lists
			}
			return a.names(cmd, of)
		}
	}
	if !strings.HasPrefix(c.CommandPath(), "falaj job ") {
		return
	}
	for flag, of := range map[string]string{"env": "environments", "pool": "pools", "from": "jobs"} {
		if c.Flags().Lookup(flag) != nil {
			_ = c.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
				return a.names(cmd, of)
			})
		}
	}
	for flag, words := range map[string][]string{"framework": frameworks, "tool": tools} {
		if c.Flags().Lookup(flag) != nil {
			_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
		}
	}
}

// completeObject completes KIND and then NAME.
func (a *app) completeObject(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 1 {
		return a.names(cmd, args[0])
	}
	return completeKinds(cmd, args, word)
}

// names asks the server for the names of a kind; there are none when it does not
// answer, for whatever reason.
func (a *app) names(cmd *cobra.Command, of string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	c, err := a.collection(of, false)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	enough := errors.New("enough")
	_ = c.client.List(ctx, c.path, c.list, func(o client.Object) error {
		name := o.Text(c.columns[0].path)
		switch c.name { // an identifier says little
		case "jobs":
			name += "\t" + plain(o.Text("name")) + " " + o.Text("state")
		case "runs":
			name += "\t" + plain(o.Text("name")) + " " + o.Text("status")
		}
		if names = append(names, name); len(names) >= completeMost {
			return enough
		}
		return nil
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}
