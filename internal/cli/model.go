package cli

import (
	"net/http"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

func (a *app) modelVerify() *cobra.Command {
	var signature, publicKey string
	cmd := &cobra.Command{
		Use: "verify NAME VERSION", Short: "Check a version's files against its signature", Args: cobra.ExactArgs(2),
		Long: "Checks that each file of the version is what was signed when it was registered. With --signature and\n" +
			"--public-key the files are also compared with a signature that was made elsewhere by OpenSSF model\n" +
			"signing, such as by `model_signing sign key`.",
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
	cmd.Flags().StringVar(&signature, "signature", "", "file with a signature that was made elsewhere: a sigstore bundle")
	cmd.Flags().StringVar(&publicKey, "public-key", "", "file with the PEM of the key that it must be by")
	cmd.MarkFlagsRequiredTogether("signature", "public-key")
	return cmd
}

func (a *app) modelExport() *cobra.Command {
	return &cobra.Command{
		Use: "export NAME VERSION DIR", Short: "Write a version's files, its signature and the public key into a new directory",
		Long: "The directory has the files below model/, the signature model.sig and the public key key.pub. The\n" +
			"reference implementation of OpenSSF model signing verifies them without Falaj:\n\n" +
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
