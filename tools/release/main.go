// Command release makes the parts of a release that no other tool makes: the container
// image without a daemon, and one bill of materials of all that is shipped. `make release`
// runs it; scripts/release.sh is the order of steps.
//
// # Map
//
//   - main.go: the command line.
//   - image.go: an OCI layout of one image per architecture, under one index.
//   - sbom.go: joins the Go modules with the console's packages, the runtimes beside the
//     binary and the packages of the image's base.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("which part? Give image or sbom.")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	version := flags.String("version", "", "the release's version")
	commit := flags.String("commit", "", "the commit that it is built from")
	epoch := flags.Int64("epoch", 0, "the time of all files, in seconds since 1970")
	out := flags.String("out", "", "what is written")
	var arches, components list
	flags.Var(&arches, "arch", "ARCH=BASE.tar,DIRECTORY: the base of an image, and what goes to /opt/falaj in it; repeated")
	flags.Var(&components, "component", "PURL: a part that no list below names; repeated")
	modules := flags.String("modules", "", "the bill of materials of the Go modules")
	lock := flags.String("lock", "", "package-lock.json of the console")
	packages := flags.String("packages", "", "packages of the image's base, one NAME VERSION ARCH in a line")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if *version == "" || *out == "" || *epoch == 0 || flags.NArg() > 0 {
		return errors.New("-version, -epoch and -out are needed, and flags only")
	}
	switch args[0] {
	case "image":
		return image(*out, *version, *commit, time.Unix(*epoch, 0).UTC(), arches)
	case "sbom":
		return sbom(*out, *version, time.Unix(*epoch, 0).UTC(), *modules, *lock, *packages, components)
	}
	return fmt.Errorf("there is no part %q: image or sbom", args[0])
}

// list is a flag that is given several times.
type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }
