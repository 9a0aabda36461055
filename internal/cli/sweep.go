package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/falaj-ml/falaj/client"
)

func (a *app) sweep() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sweep", Aliases: []string{"sweeps"}, Short: "See the search for good parameters, be Optuna's storage",
		Long: "A sweep is a study of Optuna that is kept here, with its trials.",
	}
	cmd.AddCommand(&cobra.Command{
		Use: "list", Short: "List sweeps with their trials, oldest first", Example: "  falaj sweep list -p nyc\n  falaj sweep list -o json -p nyc", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.list(cmd, kinds["sweeps"].columns, "sweeps")
		},
	}, a.sweepGet(), a.sweepTrials(), a.sweepDelete(), a.sweepStorage())
	return cmd
}

func (a *app) sweepGet() *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show a sweep and its best trial", Example: "  falaj sweep get delay -p nyc\n  falaj sweep get delay -o json -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var o client.Object
			if err := a.call(cmd, http.MethodGet, nil, &o, "sweeps", args[0]); err != nil {
				return err
			}
			return a.print([]client.Object{o}, append(kinds["sweeps"].columns, column{"BEST", "best.values"}, column{"TRIAL", "best.number"}, column{"PARAMS", "best.params"}))
		},
	}
}

func (a *app) sweepTrials() *cobra.Command {
	return &cobra.Command{
		Use: "trials NAME", Short: "List the trials of a sweep, oldest first",
		Example: "  falaj sweep trials delay -p nyc\n  falaj sweep trials delay -o json -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.listOf(cmd, url.Values{"page_size": {"1000"}}, []column{
				{"TRIAL", "number"},
				{"STATE", "state"},
				{"VALUES", "values"},
				{"PARAMS", "params"},
				{"REPORTED", "reported"},
				{"LAST", "last_report.value"},
				{"STARTED", "started_at"},
				{"COMPLETED", "completed_at"},
			}, "sweeps", args[0], "trials")
		},
	}
}

func (a *app) sweepDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Delete a sweep and its trials", Example: "  falaj sweep delete delay -p nyc", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.call(cmd, http.MethodDelete, nil, nil, "sweeps", args[0]); err != nil {
				return err
			}
			a.say("sweep %s is deleted", args[0])
			return nil
		},
	}
}

// sweepStorage forwards Optuna's calls, which have no token, until it is stopped.
func (a *app) sweepStorage() *cobra.Command {
	var listen string
	var patience time.Duration
	cmd := &cobra.Command{
		Use: "storage", Short: "Be the gRPC storage of Optuna's studies on this machine, until stopped",
		Long: "Optuna's GrpcStorageProxy knows a host and a port, and neither tokens nor TLS. This\n" +
			"process listens on this machine only, adds your token, the project and TLS, and sends\n" +
			"calls again while the server is away. Whoever can connect to it here reads and writes\n" +
			"the project's sweeps as you; it lets nothing else through.",
		Example: "  falaj sweep storage -p nyc &\n" +
			"  python -c 'import optuna; s = optuna.storages.GrpcStorageProxy(host=\"127.0.0.1\", port=13000); optuna.create_study(storage=s, study_name=\"delay\")'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if patience < 0 || patience > time.Hour {
				return usage("--patience is %s; it may be 0s to 1h", patience)
			}
			if err := loopback(listen); err != nil {
				return err
			}
			p, err := a.inProject()
			if err != nil {
				return err
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			// Who may not is told here, and not by a study that fails.
			if err := c.Do(cmd.Context(), http.MethodGet, "/api/v1/projects/"+url.PathEscape(p)+"/sweeps?page_size=1", nil, nil); err != nil {
				return err
			}
			return a.forward(cmd.Context(), cmd.OutOrStdout(), listen, c.Storage(p, patience))
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:13000", "address of this machine to listen on; port 0 is any free one")
	cmd.Flags().DurationVar(&patience, "patience", 5*time.Minute, "how long to go on asking while the server is away")
	return cmd
}

// loopback refuses addresses that others could reach.
func loopback(listen string) error {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return usage("--listen is %q; write it as 127.0.0.1:13000", listen)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return usage("--listen is %q, whose port is no number", listen)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return usage("--listen is %q, which others could reach and act with your token; it may be 127.0.0.1, [::1] or localhost", listen)
	}
	return nil
}

// forward serves until ctx ends.
func (a *app) forward(ctx context.Context, out io.Writer, listen string, h http.Handler) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return usage("%s is not to be listened on: %w; choose another one by --listen", listen, err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 10 * time.Minute, Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true) // and no HTTP/1, which web pages speak
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	_, _ = fmt.Fprintf(out, "Optuna's storage is at %s, until this process ends\n", l.Addr())
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = server.Shutdown(end)
		return server.Close()
	}
}
