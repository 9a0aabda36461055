package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

// shownClassifier is what `show` writes of a domain classifier.
type shownClassifier struct {
	State       string    `json:"state"`
	Reason      string    `json:"reason"`
	Job         string    `json:"job"`
	Baseline    string    `json:"baseline"`
	AUC         *float64  `json:"auc"`
	Low         *float64  `json:"low"`
	High        *float64  `json:"high"`
	PValue      *float64  `json:"p_value"`
	Threshold   float64   `json:"threshold"`
	Drifted     bool      `json:"drifted"`
	Began       time.Time `json:"began_at"`
	TopFeatures []struct {
		Name       string  `json:"name"`
		Importance float64 `json:"importance"`
	} `json:"top_features"`
}

func (a *app) monitorClassify() *cobra.Command {
	var window, env string
	cmd := &cobra.Command{
		Use: "classify NAME", Short: "Train a domain classifier between a window and the baseline",
		Long: "Creates a dataset version from the rows of a window and starts a sandboxed job that trains a model to\n" +
			"distinguish them from the baseline. `falaj monitor show NAME` shows its score when the job has finished.",
		Example: "  falaj monitor classify delay --environment sklearn -p nyc\n  falaj monitor classify delay --window 1-1372636800000000r -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]string{}
			if window != "" {
				body["window"] = window
			}
			if env != "" {
				body["environment"] = env
			}
			var found client.Object
			if err := a.call(cmd, http.MethodPost, body, &found, "monitors", args[0], "classify"); err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(found)
			}
			b, err := json.Marshal(found)
			if err != nil {
				return err
			}
			var c shownClassifier
			if err := json.Unmarshal(b, &c); err != nil {
				return err
			}
			a.say("window %s of monitor %s (rows in dataset %s): %s", cell(found, "window"), plain(args[0]), cell(found, "dataset"), c.words())
			if c.State == "running" {
				a.say("Wait with `falaj job wait %s`; then show the result with `falaj monitor show %s`.", plain(c.Job), plain(args[0]))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&window, "window", "", "ID of the window (default the newest window of the version evaluated last)")
	cmd.Flags().StringVar(&env, "environment", "", "environment with scikit-learn and pyarrow (default spec.drift.classifier.environment)")
	return cmd
}

// words is a classification in a line.
func (c *shownClassifier) words() string {
	if c.State != "done" {
		text := "classifier " + plain(c.State)
		if c.Job != "" {
			text += " as job " + plain(c.Job)
		}
		if c.Reason != "" {
			text += ": " + plain(c.Reason)
		}
		return text
	}
	verdict := "not drifted"
	if c.Drifted {
		verdict = "DRIFTED"
	}
	text := fmt.Sprintf("against %s: ROC AUC %s [%s, %s], p = %s: %s (threshold for the lower bound: %.4g)",
		plain(c.Baseline), number(c.AUC), number(c.Low), number(c.High), number(c.PValue), verdict, c.Threshold)
	if c.Reason != "" {
		text += " (" + plain(c.Reason) + ")"
	}
	return text
}

// drawClassifier writes what the domain classifier says that was asked for last.
func (a *app) drawClassifier(windows []shownWindow) {
	windows = slices.DeleteFunc(slices.Clone(windows), func(w shownWindow) bool { return w.Classifier == nil })
	if len(windows) == 0 {
		return
	}
	newest := slices.MaxFunc(windows, func(v, w shownWindow) int { return v.Classifier.Began.Compare(w.Classifier.Began) })
	a.say("\nDomain classifier, window from %s to %s: %s", when(newest.From), when(newest.To), newest.Classifier.words())
	var top []string
	for _, f := range newest.Classifier.TopFeatures {
		if f.Importance > 0 && len(top) < 5 {
			top = append(top, fmt.Sprintf("%s %.3g", plain(f.Name), f.Importance))
		}
	}
	if len(top) > 0 {
		a.say("  top features: %s", strings.Join(top, ", "))
	}
}
