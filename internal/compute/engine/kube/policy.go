package kube

import (
	"context"
	"net/netip"
	"net/url"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/falaj-ml/falaj/internal/compute/engine/remote"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/worker/protocol"
)

// policy fences the pods of a launch: they reach each other, the server, and
// what the workload and the pool allow; no other peer reaches them. It holds where
// the cluster's network enforces policies.
func (l *Launcher) policy(ctx context.Context, launch remote.Launch) (*unstructured.Unstructured, error) {
	o, err := parseOptions(launch.Spec.Options)
	if err != nil {
		return nil, err
	}
	gang := object{"podSelector": object{"matchLabels": object{launchLabel: launch.ID}}}
	egress := array{object{"to": array{gang}}}

	server, err := url.Parse(launch.Agent[protocol.EnvURL])
	if err != nil || server.Hostname() == "" {
		return nil, fault.New(fault.Invalid, "the server's address %.200q is not a URL", launch.Agent[protocol.EnvURL]).
			WithHint("Set url in the engine's configuration to the address at which the cluster's pods reach this server.")
	}
	port := server.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[server.Scheme]
	}
	addresses, named, err := l.addresses(ctx, server.Hostname())
	if err != nil {
		return nil, err
	}
	for _, a := range addresses {
		rule, err := reach(a, port)
		if err != nil {
			return nil, err
		}
		egress = append(egress, rule)
	}
	if named || o.dns {
		ports := array{object{"port": int64(53), "protocol": "UDP"}, object{"port": int64(53), "protocol": "TCP"}}
		egress = append(egress, object{"ports": ports, "to": array{
			object{
				"namespaceSelector": object{"matchLabels": object{"kubernetes.io/metadata.name": "kube-system"}},
				"podSelector":       object{"matchLabels": object{"k8s-app": "kube-dns"}},
			},
			object{"ipBlock": object{"cidr": "169.254.20.10/32"}}, // NodeLocal DNSCache
		}})
	}
	for _, p := range o.egress {
		egress = append(egress, object{"to": array{object{"ipBlock": object{"cidr": p.String()}}}})
	}
	for _, target := range launch.Spec.Network.Allow {
		a, err := netip.ParseAddrPort(target)
		if err != nil {
			return nil, fault.New(fault.Invalid, "a job on Kubernetes cannot connect to %.80q: a NetworkPolicy has addresses, not names", target).
				WithHint("Allow address:port, have the pool's option egress name the range of addresses, or run the job on a local pool.")
		}
		rule, err := reach(a.Addr(), strconv.Itoa(int(a.Port())))
		if err != nil {
			return nil, err
		}
		egress = append(egress, rule)
	}
	return l.of(launch, "networking.k8s.io/v1", "NetworkPolicy", object{"spec": object{
		"podSelector": object{"matchLabels": object{launchLabel: launch.ID}},
		"policyTypes": array{"Ingress", "Egress"},
		"ingress":     array{object{"from": array{gang}}},
		"egress":      egress,
	}}), nil
}

// addresses of the server; named says that pods have to look it up too.
func (l *Launcher) addresses(ctx context.Context, host string) (all []netip.Addr, named bool, err error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}, false, nil
	}
	all, err = l.c.Resolve(ctx, host)
	if err != nil {
		return nil, true, fault.New(fault.Unavailable, "the server's name %.200q has no address here: %w", host, err).
			WithHint("Use an address in url of the engine's configuration, or fix the name.")
	}
	return all, true, nil
}

// reach permits TCP to one address and port.
func reach(a netip.Addr, port string) (object, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return nil, bad(port, "a port")
	}
	a = a.Unmap().WithZone("")
	return object{
		"to":    array{object{"ipBlock": object{"cidr": netip.PrefixFrom(a, a.BitLen()).String()}}},
		"ports": array{object{"protocol": "TCP", "port": int64(n)}},
	}, nil
}
