package cli

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/internal/fault"
)

// patience is how long a command that waits goes on without an answer: longer
// than a restart of the server takes.
const patience = time.Minute

// held is longer than the server holds a request that waits, so that one that
// nobody will ever answer ends.
const held = 90 * time.Second

// slow is after how long a command that has no phases says what it waits for, where that is no terminal.
const slow = 2 * time.Second

// away reports whether the server is not there now: no connection, or whoever
// stands before it says so.
func away(err error) bool {
	if refused, ok := errors.AsType[*client.Error](err); ok {
		return refused.Status == http.StatusBadGateway || refused.Status == http.StatusServiceUnavailable || refused.Status == http.StatusGatewayTimeout
	}
	_, ok := errors.AsType[*client.NoAnswerError](err)
	return ok
}

// patiently asks until the server answers, whatever it answers, or has not
// answered for patience.
func (a *app) patiently(ctx context.Context, ask func(context.Context) error) error {
	var since time.Time
	for pause := 250 * time.Millisecond; ; pause = min(2*pause, 4*time.Second) {
		err := ask(ctx)
		if err == nil || ctx.Err() != nil || !away(err) {
			return err
		}
		switch {
		case since.IsZero():
			since = time.Now()
			a.note("falaj: %s; waiting for it, %s at most", err, patience)
		case time.Since(since) >= patience:
			return fault.New(fault.Unavailable, "the server was unreachable for %s, so the result is unknown: %v", patience, err).
				WithHint("The operation continues on the server. Check that the server is running, and run the command again.")
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// await is a GET that the server may hold for up to a minute.
func (a *app) await(ctx context.Context, c *client.Client, path string, out any) error {
	return a.patiently(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, held)
		defer cancel()
		return c.Do(ctx, http.MethodGet, path, nil, out)
	})
}

// awaitPhases asks until the state of what path names is one of ended, and shows on the
// way what the server says that it is at.
func (a *app) awaitPhases(ctx context.Context, c *client.Client, path string, ended ...string) (client.Object, error) {
	shown := a.phases()
	defer shown.end()
	for phase := "-"; ; { // the server holds the request until the phase changes or 30 s pass
		var o client.Object
		if err := a.await(ctx, c, path+"?"+url.Values{"wait": {"30s"}, "phase": {phase}}.Encode(), &o); err != nil {
			return nil, err
		}
		if slices.Contains(ended, o.Text("state")) {
			return o, nil
		}
		phase = first(o.Text("phase"), "-")
		shown.show(first(o.Text("phase"), o.Text("state")))
	}
}

// phases shows on standard error what a command waits for: on a terminal in one line
// with the time that it took so far, elsewhere a line for each that is another than the
// last.
type phases struct {
	a *app

	mu   sync.Mutex
	last string
	over bool
	bars *mpb.Progress
	bar  *mpb.Bar
}

func (a *app) phases() *phases { return &phases{a: a} }

func (p *phases) show(words string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || words == p.last {
		return
	}
	p.last = words
	switch {
	case !p.a.terminal():
		p.a.note("%s", plain(words))
	case p.bar == nil:
		p.bars = mpb.New(mpb.WithOutput(p.a.screen))
		p.bar = p.bars.AddSpinner(0, mpb.BarWidth(1), mpb.AppendDecorators(
			decor.Elapsed(decor.ET_STYLE_GO), decor.Any(func(decor.Statistics) string { return " " + plain(p.words()) })))
	}
}

func (p *phases) words() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// showSoon shows words at once on a terminal, where end clears them, and elsewhere if the
// command still waits after slow.
func (p *phases) showSoon(words string) {
	if p.a.terminal() {
		p.show(words)
		return
	}
	time.AfterFunc(slow, func() { p.show(words) })
}

// end clears the line. It may be called twice.
func (p *phases) end() {
	p.mu.Lock()
	bars, bar := p.bars, p.bar
	p.over, p.bar = true, nil
	p.mu.Unlock()
	if bar != nil {
		bar.Abort(true)
		bars.Wait()
	}
}

// follow copies text that grows to w. path opens it at an offset; what broke off
// goes on where it was, so nothing is missing and nothing comes twice.
func (a *app) follow(cmd *cobra.Command, c *client.Client, w io.Writer, path func(offset int64) string) error {
	for offset := int64(0); ; {
		var resp *http.Response
		err := a.patiently(cmd.Context(), func(ctx context.Context) (err error) {
			resp, err = c.Send(ctx, http.MethodGet, path(offset), nil, nil) //nolint:bodyclose // closed below, once copied
			return err
		})
		if err != nil {
			return err
		}
		n, err := io.Copy(w, resp.Body)
		_ = resp.Body.Close()
		if offset += n; err == nil || !away(err) || cmd.Context().Err() != nil {
			return err
		}
		select {
		case <-time.After(250 * time.Millisecond): // a server that breaks off at once is not asked without a pause
		case <-cmd.Context().Done():
			return err
		}
	}
}
