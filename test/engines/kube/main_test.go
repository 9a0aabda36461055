package kube_test

import (
	"os"
	"testing"

	"github.com/falaj-ml/falaj/internal/compute/engine/kube/kubetest"
)

func TestMain(m *testing.M) { os.Exit(kubetest.Main(m)) }
