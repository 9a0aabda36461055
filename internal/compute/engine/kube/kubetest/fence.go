package kubetest

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// pods are the addresses of pods.
const pods = "10.244.0.0/24"

// Fence plays the part that CNI's ptp has not and clusters have: it enforces the
// NetworkPolicies of all namespaces, as rules of iptables that it makes of the
// objects every 200 ms. A pod that no policy selects is open; one that was
// not seen yet reaches nobody, so that nothing slips through before the first
// look. It returns what is to be called to end it.
func (c *Cluster) Fence() (open func()) {
	c.tb.Helper()
	for _, rule := range []string{"-N EGRESS", "-N INGRESS", "-A INPUT -j EGRESS", "-A FORWARD -j EGRESS", "-A FORWARD -j INGRESS"} {
		c.run("iptables", append([]string{"-w"}, strings.Fields(rule)...)...)
	}
	c.must(fence(""))
	ctx, cancel := context.WithCancel(context.Background())
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // As in StartServer.
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		before := ""
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			rules, err := policies(ctx, client)
			if err == nil && rules != before {
				err = fence(rules)
			}
			if errors.Is(err, errNotPlayed) {
				c.tb.Error(err)
				return
			}
			if err != nil && ctx.Err() == nil { // what was there stays
				c.tb.Logf("the fence: %v", err)
				continue
			}
			before = rules
		}
	})
	open = sync.OnceFunc(func() {
		cancel()
		done.Wait()
		client.CloseIdleConnections()
		c.run("iptables", "-w", "-F")
	})
	c.tb.Cleanup(open)
	return open
}

// fence replaces the rules of both chains.
func fence(rules string) error {
	text := "*filter\n-F EGRESS\n-F INGRESS\n" +
		"-A EGRESS -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN\n-A INGRESS -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN\n" +
		rules + "-A EGRESS -s " + pods + " -j REJECT\n-A INGRESS -d " + pods + " -j REJECT\nCOMMIT\n"
	cmd := exec.Command("iptables-restore", "-w", "--noflush") //nolint:noctx // It ends at once.
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("iptables-restore: %w: %s\n%s", err, out, text)
	}
	return nil
}

// selector picks pods by their labels.
type selector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// peer is whom a rule lets in or out.
type peer struct {
	PodSelector *selector `json:"podSelector"`
	IPBlock     *struct {
		CIDR string `json:"cidr"`
	} `json:"ipBlock"`
}

// rules is all of a NetworkPolicy's specification that is played; a field that is
// not here is an error, since left out it would close what it opens.
type rules struct {
	PodSelector selector `json:"podSelector"`
	PolicyTypes []string `json:"policyTypes"`
	Ingress     []struct {
		From []peer `json:"from"`
	} `json:"ingress"`
	Egress []struct {
		To    []peer `json:"to"`
		Ports []struct {
			Protocol string `json:"protocol"`
			Port     int    `json:"port"`
		} `json:"ports"`
	} `json:"egress"`
}

var errNotPlayed = errors.New("says what is not played here")

type policy struct {
	Metadata struct{ Name, Namespace string }
	Spec     json.RawMessage
}

type pod struct {
	Metadata struct {
		Namespace string
		Labels    map[string]string
	}
	Status struct{ PodIP, Phase string }
}

// policies are what the cluster's policies permit, as rules.
func policies(ctx context.Context, client *http.Client) (string, error) {
	var p struct{ Items []policy }
	var all struct{ Items []pod }
	// The pods first: whoever is there has its policy in the later list.
	err := list(ctx, client, "/api/v1/pods", &all)
	if err == nil {
		err = list(ctx, client, "/apis/networking.k8s.io/v1/networkpolicies", &p)
	}
	if err != nil {
		return "", err
	}
	// addresses of those that run, which a selector picks in a namespace.
	addresses := func(s selector, namespace string) (ips []string) {
		for _, x := range all.Items {
			picked := x.Metadata.Namespace == namespace && x.Status.PodIP != "" && x.Status.Phase != "Succeeded" && x.Status.Phase != "Failed"
			for k, v := range s.MatchLabels {
				picked = picked && x.Metadata.Labels[k] == v
			}
			if picked {
				ips = append(ips, x.Status.PodIP)
			}
		}
		return ips
	}
	var lines []string
	closed := map[string]map[string]bool{"Ingress": {}, "Egress": {}} // pods that a policy selects, by direction
	for _, x := range p.Items {
		var spec rules
		d := json.NewDecoder(bytes.NewReader(x.Spec))
		d.DisallowUnknownFields()
		if err := d.Decode(&spec); err != nil {
			return "", fmt.Errorf("NetworkPolicy %s %w: %w", x.Metadata.Name, errNotPlayed, err)
		}
		peers := func(all []peer) (to []string) {
			if len(all) == 0 {
				return []string{"0.0.0.0/0"}
			}
			for _, p := range all {
				switch {
				case p.IPBlock != nil:
					to = append(to, p.IPBlock.CIDR)
				case p.PodSelector != nil:
					to = append(to, addresses(*p.PodSelector, x.Metadata.Namespace)...)
				}
			}
			return to
		}
		for _, ip := range addresses(spec.PodSelector, x.Metadata.Namespace) {
			for _, direction := range spec.PolicyTypes {
				closed[direction][ip] = true
			}
			for _, rule := range spec.Ingress {
				for _, from := range peers(rule.From) {
					lines = append(lines, fmt.Sprintf("-A INGRESS -s %s -d %s -j RETURN\n", from, ip))
				}
			}
			for _, rule := range spec.Egress {
				for _, to := range peers(rule.To) {
					if len(rule.Ports) == 0 {
						lines = append(lines, fmt.Sprintf("-A EGRESS -s %s -d %s -j RETURN\n", ip, to))
					}
					for _, port := range rule.Ports {
						lines = append(lines, fmt.Sprintf("-A EGRESS -s %s -d %s -p %s --dport %d -j RETURN\n", ip, to, strings.ToLower(port.Protocol), port.Port))
					}
				}
			}
		}
	}
	// Who is under no policy is open; who is not known yet is not.
	for _, x := range all.Items {
		ip := x.Status.PodIP
		if ip == "" || x.Status.Phase == "Succeeded" || x.Status.Phase == "Failed" {
			continue
		}
		if !closed["Ingress"][ip] {
			lines = append(lines, fmt.Sprintf("-A INGRESS -d %s -j RETURN\n", ip))
		}
		if !closed["Egress"][ip] {
			lines = append(lines, fmt.Sprintf("-A EGRESS -s %s -j RETURN\n", ip))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ""), nil
}

func list(ctx context.Context, client *http.Client, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, serverURL+path, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, res.Status)
	}
	return json.NewDecoder(res.Body).Decode(into)
}
