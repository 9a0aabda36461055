// Package flight sends rows to a real server and reads them again by Arrow Flight,
// over TLS, as clients on another machine do.
package flight

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/falaj-ml/falaj/client"
	"github.com/falaj-ml/falaj/test/live"
)

func TestRowsOverTLS(t *testing.T) {
	cert, key := certificate(t)
	s := live.New(t, "")
	s.Env = append(s.Env, "FALAJ_TLS_CERT="+cert, "FALAJ_TLS_KEY="+key)
	s.Up(t)
	if !strings.HasPrefix(s.URL, "https://") {
		t.Fatalf("the server is at %s", s.URL)
	}
	api, err := client.New(s.URL, s.Token, client.WithCA(cert))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.Apply(t.Context(), "", []byte("{api_version: falaj/v1, kind: Project, name: far}\n---\n{api_version: falaj/v1, kind: Dataset, name: numbers, project: far, spec: {classification: confidential}}\n"), false); err != nil {
		t.Fatal(err)
	}
	trusted, err := credentials.NewClientTLSFromFile(cert, "")
	if err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(s.URL, "https://")
	c := dial(t, address, trusted)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+s.Token, "falaj-project", "far")

	put, err := c.DoPut(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const rows = 100_000
	schema := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for n := range int64(rows) {
		b.Field(0).(*array.Int64Builder).Append(n)
	}
	batch := b.NewRecordBatch()
	to := flight.NewRecordWriter(put, ipc.WithSchema(schema))
	to.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"numbers"}})
	for from := int64(0); from < rows; from += 10_000 { // gRPC's clients send 4 MiB at a time
		if err := to.Write(batch.NewSlice(from, from+10_000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := put.CloseSend(); err != nil {
		t.Fatal(err)
	}
	answer, err := put.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var made struct {
		Dataset string
		Rows    int64
	}
	if err := json.Unmarshal(answer.GetAppMetadata(), &made); err != nil || made.Dataset != "numbers@1" || made.Rows != rows {
		t.Fatal(made, err)
	}

	info, err := c.GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{made.Dataset}})
	if err != nil {
		t.Fatal(err)
	}
	get, err := c.DoGet(ctx, info.GetEndpoint()[0].GetTicket())
	if err != nil {
		t.Fatal(err)
	}
	from, err := flight.NewRecordReader(get)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Release()
	next := int64(0)
	for from.Next() {
		for _, n := range from.RecordBatch().Column(0).(*array.Int64).Int64Values() {
			if n != next {
				t.Fatalf("row %d is %d", next, n)
			}
			next++
		}
	}
	if err := from.Err(); err != nil && !errors.Is(err, io.EOF) || next != rows {
		t.Errorf("%d rows came, %v", next, err)
	}
	// Without TLS, and with another certificate's trust, there is nothing.
	for name, how := range map[string]credentials.TransportCredentials{"no TLS": insecure.NewCredentials(), "no trust": credentials.NewClientTLSFromCert(x509.NewCertPool(), "")} {
		if _, err := dial(t, address, how).GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"numbers"}}); err == nil {
			t.Errorf("%s: it answers", name)
		}
	}
}

func dial(t *testing.T, address string, how credentials.TransportCredentials) flight.Client {
	t.Helper()
	c, err := flight.NewClientWithMiddleware(address, nil, nil, grpc.WithTransportCredentials(how))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// certificate makes one of this machine, signed by itself.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	signed, err := x509.CreateCertificate(rand.Reader, &about, &about, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: signed}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
