package cli

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

func (a *app) zone() *cobra.Command {
	cmd := &cobra.Command{Use: "zone", Aliases: []string{"zones"}, Short: "Change the jurisdiction, provider or trust of a zone"}
	cmd.AddCommand(a.zoneChange(),
		a.zoneDecide("approve", "Approve another person's zone change"),
		a.zoneDecide("reject", "Reject a zone change, or withdraw your own"))
	return cmd
}

func (a *app) zoneChange() *cobra.Command {
	var jurisdiction, provider, trust, reason string
	cmd := &cobra.Command{
		Use: "change ZONE --jurisdiction CODE --reason TEXT", Short: "Change the jurisdiction, provider or trust of a zone", Args: cobra.ExactArgs(1),
		Long: "Higher trust, and values that were unset, take effect at once. Another jurisdiction or provider, or lower trust,\n" +
			"changes the law that applies to all data in the zone and requires approval: the command creates a request, which\n" +
			"another admin of the installation approves.",
		Example: "  falaj zone change IE --jurisdiction UK --reason \"the data centre moves to Belfast\"\n  falaj get zone-widenings\n  falaj zone approve wid_01J…",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			body := map[string]any{"reason": reason}
			for name, v := range map[string]string{"jurisdiction": jurisdiction, "provider": provider, "trust": trust} {
				if v != "" {
					body[name] = v
				}
			}
			var w client.Object
			if err := c.Do(cmd.Context(), http.MethodPost, kinds["zones"].path+"/"+url.PathEscape(args[0])+"/widenings", body, &w); err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(w)
			}
			if w.Text("state") == "requested" {
				a.say("%s waits for a second person: falaj zone approve %s", w.Text("id"), w.Text("id"))
				return nil
			}
			a.say("zone %s is changed", args[0])
			return nil
		},
	}
	cmd.Flags().StringVar(&jurisdiction, "jurisdiction", "", "jurisdiction of the zone, such as AE or DE")
	cmd.Flags().StringVar(&provider, "provider", "", "provider of the zone's machines")
	cmd.Flags().StringVar(&trust, "trust", "", "shared, dedicated or owned")
	cmd.Flags().StringVar(&reason, "reason", "", "reason, recorded in the audit log")
	return cmd
}

func (a *app) zoneDecide(verb, short string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " WIDENING", Short: short, Example: "  falaj zone " + verb + " wid_01J…", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			var w client.Object
			if err := c.Do(cmd.Context(), http.MethodPost, kinds["zone-widenings"].path+"/"+url.PathEscape(args[0])+"/"+verb, nil, &w); err != nil {
				return err
			}
			if a.output != "table" {
				return a.printOne(w)
			}
			a.say("the change of zone %s is %s", w.Text("name"), w.Text("state"))
			return nil
		},
	}
}
