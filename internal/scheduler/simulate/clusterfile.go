package simulate

import (
	"fmt"
	"io"
	"io/fs"
	"math"
	"time"

	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/yamldoc"
)

// clusterFile is the YAML of a cluster.
type clusterFile struct {
	Groups []struct {
		Type     string             `yaml:"type"`
		Nodes    int                `yaml:"nodes"`
		GPUs     int                `yaml:"gpus_per_node"`
		Profiles string             `yaml:"profiles"`
		Price    float64            `yaml:"price_per_hour"`
		Speed    *float64           `yaml:"speed"`
		Speeds   map[string]float64 `yaml:"speeds"`
		Down     []struct {
			From  string `yaml:"from"`
			To    string `yaml:"to"`
			Nodes *int   `yaml:"nodes"`
		} `yaml:"down"`
	} `yaml:"groups"`
}

const (
	maxClusterBytes = 64 << 10
	slowest         = 0.01 // speed of a synthetic type
	fastest         = 100.0
)

// ReadCluster reads a cluster and the profiles of its types. file is for messages;
// open gives the directory of profiles that a group names, and profiles is that of
// groups that name none.
func ReadCluster(file string, in io.Reader, profiles string, open func(dir string) fs.FS) (Cluster, Measured, error) {
	b, err := io.ReadAll(io.LimitReader(in, maxClusterBytes+1))
	if err != nil {
		return Cluster{}, nil, fault.Wrap(err, "reading %s", file)
	}
	if len(b) > maxClusterBytes {
		return Cluster{}, nil, fault.New(fault.TooLarge, "%s has more than %d KiB", file, maxClusterBytes>>10)
	}
	var f clusterFile
	if err := yamldoc.Decode(b, &f); err != nil {
		return Cluster{}, nil, fault.New(fault.Invalid, "%s %s", file, err).
			WithHint("A cluster has `groups:`, a list of type, nodes, gpus_per_node, profiles, and optionally price_per_hour, down, speed and speeds.")
	}
	wrong := func(group int, err error) error {
		return fault.Wrap(err, "%s%s, group %d", file, lineOf(b, group), group+1)
	}
	var c Cluster
	m, read, first := Measured{}, map[string]Profiles{}, Profiles{}
	if len(f.Groups) == 0 {
		return c, nil, fault.New(fault.Invalid, "%s has no groups of nodes", file)
	}
	for i, g := range f.Groups {
		group := Group{Type: g.Type, Nodes: g.Nodes, GPUs: g.GPUs, Price: g.Price, Synthetic: g.Speed != nil || g.Speeds != nil}
		if g.Type == "" || len(g.Type) > 100 || !printable(g.Type) {
			return c, nil, wrong(i, fault.New(fault.Invalid, "%q is not a type of at most 100 printable characters", clip(g.Type)))
		}
		for _, d := range g.Down {
			o := Outage{Nodes: g.Nodes}
			if d.Nodes != nil {
				o.Nodes = *d.Nodes
			}
			if o.From, err = seconds("from", d.From); err == nil {
				o.To, err = seconds("to", d.To)
			}
			if err != nil {
				return c, nil, wrong(i, err)
			}
			group.Down = append(group.Down, o)
		}
		c.Groups = append(c.Groups, group)
		if err := c.Validate(); err != nil {
			return c, nil, wrong(i, err)
		}
		dir := g.Profiles
		if dir == "" {
			dir = profiles
		}
		if dir == "" {
			return c, nil, wrong(i, fault.New(fault.Invalid, "type %s has no profiles", g.Type).WithHint("Give `profiles:`, or --profiles for all types without their own."))
		}
		if read[dir] == nil {
			if read[dir], err = readProfiles(open(dir), first); err != nil {
				return c, nil, wrong(i, fault.Wrap(err, "%s", dir))
			}
		}
		for name, p := range read[dir] {
			if first[name] == nil {
				first[name] = p
			}
		}
		if m[g.Type], err = scaled(read[dir], g.Speed, g.Speeds); err != nil {
			return c, nil, wrong(i, err)
		}
	}
	return c, m, nil
}

// scaled are the profiles of a synthetic type.
func scaled(of Profiles, all *float64, by map[string]float64) (Profiles, error) {
	for name := range by {
		if of[name] == nil {
			return nil, fault.New(fault.Invalid, "speeds: %q has no profile; profiles exist for %s", clip(name), Measured{"": of}.names())
		}
	}
	out := Profiles{}
	for name, p := range of {
		speed, given := by[name]
		if !given && all != nil {
			speed, given = *all, true
		}
		if given && !(speed >= slowest && speed <= fastest) {
			return nil, fault.New(fault.Invalid, "a speed of %v is not from %v to %v", speed, slowest, fastest)
		}
		out[name] = p
		if given {
			out[name] = p.faster(speed)
		}
	}
	return out, nil
}

// lineOf is where a group begins, as " line 7"; empty if that is not known.
func lineOf(b []byte, group int) string {
	documents, err := yamldoc.Documents(b)
	if err != nil || len(documents) == 0 {
		return ""
	}
	top := documents[0].Content
	for i := 0; i+1 < len(top); i += 2 {
		if groups := top[i+1].Content; top[i].Value == "groups" && group < len(groups) {
			return fmt.Sprintf(" line %d", groups[group].Line)
		}
	}
	return ""
}

// seconds reads a time such as 90m.
func seconds(name, text string) (int, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d.Seconds() > maxTime || d.Seconds() != math.Trunc(d.Seconds()) {
		return 0, fault.New(fault.Invalid, "down: %s is %q, not a time of whole seconds since the beginning such as 90m", name, clip(text))
	}
	return int(d.Seconds()), nil
}
