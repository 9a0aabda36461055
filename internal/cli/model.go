package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

func (a *app) modelVerify() *cobra.Command {
	var signature, publicKey string
	cmd := &cobra.Command{
		Use: "verify NAME VERSION", Short: "Verify the signature of a model version", Args: cobra.ExactArgs(2),
		Long: "Verifies every file of the version against the signature made when it was registered. With --signature and\n" +
			"--public-key, the files are also verified against an external OpenSSF model signature, such as one made by\n" +
			"`model_signing sign key`.",
		Example: "  falaj model verify delay 1 -p nyc\n  falaj model verify delay 1 --signature model.sig --public-key vendor.pub -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			body := map[string]any{}
			for field, file := range map[string]string{"signature": signature, "public_key": publicKey} {
				if file == "" {
					continue
				}
				b, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				body[field] = string(b)
			}
			var o client.Object
			if err := a.call(cmd, http.MethodPost, body, &o, "models", args[0], "versions", args[1], "verify"); err != nil {
				return err
			}
			return a.printOne(o)
		},
	}
	cmd.Flags().StringVar(&signature, "signature", "", "file with an external signature: a sigstore bundle")
	cmd.Flags().StringVar(&publicKey, "public-key", "", "PEM file with the public key of the signer")
	cmd.MarkFlagsRequiredTogether("signature", "public-key")
	return cmd
}

func (a *app) modelExport() *cobra.Command {
	return &cobra.Command{
		Use: "export NAME VERSION DIR", Short: "Export a version's files, signature and public key into a new directory",
		Long: "The directory contains the files below model/, the signature model.sig and the public key key.pub. The\n" +
			"reference implementation of OpenSSF model signing verifies them without Falaj:\n" +
			"\n" +
			"  model_signing verify key --signature DIR/model.sig --public_key DIR/key.pub DIR/model",
		Example: "  falaj model export delay champion ./delay -p nyc", Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, project, err := a.in()
			if err != nil {
				return err
			}
			dir := filepath.Clean(args[2])
			if err := c.FetchModel(cmd.Context(), project, args[0], args[1], dir); err != nil {
				return err
			}
			a.say("model %s version %s is in %s", args[0], args[1], dir)
			return nil
		},
	}
}

type modelContents struct {
	Level    string `json:"level"`
	Files    int    `json:"files"`
	More     int    `json:"more"`
	Contents []struct {
		Path    string   `json:"path"`
		Format  string   `json:"format"`
		Level   string   `json:"level"`
		Imports []string `json:"imports"`
		Reasons []string `json:"reasons"`
	} `json:"contents"`
}

func (a *app) modelContent() *cobra.Command {
	return &cobra.Command{
		Use: "content NAME VERSION", Short: "Inspect the contents of a version's files and the risk of loading them", Args: cobra.ExactArgs(2),
		Long: "Detects pickles, also in archives and behind arrays, and their imports; Keras Lambda layers; machine code; and\n" +
			"malicious archives. Risk levels, from low to high: data, known, unknown, code, danger.",
		Example: "  falaj model content delay 1 -p nyc\n  falaj model content delay champion -o json -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			return asked(a, cmd, http.MethodGet, nil, []string{"models", args[0], "versions", args[1], "content"}, func(c modelContents) {
				a.say("%s: %d files scanned", c.Level, c.Files)
				for _, f := range c.Contents {
					a.say("\n%s\n  %s, %s", plain(f.Path), f.Format, f.Level)
					for _, why := range f.Reasons {
						a.say("  %s", plain(why))
					}
					if len(f.Imports) > 0 {
						a.say("  imports %s", plain(strings.Join(f.Imports, ", ")))
					}
				}
				if c.More > 0 {
					a.say("\nand %d more", c.More)
				}
			})
		},
	}
}

type clearance struct {
	Model     string   `json:"model"`
	Version   int      `json:"version"`
	Policy    string   `json:"policy"`
	Required  int      `json:"required"`
	Given     int      `json:"given"`
	Missing   []string `json:"missing"`
	Cleared   bool     `json:"cleared"`
	Approvals []struct {
		Principal string    `json:"principal"`
		Name      string    `json:"name"`
		Verdict   string    `json:"verdict"`
		Comment   string    `json:"comment"`
		At        time.Time `json:"at"`
		Counts    bool      `json:"counts"`
	} `json:"approvals"`
}

func (a *app) sayClearance(c clearance) {
	switch {
	case c.Policy == "":
		a.say("%s@%d: no policy applies", plain(c.Model), c.Version)
	case c.Cleared:
		a.say("%s@%d can be promoted (policy %s, %d of %d approvals)", plain(c.Model), c.Version, plain(c.Policy), c.Given, c.Required)
	default:
		a.say("%s@%d cannot be promoted yet (policy %s):", plain(c.Model), c.Version, plain(c.Policy))
		for _, m := range c.Missing {
			a.say("  %s", plain(m))
		}
	}
	for _, v := range c.Approvals {
		who := v.Name
		if who == "" {
			who = v.Principal
		}
		text := ""
		if v.Comment != "" {
			text = ": " + v.Comment
		}
		if !v.Counts {
			text += " (does not count)"
		}
		a.say("%s %s by %s%s", v.At.Local().Format("2006-01-02 15:04"), v.Verdict, plain(who), plain(text))
	}
}

// modelApprovals are the commands about who approves of a version.
func (a *app) modelApprovals() []*cobra.Command {
	show := &cobra.Command{
		Use: "approvals NAME VERSION", Short: "List a version's approvals and rejections, and the requirements for promotion it does not meet yet",
		Example: "  falaj model approvals delay 3 -p nyc", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return asked(a, cmd, http.MethodGet, nil, []string{"models", args[0], "versions", args[1], "approvals"}, a.sayClearance)
		},
	}
	judge := func(use, verdict, short string) *cobra.Command {
		var comment, digest string
		cmd := &cobra.Command{
			Use: use + " NAME VERSION", Short: short,
			Long: "A verdict is immutable and applies to the exact version: it records the digest and the metrics that the policy's\n" +
				"gates require. To change your mind, record another verdict; the last verdict of each person counts, as long as\n" +
				"that person has the permission model.approve. You cannot approve a version that you or one of your jobs created.",
			Example: "  falaj model " + use + " delay 3 --comment 'checked on the winter of 2024' -p nyc", Args: cobra.ExactArgs(2),
			RunE: func(cmd *cobra.Command, args []string) error {
				return asked(a, cmd, http.MethodPost, map[string]any{"verdict": verdict, "comment": comment, "digest": digest}, []string{"models", args[0], "versions", args[1], "approvals"}, a.sayClearance)
			},
		}
		cmd.Flags().StringVar(&comment, "comment", "", "comment, recorded with the verdict")
		cmd.Flags().StringVar(&digest, "digest", "", "digest of the reviewed version; a different digest is rejected")
		return cmd
	}
	return []*cobra.Command{
		show, judge("approve", "approved", "Approve a version created by another person"), judge("reject", "rejected", "Reject a version and block its promotion"),
	}
}

// asked sends a request and shows the answer: as it came for -o, else by say.
func asked[T any](a *app, cmd *cobra.Command, method string, body any, parts []string, say func(T)) error {
	var raw json.RawMessage
	if err := a.call(cmd, method, body, &raw, parts...); err != nil {
		return err
	}
	if a.output != "table" {
		var o client.Object
		if err := json.Unmarshal(raw, &o); err != nil {
			return err
		}
		return a.printOne(o)
	}
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return err
	}
	say(v)
	return nil
}

func (a *app) modelBOM() *cobra.Command {
	return &cobra.Command{
		Use: "bom NAME VERSION", Short: "Print a version's bill of materials (ML-BOM, CycloneDX 1.6)", Args: cobra.ExactArgs(2),
		Long: "Contains the model and its card, each file with its digest and risk level, the training datasets with their\n" +
			"zones, the features, and the packages of the environment, as far as you have permission to see them.",
		Example: "  falaj model bom delay champion -p nyc > delay.cdx.json",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.fetched(cmd, "models", args[0], "versions", args[1], "bom")
		},
	}
}

func (a *app) modelCard() *cobra.Command {
	return &cobra.Command{
		Use: "card NAME VERSION", Short: "Print a version's model card as Markdown or, with -o json, as JSON", Args: cobra.ExactArgs(2),
		Long: "Combines recorded facts about the version with the tags of the version or the model: license,\n" +
			"card.intended_use, card.out_of_scope, card.factors, card.evaluation_data, card.ethical_considerations and card.caveats.",
		Example: "  falaj model card delay champion -p nyc > README.md\n  falaj model card delay 3 -o json -p nyc",
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.output == "table" {
				return a.fetched(cmd, "models", args[0], "versions", args[1], "card.md")
			}
			return asked(a, cmd, http.MethodGet, nil, []string{"models", args[0], "versions", args[1], "card"}, func(client.Object) {})
		},
	}
}

// fetched prints an answer as it comes.
func (a *app) fetched(cmd *cobra.Command, parts ...string) error {
	path, err := a.inProjectPath(parts...)
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	resp, err := c.Send(cmd.Context(), http.MethodGet, path, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(a.raw(), resp.Body)
	return err
}
