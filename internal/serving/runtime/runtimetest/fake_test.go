package runtimetest_test

import (
	"testing"

	"github.com/falaj-ml/falaj/internal/serving/runtime/runtimetest"
)

func TestFake(t *testing.T) { runtimetest.Run(t, runtimetest.Fake{}, runtimetest.FakeModels) }
