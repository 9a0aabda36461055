package config

import (
	"os"
	"strings"

	"github.com/falaj-ml/falaj/internal/blob/s3blob"
	"github.com/falaj-ml/falaj/internal/fault"
	"github.com/falaj-ml/falaj/internal/filewatch"
	"github.com/falaj-ml/falaj/internal/governance/residency"
)

// validateObjects looks at blob.s3, without asking the endpoint.
func (c Config) validateObjects() error {
	s3 := c.Blob.S3
	if s3.Endpoint == "" {
		if s3.Bucket != "" {
			return fault.New(fault.Invalid, "endpoint is needed with bucket")
		}
		return nil
	}
	if s3.Credentials == "" {
		return fault.New(fault.Invalid, "credentials is needed").WithHint("Name a file with the lines access_key = … and secret_key = ….")
	}
	if s3.Zone != string(residency.Home) {
		return fault.New(fault.Invalid, "zone: the bucket is in %q, but objects must be in %s", s3.Zone, residency.Home).
			WithHint("Data without labels must be in %s. If the bucket is in that zone, set zone: %s", residency.Home, residency.Home)
	}
	return s3blob.CheckConfig(s3blob.Config{Endpoint: s3.Endpoint, Bucket: s3.Bucket, Prefix: s3.Prefix})
}

// ReadCredentials reads the keys of a bucket: the access key and the secret key. No error
// has a line of the file.
func ReadCredentials(path string) (pair [2]string, err error) {
	const form = "Two lines: access_key = … and secret_key = …"
	text, err := filewatch.ReadPrivate(path)
	if err != nil {
		err = fault.Wrap(err, "blob.s3.credentials")
		if fault.HintOf(err) == "" {
			return pair, fault.New(fault.Invalid, "%w", err).WithHint(form)
		}
		return pair, err
	}
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		switch strings.TrimSpace(key) {
		case "access_key":
			pair[0] = strings.TrimSpace(value)
		case "secret_key":
			pair[1] = strings.TrimSpace(value)
		default:
			return pair, fault.New(fault.Invalid, "blob.s3.credentials: line %d of %s is neither access_key nor secret_key", n+1, path).WithHint(form)
		}
	}
	if pair[0] == "" || pair[1] == "" {
		return pair, fault.New(fault.Invalid, "blob.s3.credentials: %s has no access_key or no secret_key", path).WithHint(form)
	}
	return pair, nil
}

// Bucket reads what the configuration names.
func (c Config) Bucket() (s3blob.Config, error) {
	s3 := c.Blob.S3
	out := s3blob.Config{Endpoint: s3.Endpoint, Bucket: s3.Bucket, Prefix: s3.Prefix, Region: s3.Region}
	pair, err := ReadCredentials(s3.Credentials)
	if err != nil {
		return out, err
	}
	out.AccessKey, out.SecretKey = pair[0], pair[1]
	if s3.CA != "" {
		if out.CA, err = os.ReadFile(s3.CA); err != nil {
			return out, fault.New(fault.Invalid, "blob.s3.ca: %w", err)
		}
	}
	return out, nil
}
